"""A function of the program, as it was when the program was given it, and how functions are pickled."""

from __future__ import annotations

import copyreg
import dataclasses
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from io import BytesIO
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakSet

from pyspark import cloudpickle

P = ParamSpec("P")
R = TypeVar("R")

# By name: ``dataclasses`` and other libraries compare it by identity, and a class of ``__main__`` is pickled with it.
copyreg.pickle(type(dataclasses.MISSING), lambda _: "MISSING")


class _Pickler(cloudpickle.Pickler):
    """Also notes what Spark has to send in addition to the bytes."""

    broadcasts: dict[int, Any]

    def reducer_override(self, obj: Any) -> Any:
        """Look at each object that is not plain data."""
        if isinstance(obj, Captured):
            if obj.pickled is not None:
                self.broadcasts.update(obj.pickled.broadcasts)
        elif type(obj).__name__ == "Broadcast" and type(obj).__module__.startswith("pyspark."):
            self.broadcasts[id(obj)] = obj
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


class Pickled:
    """Something of the user's as bytes, with the classes and functions that cannot be imported elsewhere.

    Attributes:
        payload: the bytes.
        broadcasts: the broadcast variables of Spark's that it refers to, by identity: Spark sends a worker those that
            it finds when it pickles a function by itself.

    Raises:
        Exception: of any kind: something in it cannot be pickled.
    """

    __slots__ = ("broadcasts", "payload")

    def __init__(self, value: Any) -> None:
        file = BytesIO()
        pickler: Any = _Pickler(file, protocol=5)  # type: ignore[no-untyped-call]
        pickler.broadcasts = {}
        pickler.dump(value)
        self.payload = file.getvalue()
        self.broadcasts: dict[int, Any] = pickler.broadcasts


class _Unpickler(pickle.Unpickler):
    """Leaves the classes of this process as they are: a pickle of them would give their methods copied globals."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names."""
        found = super().find_class(module, name)
        if module != _PICKLING.__name__:
            return found
        if name in ("_make_skeleton_class", "_make_skeleton_enum"):
            return partial(_make_class, found)
        return _set_class_state if name == "_class_setstate" else found


_PICKLING: Any = cloudpickle.cloudpickle
# Classes that were made from pickles.
_made: WeakSet[type] = WeakSet()


def _make_class(make: Callable[..., type], *args: Any) -> type:
    known = set(_PICKLING._DYNAMIC_CLASS_TRACKER_BY_ID)
    kind = make(*args)
    if _PICKLING._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(kind) not in known:
        _made.add(kind)
    return kind


def _set_class_state(kind: type, state: Any) -> Any:
    return _PICKLING._class_setstate(kind, state) if kind in _made else kind


def load(payload: bytes) -> Any:
    """Return something of the user's from its bytes."""
    return _Unpickler(BytesIO(payload)).load()


class Announced:
    """Broadcast variables of Spark's, to be put where Spark pickles: it sends a worker those that it comes by then.

    Nothing of it arrives, nor has pillarbox to be there: what refers to them finds them by their numbers.
    """

    def __init__(self, broadcasts: Iterable[Any] = ()) -> None:
        self.broadcasts = tuple(broadcasts)

    def __reduce__(self) -> Any:
        for broadcast in self.broadcasts:
            broadcast.__reduce__()  # notes it for the function that is being pickled
        return tuple, ()


class Captured(Generic[P, R]):
    """A function that travels as it is now, whatever becomes of it until the program runs.

    It may name a variable of a loop, or be an object that several operators are given: so it is pickled at once, by
    itself, as PyFlink and PySpark do. Each operator calls a copy of its own.

    Objects that cannot be pickled are left to the runtime, which knows in which operators they are.

    Attributes:
        function: the user's, or what is made of it.
        pickled: as it was at first; None: it could not be pickled, or has travelled.
    """

    __slots__ = ("function", "pickled")

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function
        self.pickled: Pickled | None = None
        try:
            self.pickled = Pickled(function)
        except Exception:
            self.pickled = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_travelled, (self.function,)) if self.pickled is None else (_copied, (self.pickled.payload,))


def _copied(payload: bytes) -> Captured[Any, Any]:
    return _travelled(load(payload))


def _travelled(function: Callable[P, R]) -> Captured[P, R]:
    captured = Captured.__new__(Captured)
    captured.function, captured.pickled = function, None
    return captured
