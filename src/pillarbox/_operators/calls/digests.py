"""Digests that are the same for equal data in every process.

A digest is the hash of a pickle that has sorted sets, and names instead of classes and functions. The pickle has no
memo, because a memo depends on object identity.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from functools import lru_cache, partial
from hashlib import blake2b
from io import BytesIO
from types import FunctionType
from typing import Any, ClassVar, NamedTuple

# The opcodes of sets. Other data with these bytes only takes longer to digest.
_SETS = (b"\x8f", b"\x91")


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, FunctionType)) and value.__module__ != "builtins":
            return str, (f"{value.__module__}.{value.__qualname__}",)
        return NotImplemented


class _SetPickler(pickle._Pickler):
    """Pickles sets in sorted order, which the C pickler cannot do."""

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


def numbered(parts: bytes, number: int) -> bytes:
    return blake2b(parts + number.to_bytes(8, "big"), digest_size=16).digest()


class Callee(NamedTuple):
    """A function to call.

    Attributes:
        takes_key: whether the function has a parameter ``idempotency_key``.
        added: arguments that a ``partial`` adds.
    """

    module: str
    name: str
    is_async: bool
    takes_key: bool
    added: tuple[Any, ...] = ()

    @staticmethod
    def of(function: Callable[..., Any]) -> Callee:
        added: tuple[Any, ...] = ()
        called: Any = function
        while isinstance(called, partial):
            added += (called.args, called.keywords)
            called = called.func
        called = getattr(called, "__func__", called)
        named: Any = called if hasattr(called, "__qualname__") else type(called)
        callee = _callee(named)
        return callee._replace(added=added) if added else callee

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@lru_cache(256)
def _callee(named: Any) -> Callee:
    called = inspect.unwrap(named.__call__ if isinstance(named, type) else named)
    code = getattr(called, "__code__", None)
    parameters = () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return Callee(
        named.__module__, named.__qualname__, inspect.iscoroutinefunction(called), "idempotency_key" in parameters
    )
