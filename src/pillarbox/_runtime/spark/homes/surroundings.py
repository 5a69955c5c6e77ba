"""What code in a Python worker of Spark's sees around it, carried to a home: the home looks like its caller's worker.

A home may serve several workers at a time, each in a thread of its own, so what Spark keeps once for a process (the
task's context) is one for each thread there; what is the same for all workers of an application is set once.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any, NamedTuple

# Accumulators that code has added to: number, parameter and what was added, for one that the driver made.
Added = list[tuple[int, Any, Any]]


class Surroundings(NamedTuple):
    """Of a worker, while it runs a task.

    Attributes:
        context: the fields of Spark's ``TaskContext``.
        files: the folder of shipped files.
        broadcasts: by number, the file with the value, or, where it has none, the value in a list of one.
    """

    context: dict[str, Any]
    environment: dict[str, str]
    working_directory: str
    path: list[str]
    files: str | None
    broadcasts: dict[int, str | list[Any]]


def here() -> Surroundings:
    """Return the surroundings of this worker."""
    from pyspark import SparkFiles, TaskContext
    from pyspark.core.broadcast import _broadcastRegistry

    context = TaskContext.get()
    return Surroundings(
        {} if context is None else dict(vars(context)),
        dict(os.environ),
        os.getcwd(),
        list(sys.path),
        SparkFiles._root_directory,
        {number: getattr(each, "_path", None) or [each.value] for number, each in _broadcastRegistry.items()},
    )


_thread = threading.local()
# The fields of the context that was entered last, which threads of the user's see.
_last: list[dict[str, Any]] = [{}]
_lock = threading.Lock()


def enter(found: Surroundings) -> None:
    """Have these around the calling thread, a home's."""
    from pyspark import SparkFiles

    _set_context(found.context)
    with _lock:
        if os.environ != found.environment:
            for name in os.environ.keys() - found.environment.keys():
                del os.environ[name]
            os.environ.update(found.environment)
        if sys.path != found.path:
            sys.path[:] = found.path
            importlib.invalidate_caches()
        if os.getcwd() != found.working_directory:
            os.chdir(found.working_directory)
        SparkFiles._root_directory = found.files
        SparkFiles._is_running_on_worker = True
        _set_broadcasts(found.broadcasts)


def _set_context(fields: dict[str, Any]) -> None:
    from pyspark import TaskContext

    _thread.fields = _last[0] = fields
    if type(TaskContext._taskContext).__name__ != "_ContextOfThread":
        TaskContext._taskContext = _context_of_thread()


def _context_of_thread() -> Any:
    """Return a task's context that is another one in each thread; threads of the user's have the latest one."""
    from pyspark import TaskContext

    class _ContextOfThread(TaskContext):
        def __getattribute__(self, name: str) -> Any:
            fields = getattr(_thread, "fields", _last[0])
            return fields[name] if name in fields else super().__getattribute__(name)

    return object.__new__(_ContextOfThread)


def _set_broadcasts(wanted: dict[int, str | list[Any]]) -> None:
    from pyspark.core.broadcast import Broadcast, _broadcastRegistry

    for number, content in wanted.items():
        known = _broadcastRegistry.get(number)
        if isinstance(content, list):
            if known is None:
                made = _broadcastRegistry[number] = Broadcast(path="")  # nothing is read until somebody asks for it
                made._value = content[0]
        elif known is None:
            _broadcastRegistry[number] = Broadcast(path=content)
        else:
            known._path = content  # functions hold this object, and may not have read the value yet
    for number in _broadcastRegistry.keys() - wanted.keys():
        del _broadcastRegistry[number]


def taken() -> Added:
    """Return what was added to accumulators in this home since the last call, by any thread."""
    from pyspark.accumulators import _accumulatorRegistry

    added: Added = []
    with _lock:
        for number, accumulator in list(_accumulatorRegistry.items()):
            zero = accumulator.accum_param.zero(accumulator._value)
            value, accumulator._value = accumulator._value, zero
            if number >= 0 and value != zero:
                added.append((number, accumulator.accum_param, value))
    return added


def add(added: Added) -> None:
    """Add to accumulators of this worker what was added to them in a home: Spark takes it from here."""
    from pyspark.accumulators import _deserialize_accumulator

    for number, parameter, value in added:
        _deserialize_accumulator(number, parameter.zero(value), parameter).add(value)
