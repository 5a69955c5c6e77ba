from __future__ import annotations

import io
import shutil
import sys
import threading
from os import terminal_size
from types import SimpleNamespace
from typing import Any

import pytest

import pillarbox
from pillarbox._runtime.spark.starting.started import StartedQuery, remember
from pillarbox_tools.watching import progress_line as module
from pillarbox_tools.watching.progress_line import ProgressLine
from tests.model.made import model, progress, source

CLEAR = "\r\x1b[K"


class Terminal(io.StringIO):
    """A fake terminal. Sets the event ``written`` after each write."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVERY", 0.01)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: terminal_size((40, 24)))


def test_the_line_is_written_in_its_place_and_fits() -> None:
    query, terminal = model(), Terminal()
    line = ProgressLine(terminal, query.snapshot, is_batch=True)
    line.update()
    assert terminal.getvalue() == "", "there is nothing to say yet"
    query.progressed(progress(1, source(records_in=1_000_000)))
    line.update()
    assert terminal.getvalue() == CLEAR + "1 epoch · 1,000,000 rows · 1,000,000 rows"[:39]
    line.clear()
    line.clear()
    assert terminal.getvalue().count(CLEAR) == 2
    assert terminal.getvalue().endswith(CLEAR)


def test_a_failing_progress_line_does_not_affect_the_query() -> None:
    def gone() -> Any:
        raise ConnectionError("Java is gone")

    terminal = Terminal()
    line = ProgressLine(terminal, gone, is_batch=True)
    line.update()
    assert terminal.getvalue() == ""
    line.shown = "something"
    terminal.close()
    line.clear()


class Query:
    """A fake query that ends when its terminal shows a given text."""

    id = "q"
    runId = "r"
    isActive = True

    def __init__(self, written: threading.Event | None) -> None:
        self._written = written

    def awaitTermination(self, timeout: float | None = None) -> bool:
        assert self._written is None or self._written.wait(30)
        self.isActive = False
        return True


def _run(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, bar: str, written: threading.Event | None) -> str:
    query, query_model = Query(written), model()
    query_model.progressed(progress(1, source(records_in=50)))
    context = SimpleNamespace(getConf=lambda: {"spark.ui.showConsoleProgress": bar})
    spark = SimpleNamespace(_jsparkSession=None, sparkContext=context)
    start: Any = SimpleNamespace(checkpoint=None, is_available_now=True, spark=spark)
    sparks: Any = query
    started = StartedQuery(sparks, start)
    watched: Any = query_model
    monkeypatch.setattr(module, "watched", lambda started: watched)
    remember(started)
    monkeypatch.setattr(sys, "stderr", stream)
    pillarbox.run(sparks)
    return stream.getvalue()


def test_run_shows_the_progress_of_a_batch_and_removes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    shown = _run(monkeypatch, terminal, "false", terminal.written)
    assert "1 epoch · 50 rows · 50 rows/s" in shown
    assert shown.endswith(CLEAR)


def test_there_is_no_line_where_nobody_looks_or_spark_shows_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run(monkeypatch, io.StringIO(), "false", None) == ""
    assert _run(monkeypatch, Terminal(), "true", None) == ""
