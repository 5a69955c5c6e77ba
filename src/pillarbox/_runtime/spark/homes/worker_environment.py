"""Reproduces a Spark worker's environment in a home.

A home may serve several workers, each in a thread with its own task context. An application's workers share the rest.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from pillarbox._runtime.spark.homes import broadcasts
from pillarbox._runtime.spark.homes.signals import explain_in_this_thread
from pillarbox._runtime.spark.tasks import accumulators

_log = logging.getLogger("pillarbox")


class WorkerEnvironment(NamedTuple):
    """The environment of a worker that runs a task.

    Plain data, because a home reads it before it can import the user's modules.

    Attributes:
        process: process-wide settings, or None if unchanged since the previous request on the connection.
    """

    context: dict[str, Any]
    process: bytes | None
    broadcasts: dict[int, str | None]


class _ProcessState(NamedTuple):
    environment: dict[str, str]
    directory: str | None
    path: list[str]
    files: str | None

    @staticmethod
    def here() -> _ProcessState:
        from pyspark import SparkFiles

        path = [str.__str__(entry) for entry in sys.path if isinstance(entry, str)]
        return _ProcessState(dict(os.environ), _directory(), path, SparkFiles._root_directory)

    @staticmethod
    def bytes_here() -> bytes:
        """Return this process's pickled settings. Returns the same object until they change."""
        from pyspark import SparkFiles

        # Faster, because nothing is decoded.
        environment = dict(getattr(os.environ, "_data", os.environ))
        seen = environment, list(sys.path), _directory(), SparkFiles._root_directory
        if not _seen or _seen[0][0] != seen:
            _seen[:] = [(seen, _ProcessState.here().to_bytes())]
        return _seen[0][1]

    @staticmethod
    def of_bytes(content: bytes) -> _ProcessState:
        return _ProcessState(*json.loads(content))

    def to_bytes(self) -> bytes:
        return json.dumps(self).encode()


_seen: list[tuple[Any, bytes]] = []


def _directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def here(sent: bytes | None) -> WorkerEnvironment:
    """Return this worker's environment, without the process-wide settings if they equal ``sent``."""
    from pyspark import TaskContext

    context = TaskContext.get()
    fields = {} if context is None else vars(context)
    process = _ProcessState.bytes_here()
    return WorkerEnvironment(
        # Leaves out attributes that user functions have set.
        {name: value for name, value in fields.items() if name in TaskContext.__annotations__},
        None if process == sent else process,
        broadcasts.files(),
    )


def value(number: int) -> bytes:
    return broadcasts.value(number)


_thread = threading.local()
# Fields of the latest context, for threads of user functions.
_last: list[dict[str, Any]] = [{}]
_last_process: list[_ProcessState] = []
_lock = threading.Lock()


def enter(worker: WorkerEnvironment, value_of: Callable[[int], bytes]) -> None:
    with _lock:
        if worker.process is not None:
            _set_process(_ProcessState.of_bytes(worker.process))
    broadcasts.enter(worker.broadcasts, value_of)
    _set_context(worker.context)
    accumulators.collect_for_this_thread()
    explain_in_this_thread()


def take_updates() -> bytes | None:
    return accumulators.take_sums()


def drop() -> None:
    accumulators.drop()


def add(added: bytes | None) -> None:
    accumulators.add(added)


def _set_process(new: _ProcessState) -> None:
    """Apply changes to the worker's settings here, except to values that user functions have changed."""
    from pyspark import SparkFiles

    old = _last_process[0] if _last_process else _ProcessState.here()
    _last_process[:] = [new]
    for name in old.environment.keys() | new.environment.keys():
        before, after = old.environment.get(name), new.environment.get(name)
        if before == after or os.environ.get(name) != before:
            continue
        if after is None:
            del os.environ[name]
        else:
            os.environ[name] = after
    if old.path != new.path:
        sys.path[:] = _merged(sys.path, old.path, new.path)
        importlib.invalidate_caches()
    if new.directory is not None and old.directory != new.directory and _directory() == old.directory:
        try:
            os.chdir(new.directory)
        except OSError as error:
            _log.warning("a home process cannot change to its worker's working directory: %s", error)
    SparkFiles._root_directory = new.files
    SparkFiles._is_running_on_worker = True


def _merged(here: list[str], old: list[str], new: list[str]) -> list[str]:
    if here == old:
        return list(new)
    merged = [entry for entry in here if entry not in old or entry in new]
    after = 0
    for entry in new:
        if entry in merged:
            after = merged.index(entry) + 1
        elif entry not in old:
            merged.insert(after, entry)
            after += 1
    return merged


def _set_context(fields: dict[str, Any]) -> None:
    from pyspark import TaskContext

    _thread.fields = _last[0] = fields
    if type(TaskContext._taskContext).__name__ != "_ContextOfThread":
        TaskContext._taskContext = _context_of_thread()


def _context_of_thread() -> Any:
    """Return a task context with separate fields for each thread with tasks. Other threads see the latest fields."""
    from pyspark import TaskContext

    class _ContextOfThread(TaskContext):
        def __getattribute__(self, name: str) -> Any:
            fields = getattr(_thread, "fields", _last[0])
            return fields[name] if name in fields else super().__getattribute__(name)

    return object.__new__(_ContextOfThread)
