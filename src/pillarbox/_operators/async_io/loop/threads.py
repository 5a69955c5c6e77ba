"""Daemon threads for plain functions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Work = tuple["Future[Any]", Callable[[], Any]]


class DaemonThreads(ThreadPoolExecutor):
    """A pool of threads that do not delay Python's exit. Thread-safe.

    asyncio accepts only a ``ThreadPoolExecutor`` as its default executor.
    """

    def __init__(self, max_workers: int, thread_name_prefix: str) -> None:
        super().__init__(max_workers, thread_name_prefix)
        self._most = max_workers
        self._name = thread_name_prefix
        self._lock = threading.Lock()
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        # Number of threads minus assigned calls. Negative if calls wait.
        self._free = 0
        self._started = 0
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool of threads is shut down")
            if self._free <= 0 and self._started < self._most:
                name = f"{self._name}_{self._started}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
                self._started += 1
                self._free += 1
            self._free -= 1
            self._work.put((future, lambda: fn(*args, **kwargs)))
        return future

    @property
    def is_busy(self) -> bool:
        with self._lock:
            return self._free < self._started

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._closed = True
            for _ in range(self._started):
                self._work.put(None)

    def _run(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            future, call = work
            if future.set_running_or_notify_cancel():
                result, error = _outcome(call)
                # Free the thread first, because the result's receiver may submit the next call.
                with self._lock:
                    self._free += 1
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)
                del result, error
            else:
                with self._lock:
                    self._free += 1
            # Their referents must not live until the next call.
            del work, future, call


def _outcome(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:
        return None, error


def outcome_of(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Return a call's (result, error). A StopIteration becomes a RuntimeError, because futures refuse it."""
    result, error = _outcome(call)
    if isinstance(error, StopIteration):
        stopped = RuntimeError("the function raised StopIteration")
        stopped.__cause__ = error
        return None, stopped
    return result, error
