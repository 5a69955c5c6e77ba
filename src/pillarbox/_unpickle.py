"""Unpicklers, and the only pillarbox functions that checkpoints refer to.

So that classes can be moved, values of pillarbox's own classes are pickled as calls to functions in this module, with
plain data as arguments. This module must not be moved. See docs/checkpoint-format.md.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Mapping
from functools import reduce
from importlib import import_module
from typing import Any

# Checkpoints contain these names, which must not change.
_HOMES = {
    "AsyncFailure": "pillarbox._operators.async_io.api.function:AsyncFailure",
    "CountWindow": "pillarbox._operators.windowing.api.windows:CountWindow",
    "DeadLetter": "pillarbox._operators.dead_letters.dead_letter:DeadLetter",
    "Duration": "pillarbox._time.duration:Duration",
    "GlobalWindow": "pillarbox._operators.windowing.api.windows:GlobalWindow",
    "OutputTag": "pillarbox._operators.functions.output_tag:OutputTag",
    "Time": "pillarbox._time.duration:Time",
    "TimeDomain": "pillarbox._operators.functions.contexts:TimeDomain",
    "TimeWindow": "pillarbox._operators.windowing.api.windows:TimeWindow",
    "TimestampedValue": "pillarbox._operators.windowing.api.evictors:TimestampedValue",
}


def row_class(fields: tuple[str, ...]) -> Any:
    return _at("pillarbox._rows:row_class")(fields)


def make(kind: str, *parts: Any) -> Any:
    return _at(_HOMES[kind])(*parts)


def make_error(name: str, args: tuple[Any, ...]) -> Any:
    return _at(_HOMES.get(name, f"pillarbox._errors:{name}"))(*args)


def _at(home: str) -> Any:
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)


class UnpickleGlobalError(Exception):
    """A pickle refers to a module or name that does not exist. ``args``: module, name, cause."""

    @property
    def advice(self) -> str:
        module, name, why = self.args
        return (
            f"{module}.{name}, which cannot be found ({type(why).__name__}: {why}): restore it, or, if it has"
            f" moved, call env.add_class_alias('{module}:{name}', ...)"
        )


class RefusedGlobalError(Exception):
    """A pickle refers to a name that is not allowed. ``args``: module, name."""


# Factories of allowed objects, by (module, name).
Allowed = dict[tuple[str, str], Callable[[], Any]]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError) as error:
            raise UnpickleGlobalError(module, name, error) from error


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, but must contain only plain data")


class _AllowingUnpickler(pickle.Unpickler):
    """An unpickler that imports nothing and resolves only allowed names."""

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
    """Unpickle a value from a checkpoint. Raises UnpickleGlobalError."""
    try:
        return pickle.loads(payload)
    except (ImportError, AttributeError):
        # Slower, but its error names the missing object.
        return _Unpickler(io.BytesIO(payload)).load()


def find_global(module: str, name: str) -> Any:
    sys.audit("pickle.find_class", module, name)
    try:
        return reduce(getattr, name.split("."), import_module(module))
    except (ImportError, AttributeError) as error:
        raise UnpickleGlobalError(module, name, error) from error


def loads_plain(payload: bytes | memoryview) -> Any:
    """Unpickle plain data.

    Raises UnpicklingError if the pickle refers to classes or functions, which could run code.
    """
    return _PlainUnpickler(io.BytesIO(payload)).load()


def loads_allowed(payload: bytes | memoryview, allowed: Mapping[tuple[str, str], Callable[[], Any]]) -> Any:
    """Unpickle a value, without imports. Raises RefusedGlobalError if it refers to an object that is not allowed."""
    return _AllowingUnpickler(payload, allowed).load()
