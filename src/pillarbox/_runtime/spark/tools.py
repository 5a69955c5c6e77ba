"""The core's interface to ``pillarbox_tools``, which the core does not import.

The tools observe queries through three hooks, ``on_*``.
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

# If more calls are queued, the oldest are dropped.
_WAITING = 256
# Seconds that a query's end waits for its hooks.
_PATIENCE = 5.0


class Tools(Protocol):
    """The tools' functions that the core calls."""

    def on_started(self, started: StartedQuery) -> None: ...

    def on_progress(self, started: StartedQuery, reports: Sequence[Progress]) -> None:
        """Handle new progress reports. Called every second, even without reports."""

    def on_ended(self, started: StartedQuery, failure: Exception | None) -> None: ...

    def progress_line(self, started: StartedQuery) -> AbstractContextManager[None]: ...

    def record(self, writer: Any, directory: str, **options: Any) -> str: ...

    def dashboard(self, query: Any, port: int | None, *, host: str | None, token: str | None) -> Any: ...

    def serve_metrics(self, query: Any, port: int, *, host: str) -> Any: ...

    def query_collector(self) -> Any: ...

    def export_otel(self, query: Any, meter_provider: Any) -> None: ...


_loaders: list[Callable[[], Tools | None]] = []


def provide(load: Callable[[], Tools | None]) -> None:
    _loaders[:] = [load]


def installed_tools() -> Tools | None:
    """Return the tools, or None if they are not installed. Thread-safe."""
    return _loaders[0]() if _loaders else None


def needed_tools(method: str) -> Tools:
    """Return the tools, or raise an error that names ``method`` if they are not installed. Thread-safe."""
    tools = installed_tools()
    if tools is None:
        raise ConfigurationError(
            f"{method} needs the package pillarbox_tools, which is not installed: run pip install --force-reinstall"
            " pillarbox, or ship pillarbox.zip, which contains both packages"
        )
    return tools


class ToolHooks:
    """Calls the tools' hooks for one query, in order, in a thread that runs only while calls are queued.

    Logs only the first error of each hook. If a hook hangs, only reports are lost.
    """

    def __init__(self, started: StartedQuery, tools: Tools) -> None:
        self._started = started
        self._tools = tools
        self._changed = threading.Condition()  # guards the calls and `_is_calling`
        self._calls: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._is_calling = False
        self._warned: set[str] = set()
        self._put("on_started")

    def progressed(self, reports: Sequence[Progress]) -> None:
        self._put("on_progress", reports)

    def ended(self, failure: Exception | None) -> None:
        """Queue the hook for the query's end, and wait for it for a few seconds at most. Thread-safe."""
        self._put("on_ended", failure)
        if not self.wait(_PATIENCE):
            _log.warning(
                "query %s: its observer (pillarbox_tools) did not finish within %g seconds after the query's end"
                " and is abandoned. The history may lack the last epochs",
                *(self._started.query.id, _PATIENCE),
            )

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for all queued calls. Returns whether they are done. Thread-safe."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_calling, seconds)

    def _put(self, method: str, *arguments: Any) -> None:
        with self._changed:
            if self._calls and method == "on_progress" and not arguments[0]:
                return
            if len(self._calls) >= _WAITING:
                self._calls.popleft()
            self._calls.append((method, arguments))
            if not self._is_calling:
                self._is_calling = True
                name = f"pillarbox hooks of query {self._started.query.id}"
                threading.Thread(target=self._call, name=name, daemon=True).start()

    def _call(self) -> None:
        while True:
            with self._changed:
                if not self._calls:
                    self._is_calling = False
                    self._changed.notify_all()
                    return
                method, arguments = self._calls.popleft()
            try:
                getattr(self._tools, method)(self._started, *arguments)
            except Exception as error:
                level = logging.DEBUG if method in self._warned else logging.WARNING
                self._warned.add(method)
                _log.log(
                    level,
                    "query %s: the hook %s of pillarbox_tools failed: %s",
                    self._started.query.id,
                    method,
                    describe(error),
                )
