"""The progress of a query that catches up, in one line on standard error."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from pillarbox._errors import describe
from pillarbox._runtime.spark.session.session import session_of
from pillarbox_tools.model.catching_up import line_of
from pillarbox_tools.model.snapshot import Snapshot
from pillarbox_tools.watching.following import watched

if TYPE_CHECKING:
    from pillarbox._runtime.spark.starting.started import StartedQuery

_log = logging.getLogger("pillarbox")

_EVERY = 1.0
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """A terminal line that is rewritten in place. Methods never raise. One thread at a time uses it."""

    def __init__(
        self,
        stream: TextIO,
        snapshot: Callable[[], Snapshot],
        *,
        is_batch: bool,
    ) -> None:
        self._stream = stream
        self._snapshot = snapshot
        self._is_batch = is_batch
        self._shown = ""

    def update(self) -> None:
        try:
            self._write(line_of(self._snapshot(), is_batch=self._is_batch) or "")
        except Exception as error:
            _log.debug("the progress line cannot be shown: %s", describe(error))

    def _write(self, line: str) -> None:
        line = line[: shutil.get_terminal_size().columns - 1]
        if line or self._shown:
            self._stream.write(f"{_CLEAR}{line}")
            self._stream.flush()
        self._shown = line

    def clear(self) -> None:
        try:
            self._write("")
        except Exception as error:
            _log.debug("the progress line cannot be removed: %s", describe(error))


@contextmanager
def progress_line(started: StartedQuery) -> Iterator[None]:
    """Show the line of a query during the block, if standard error is a terminal without Spark's progress bar."""
    stream = sys.stderr
    if not stream.isatty() or session_of(started.start.spark).shows_progress_bar:
        yield
        return
    query = watched(started)
    line = ProgressLine(stream, query.snapshot, is_batch=started.start.is_available_now)
    has_ended = threading.Event()

    def write() -> None:
        while not has_ended.wait(_EVERY):
            line.update()

    # In its own thread, because the waiting thread handles signals.
    writer = threading.Thread(target=write, name="pillarbox progress", daemon=True)
    writer.start()
    try:
        yield
    finally:
        has_ended.set()
        writer.join(_EVERY)
        line.clear()
