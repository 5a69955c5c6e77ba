"""Digests that are equal for equal data, in each process.

A digest is a hash of a pickle without memo, which depends on the identity of objects. Sets are sorted, and classes and
functions are replaced by their names.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from io import BytesIO
from types import FunctionType
from typing import Any, ClassVar

# The opcodes of sets. The same bytes in other data only make the digest slower.
_SETS = (b"\x8f", b"\x91")


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, FunctionType)) and value.__module__ != "builtins":
            return str, (f"{value.__module__}.{value.__qualname__}",)
        return NotImplemented


class _SetPickler(pickle._Pickler):
    """Pickles sets in a fixed order. Python's pickler, because C's allows no other form of a set."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)
    reducer_override = _Pickler.reducer_override


def _save_set(pickler: Any, values: Any) -> None:
    pickler.save_reduce(type(values), (sorted(map(digest, values)),))


_SetPickler.dispatch.update({set: _save_set, frozenset: _save_set})


def digest(value: Any) -> bytes:
    payload = _pickled(_Pickler, value)
    if any(opcode in payload for opcode in _SETS):
        payload = _pickled(_SetPickler, value)
    return blake2b(payload, digest_size=16).digest()


def _pickled(pickler_class: Any, value: Any) -> bytes:
    file = BytesIO()
    pickler = pickler_class(file, 5)
    pickler.fast = True
    pickler.dump(value)
    return file.getvalue()


def function_name(function: Any) -> tuple[Any, ...]:
    """Return a function's module and name, and the arguments that a ``partial`` adds."""
    added: tuple[Any, ...] = ()
    while isinstance(function, partial):
        added += (function.args, function.keywords)
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return named.__module__, named.__qualname__, *added


def takes_idempotency_key(function: Callable[..., Any]) -> bool:
    called: Any = function
    while isinstance(called, partial):
        called = called.func
    called = inspect.unwrap(getattr(called, "__func__", called))
    code = getattr(called if hasattr(called, "__code__") else type(called).__call__, "__code__", None)
    return code is not None and "idempotency_key" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
