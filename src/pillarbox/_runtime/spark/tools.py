"""The seam between the core and the tools, ``pillarbox_tools``: the core imports nothing of them.

The tools observe queries through three hooks. Each query has a thread that calls them, and a bounded queue before it,
so hooks can neither fail a query nor hold it up. The other functions are called when users ask for them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from pillarbox._errors import ConfigurationError, describe

if TYPE_CHECKING:
    from pillarbox._runtime.spark.starting.started import StartedQuery

_log = logging.getLogger("pillarbox")

Progress = Mapping[str, Any]

# How many calls of hooks may wait; then the oldest reports are dropped.
_WAITING = 256
# How long the end of a query waits for its hooks (seconds).
_PATIENCE = 5.0


class Tools(Protocol):
    """What the core calls of the tools."""

    def on_started(self, started: StartedQuery) -> None:
        """Take note of a query that has started."""

    def on_progress(self, started: StartedQuery, reports: Sequence[Progress]) -> None:
        """Take the new progress reports of a query: each second, also if there are none."""

    def on_ended(self, started: StartedQuery, failure: Exception | None) -> None:
        """Take note of a query that has ended, and why."""

    def progress_line(self, started: StartedQuery) -> AbstractContextManager[None]:
        """Show the progress of a query in the terminal, until the block ends."""

    def record(self, writer: Any, directory: str, **options: Any) -> str:
        """See :func:`pillarbox.record`."""

    def dashboard(self, query: Any, port: int | None, *, host: str | None, token: str | None) -> Any:
        """See :func:`pillarbox.dashboard`."""

    def serve_metrics(self, query: Any, port: int, *, host: str) -> Any:
        """See :func:`pillarbox.serve_metrics`."""

    def query_collector(self) -> Any:
        """See :class:`pillarbox.QueryCollector`."""

    def export_otel(self, query: Any, meter_provider: Any) -> None:
        """See :func:`pillarbox.export_otel`."""


# The function that loads the tools, once it is provided.
_loaders: list[Callable[[], Tools | None]] = []


def provide(load: Callable[[], Tools | None]) -> None:
    """Set what loads the tools; it returns None if they are not installed."""
    _loaders[:] = [load]


def installed_tools() -> Tools | None:
    """Return the tools, or None if they are not installed. Any thread."""
    return _loaders[0]() if _loaders else None


def needed_tools(method: str) -> Tools:
    """Return the tools, for a public method that is a part of them. Any thread.

    Raises:
        ConfigurationError: they are not installed.
    """
    tools = installed_tools()
    if tools is None:
        raise ConfigurationError(
            f"{method} needs the package pillarbox_tools, which this installation of pillarbox lacks: install the whole"
            " wheel (pip install --force-reinstall pillarbox), or ship pillarbox.zip, which contains both packages"
        )
    return tools


class Hooks:
    """Calls the hooks of the tools for one query: in their order, in a thread of its own while there are calls.

    An error of a hook is logged once; a hook that hangs costs the query nothing but reports.
    """

    def __init__(self, started: StartedQuery, tools: Tools) -> None:
        self._started = started
        self._tools = tools
        self._changed = threading.Condition()  # guards the calls, and whether a thread makes them
        self._calls: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._is_calling = False
        self._warned: set[str] = set()  # of the thread
        self._put("on_started")

    def progressed(self, reports: Sequence[Progress]) -> None:
        """Hand on new progress reports. Any thread."""
        self._put("on_progress", reports)

    def ended(self, failure: Exception | None) -> None:
        """Hand on the end of the query, and wait some seconds until the hooks have taken it. Any thread."""
        self._put("on_ended", failure)
        if not self.wait(_PATIENCE):
            _log.warning(
                "query %s: what observes it (pillarbox_tools) has not finished within %g seconds of its end, and is"
                " left: its last epochs may be missing from the history",
                *(self._started.query.id, _PATIENCE),
            )

    def wait(self, seconds: float) -> bool:
        """Wait until the hooks have taken all so far; return whether they have. Any thread."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_calling, seconds)

    def _put(self, method: str, *arguments: Any) -> None:
        with self._changed:
            if self._calls and method == "on_progress" and not arguments[0]:
                return  # there is something to take anyway
            if len(self._calls) >= _WAITING:
                self._calls.popleft()
            self._calls.append((method, arguments))
            if not self._is_calling:
                self._is_calling = True
                name = f"pillarbox hooks of query {self._started.query.id}"
                threading.Thread(target=self._call, name=name, daemon=True).start()

    def _call(self) -> None:
        """Call the hooks until there is nothing to take."""
        while True:
            with self._changed:
                if not self._calls:
                    self._is_calling = False
                    self._changed.notify_all()
                    return
                method, arguments = self._calls.popleft()
            try:
                getattr(self._tools, method)(self._started, *arguments)
            except Exception as error:  # the query can do without
                level = logging.DEBUG if method in self._warned else logging.WARNING
                self._warned.add(method)
                _log.log(level, "query %s: %s of pillarbox_tools: %s", self._started.query.id, method, describe(error))
