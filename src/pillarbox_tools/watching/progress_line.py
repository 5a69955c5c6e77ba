"""Shows a query's progress while it catches up, as a line on standard error."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from pillarbox._errors import describe
from pillarbox._runtime.spark.session.session import session_of
from pillarbox_tools.model.catching_up import line_of
from pillarbox_tools.model.snapshot import Snapshot
from pillarbox_tools.repeating import repeated
from pillarbox_tools.watching.following import watched

if TYPE_CHECKING:
    from pillarbox._runtime.spark.starting.started import StartedQuery

_log = logging.getLogger("pillarbox")

_EVERY = 1.0
_CLEAR = "\r\x1b[K"


@dataclass
class ProgressLine:
    """A terminal line that is rewritten in place. Methods never raise. Not thread-safe."""

    stream: TextIO
    snapshot: Callable[[], Snapshot]
    is_batch: bool
    shown: str = ""

    def update(self) -> None:
        self._show(lambda: line_of(self.snapshot(), is_batch=self.is_batch) or "")

    def clear(self) -> None:
        self._show(lambda: "")

    def _show(self, make_line: Callable[[], str]) -> None:
        try:
            line = make_line()[: shutil.get_terminal_size().columns - 1]
            if line or self.shown:
                self.stream.write(f"{_CLEAR}{line}")
                self.stream.flush()
            self.shown = line
        except Exception as error:
            _log.debug("the progress line cannot be shown: %s", describe(error))


@contextmanager
def progress_line(started: StartedQuery) -> Iterator[None]:
    """Show a query's progress within the block, if standard error is a terminal without Spark's progress bar."""
    stream = sys.stderr
    if not stream.isatty() or session_of(started.start.spark).shows_progress_bar:
        yield
        return
    query = watched(started)
    line = ProgressLine(stream, query.snapshot, is_batch=started.start.is_available_now)
    # Runs in its own thread, because the waiting thread handles signals.
    try:
        with repeated(line.update, _EVERY):
            yield
    finally:
        line.clear()
