"""Detection of a checkpoint's layout if the notes that describe it are lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox import CheckpointMismatchError
from pillarbox._graph.layout import Layout
from pillarbox._graph.targets import CODES
from pillarbox._runtime.spark.checkpoint import checkpoint as module
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint

COMPILED = [Layout(16, 128)]
NOTE = {"codes": CODES, "layouts": [[8, 64]], "number": 1}


class Notes:
    def __init__(self, *notes: dict[str, Any]) -> None:
        self.notes = [json.dumps(note, sort_keys=True) for note in notes]
        self.epochs = ["0"]

    def folder(self, path: str) -> Any:
        def lines(names: Sequence[str] = ()) -> list[tuple[str, str]]:
            return [("part", line) for line in self.notes] if path.endswith("/pillarbox") else []

        return SimpleNamespace(lines=lines, names=lambda: self.epochs, add_line=self.notes.append)

    def layouts(self, stored: Sequence[Layout | None] | None) -> list[Layout]:
        def find() -> Sequence[Layout | None]:
            assert stored is not None, "nobody need look"
            return stored

        nobody: Any = None
        return Checkpoint(nobody, "/checkpoint").layouts(COMPILED, find)


@pytest.fixture
def folder(monkeypatch):
    def notes_of(*notes: dict[str, Any]) -> Notes:
        files = Notes(*notes)
        monkeypatch.setattr(module, "session_of", lambda spark: files)
        return files

    return notes_of


def test_the_noted_layout_holds(folder):
    files = folder(NOTE)
    assert files.layouts(None) == [Layout(8, 64, CODES)] and len(files.notes) == 1


def test_a_new_checkpoint_is_noted(folder):
    files = folder()
    files.epochs = []
    assert files.layouts(None) == [Layout(16, 128, CODES)]
    assert json.loads(files.notes[0]) == {**NOTE, "layouts": [[16, 128]]}


def test_a_lost_note_is_written_again_from_the_heads_of_the_logs(folder):
    files = folder()
    assert files.layouts([Layout(8, 64, CODES)]) == [Layout(8, 64, CODES)]
    assert list(map(json.loads, files.notes)) == [NOTE]
    assert files.layouts(None) == [Layout(8, 64, CODES)]


def test_nothing_is_noted_that_was_guessed(folder):
    files = folder()
    assert files.layouts([None]) == [Layout(16, 128, CODES)]
    assert files.notes == []


def test_another_scheme_of_codes_is_refused_and_stays_noted(folder):
    files = folder({**NOTE, "codes": CODES + 1})
    with pytest.raises(CheckpointMismatchError, match=f"numbers its subtasks by version {CODES + 1}"):
        files.layouts(None)
    assert len(files.notes) == 1
