"""The one module of pillarbox that pickles in a checkpoint name, and how they are read.

Checkpoints outlive versions: a class that is pickled by its place in the sources could never move again. So values of
pillarbox's own classes are pickled as a call of a function in here, with plain data: this module stays where it is, and
what it calls may move. See docs/checkpoint-format.md.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Mapping
from functools import reduce
from importlib import import_module
from typing import Any

# By the names that stand in checkpoints: these stay.
_HOMES = {
    "AsyncFailure": "pillarbox._operators.async_io.api.function:AsyncFailure",
    "CountWindow": "pillarbox._operators.windowing.api.windows:CountWindow",
    "DeadLetter": "pillarbox._operators.dead_letters.dead_letter:DeadLetter",
    "Duration": "pillarbox._time.duration:Duration",
    "GlobalWindow": "pillarbox._operators.windowing.api.windows:GlobalWindow",
    "OutputTag": "pillarbox._operators.functions.basic:OutputTag",
    "Time": "pillarbox._time.duration:Time",
    "TimeDomain": "pillarbox._operators.functions.basic:TimeDomain",
    "TimeWindow": "pillarbox._operators.windowing.api.windows:TimeWindow",
    "TimestampedValue": "pillarbox._operators.windowing.api.evictors:TimestampedValue",
}


def row_class(fields: tuple[str, ...]) -> Any:
    """Return the class of the rows with these columns: pickled rows are calls of it."""
    return _at("pillarbox._rows:row_class")(fields)


def make(kind: str, *parts: Any) -> Any:
    """Return a value of one of pillarbox's other classes."""
    return _at(_HOMES[kind])(*parts)


def make_error(name: str, args: tuple[Any, ...]) -> Any:
    """Return one of pillarbox's errors."""
    return _at(_HOMES.get(name, f"pillarbox._errors:{name}"))(*args)


def _at(home: str) -> Any:
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)


class MissingGlobalError(Exception):
    """A pickle names something that does not exist: ``args`` are its module, its name, and why."""

    @property
    def advice(self) -> str:
        """What is missing, and what to do, as a part of a message."""
        module, name, why = self.args
        return (
            f"{module}.{name}, which cannot be found ({type(why).__name__}: {why}): keep it where it was; if it has"
            f" moved, say where, with env.add_class_alias('{module}:{name}', ...)"
        )


class RefusedGlobalError(Exception):
    """A pickle names something that it may not: ``args`` are its module and its name."""


# By module and name, what makes the object that a pickle gets instead; called again for each pickle.
Allowed = dict[tuple[str, str], Callable[[], Any]]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError) as error:
            raise MissingGlobalError(module, name, error) from error


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and has to be plain data")


class _AllowingUnpickler(pickle.Unpickler):
    """Imports nothing: what a pickle gets was made beforehand."""

    def __init__(self, payload: bytes | memoryview, allowed: Mapping[tuple[str, str], Callable[[], Any]]) -> None:
        super().__init__(io.BytesIO(payload))
        self._allowed = allowed
        self._made: dict[tuple[str, str], Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        where = (module, name)
        if where not in self._made:
            make = self._allowed.get(where)
            if make is None:
                raise RefusedGlobalError(module, name)
            self._made[where] = make()
        return self._made[where]


def loads(payload: bytes | memoryview) -> Any:
    """Unpickle a value of a checkpoint.

    Raises:
        MissingGlobalError: it names a class or a function that does not exist.
    """
    try:
        return pickle.loads(payload)
    except (ImportError, AttributeError):
        # This one says which name it is. It costs a call for each name, so it is the second.
        return _Unpickler(io.BytesIO(payload)).load()


def find_global(module: str, name: str) -> Any:
    """Return what a pickle names.

    Raises:
        MissingGlobalError: there is no such thing.
    """
    sys.audit("pickle.find_class", module, name)
    try:
        return reduce(getattr, name.split("."), import_module(module))
    except (ImportError, AttributeError) as error:
        raise MissingGlobalError(module, name, error) from error


def loads_plain(payload: bytes | memoryview) -> Any:
    """Unpickle plain data: numbers, text, bytes, None, and tuples, lists, sets and dicts of them.

    Raises:
        pickle.UnpicklingError: it names a class or a function, so reading it could run code.
    """
    return _PlainUnpickler(io.BytesIO(payload)).load()


def loads_allowed(payload: bytes | memoryview, allowed: Mapping[tuple[str, str], Callable[[], Any]]) -> Any:
    """Unpickle a value that may name these things only; nothing is imported.

    Raises:
        RefusedGlobalError: it names something else. Nothing of it was called.
    """
    return _AllowingUnpickler(payload, allowed).load()
