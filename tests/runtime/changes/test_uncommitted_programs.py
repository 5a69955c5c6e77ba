"""Programs that change before their first epoch is committed, for example after an error in a function.

There is no state yet, but Spark has stored each source's position, and whether the state depends on processing time.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox import CheckpointMismatchError, KeyedProcessFunction, StreamExecutionEnvironment
from pillarbox._graph.program import Program
from pillarbox._graph.transformations import SinkTransformation
from pillarbox._runtime.spark.checkpoint import checkpoint as module
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint


class Same(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


def program(*sources: str, key: str = "card", **options: Any) -> Program:
    env = StreamExecutionEnvironment()
    first, *others = [env.from_collection([1]).name(name) for name in sources]
    every = first.union(*others) if others else first
    stream = every.key_by(key).process(Same(), **options).uid("same")
    return env._compile("test", [SinkTransformation(env._next(), "out", [stream._plain_step()], output="out")])


class Folders:
    """A fake checkpoint. The folders ``offsets`` and ``commits`` list the batch ids in ``begun`` and ``committed``."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.committed: list[str] = []
        self.notes: list[str] = []

    def folder(self, path: str) -> Any:
        def lines(names: Sequence[str] = ()) -> list[tuple[str, str]]:
            return [("part", line) for line in self.notes]

        names = {"offsets": self.begun, "commits": self.committed}.get(path.rpartition("/")[2], [])
        return SimpleNamespace(lines=lines, names=lambda: names, add_line=self.notes.append)

    def start(self, program: Program) -> None:
        nobody: Any = None
        Checkpoint(nobody, "/checkpoint").check([program], [program.layout])


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Folders:
    folders = Folders()
    monkeypatch.setattr(module, "session_of", lambda spark: folders)
    return folders


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        (program("a", processing_time=True), "it did not use processing time"),
        (program("a", "b"), "there was 1 source"),
    ],
)
def test_spark_refuses_the_changed_program_in_a_later_epoch(folders: Folders, changed: Program, error: str) -> None:
    folders.start(program("a"))
    folders.begun = ["0"]
    with pytest.raises(CheckpointMismatchError, match=rf"{error}[^$]*or use a new checkpoint directory$"):
        folders.start(changed)
    folders.start(program("a"))


def test_the_state_may_change(folders: Folders) -> None:
    folders.start(program("a"))
    folders.begun = ["0"]
    folders.start(program("a", key="shop"))
    folders.committed = ["0"]
    with pytest.raises(CheckpointMismatchError, match="the key was the column shop, and is the column card"):
        folders.start(program("a"))


def test_before_the_first_epoch_all_may_change(folders: Folders) -> None:
    folders.start(program("a"))
    folders.start(program("a", "b", processing_time=True))
