"""Pickles user functions while the program is being built."""

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

# Pickled by name, because ``dataclasses`` compares MISSING by identity, and pickles of ``__main__`` classes contain it.
copyreg.pickle(type(dataclasses.MISSING), lambda _: "MISSING")


class _Pickler(cloudpickle.Pickler):
    """A pickler that collects broadcast variables, whose values Spark sends separately.

    It refuses sessions of Spark Connect, whose pickles can be loaded only where the session is active.
    """

    broadcasts: dict[int, Any]

    def reducer_override(self, obj: Any) -> Any:
        if type(obj).__name__ == "SparkSession" and type(obj).__module__.startswith("pyspark.sql.connect."):
            raise pickle.PicklingError("only the driver has the SparkSession")
        if isinstance(obj, Captured):
            if obj.pickled is not None:
                self.broadcasts.update(obj.pickled.broadcasts)
        elif type(obj).__name__ == "Broadcast" and type(obj).__module__.startswith("pyspark."):
            self.broadcasts[id(obj)] = obj
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


class CapturedObject:
    """A user object's pickle, with classes and functions that workers cannot import.

    Attributes:
        broadcasts: the object's references to Spark's broadcast variables.
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
    """An unpickler that prefers this process's classes to pickled classes, whose globals would be copies."""

    def find_class(self, module: str, name: str) -> Any:
        named = super().find_class(module, name)
        if module != _PICKLING.__name__:
            return named
        if name in ("_make_skeleton_class", "_make_skeleton_enum"):
            return partial(_make_class, named)
        return _set_class_state if name == "_class_setstate" else named


_PICKLING: Any = cloudpickle.cloudpickle
_made: WeakSet[type] = WeakSet()


def _make_class(make: Callable[..., type], *args: Any) -> type:
    tracked_classes = set(_PICKLING._DYNAMIC_CLASS_TRACKER_BY_ID)
    kind = make(*args)
    if _PICKLING._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(kind) not in tracked_classes:
        _made.add(kind)
    return kind


def _set_class_state(kind: type, state: Any) -> Any:
    return _PICKLING._class_setstate(kind, state) if kind in _made else kind


def load(payload: bytes) -> Any:
    return _Unpickler(BytesIO(payload)).load()


class CapturedBroadcasts:
    """References to Spark's broadcast variables. When Spark pickles this object, it sends the variables to the worker.

    In the worker, it becomes an empty tuple, to avoid importing pillarbox. User objects refer to variables by number.
    """

    def __init__(self, broadcasts: Iterable[Any] = ()) -> None:
        self.broadcasts = tuple(broadcasts)

    def __reduce__(self) -> Any:
        for broadcast in self.broadcasts:
            broadcast.__reduce__()  # registers it with the function being pickled
        return tuple, ()


class Captured(Generic[P, R]):
    """A function, pickled as soon as the program receives it, as in PyFlink and PySpark.

    A reference to a loop variable thus keeps the current value. Each operator calls its own copy. If the function
    cannot be pickled, running the program raises an error with the operator's name.

    Attributes:
        pickled: the pickle. None if the function cannot be pickled, and after unpickling.
    """

    __slots__ = ("function", "pickled")

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function
        self.pickled: CapturedObject | None = None
        try:
            self.pickled = CapturedObject(function)
        except Exception:
            self.pickled = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_travelled, (self.function,)) if self.pickled is None else (_copied, (self.pickled.payload,))


def uncaptured(function: Any) -> Any:
    return function.function if isinstance(function, Captured) else function


def _copied(payload: bytes) -> Captured[Any, Any]:
    return _travelled(load(payload))


def _travelled(function: Callable[P, R]) -> Captured[P, R]:
    captured = Captured.__new__(Captured)
    captured.function, captured.pickled = function, None
    return captured
