"""Copies emitted values.

A function may change a value after emitting it, while the record still waits in a batch. Emitted values are therefore
copied, as between Flink's chained operators, unless their type is immutable.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import ipaddress
import pathlib
import re
import sys
import types
import uuid
import zoneinfo
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from copyreg import dispatch_table
from itertools import chain
from sys import getrefcount
from time import perf_counter
from typing import Any, Protocol, TypeVar
from weakref import getweakrefcount

from pillarbox._errors import ProgramError, check_takes, describe, shorten

C = TypeVar("C", bound=type)

# Immutable types. Their subclasses may be mutable.
FIXED = frozenset(
    {int, float, complex, str, bool, bytes, type(None), decimal.Decimal, fractions.Fraction, range, uuid.UUID}
    | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone, zoneinfo.ZoneInfo}
    | {ipaddress.IPv4Address, ipaddress.IPv6Address, re.Pattern, type, type(Ellipsis), type(NotImplemented)}
    | {types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType, object}
)
# Immutable, including subclasses. (A copied exception would lose its traceback.)
_FIXED_BASES = (enum.Enum, pathlib.PurePath, datetime.tzinfo, type, BaseException)
# Immutable library types, by module.
_FIXED_OF_LIBRARIES = {
    "numpy": ("number", "bool_", "str_", "bytes_", "datetime64"),
    "pandas": ("Timestamp", "Timedelta", "Period", "Interval"),
    "pyarrow": (
        *("Array", "ChunkedArray", "Scalar", "RecordBatch", "Table"),
        *("Buffer", "DataType", "Field", "Schema"),
    ),
}
COPY_MS = "copy_ms_"
"""Prefix of the counters of copy time (ms). The class's name follows."""

# Tuple classes without other attributes. Hot loops check their fields inline.
TUPLES: set[type] = {tuple}

# Methods that customize copies.
_PROTOCOL = (
    *("__deepcopy__", "__getnewargs__", "__getnewargs_ex__", "__getstate__", "__setstate__"),
    *("__reduce__", "__reduce_ex__"),
)

# One in this many copies is timed. A prime, because classes may alternate.
_TIMED = 61


class CannotCopyError(Exception):
    """An object cannot be copied. ``kind`` is its class."""

    def __init__(self, kind: type) -> None:
        super().__init__(f"a {kind.__qualname__} cannot be copied")
        self.kind: type = kind
        self.has_owner: bool = False


class _CopyFunction(Protocol):
    """Copies values of one class.

    ``memo`` maps ids of originals to copies, as in ``copy.deepcopy``. ``unshared`` is True if only the caller refers to
    the value.
    """

    def __call__(self, value: Any, memo: dict[int, Any] | None = None, unshared: bool = False, /) -> Any: ...


_immutable: dict[type, None] = {}


def immutable(cls: C) -> C:
    """Declare a class and its subclasses immutable, so that their instances are emitted without a copy.

    If a function changes an emitted instance anyway, downstream records change, too.

    Args:
        cls: the class. Decorate your own class, or pass a library's class.

    Raises:
        ProgramError: `cls` is not a class.

    Example:
        >>> @immutable
        ... class Model:
        ...     def __init__(self, weights):
        ...         self.weights = weights
        >>> models = env.from_collection([0.5, 2.0]).map(lambda weight, make=Model: make([weight]))
        >>> models.map(lambda model: model.weights[0]).execute_and_collect()
        [0.5, 2.0]
    """
    check_takes(cls, type, "immutable()", "a class")
    declare_immutable([cls])
    return cls


def declared_immutable() -> tuple[type, ...]:
    return tuple(_immutable)


def declare_immutable(classes: Iterable[type]) -> None:
    missing = [cls for cls in classes if cls not in _immutable]
    if missing:
        _immutable.update(dict.fromkeys(missing))
        _functions.clear()
        TUPLES.clear()
        TUPLES.add(tuple)


def is_fixed(value: Any) -> bool:
    kind = type(value)
    if kind in FIXED:
        return True
    if kind in TUPLES or kind is frozenset:
        return are_fixed(value)
    return _functions[kind] is _same or (kind in TUPLES and are_fixed(value))


def are_fixed(values: Collection[Any]) -> bool:
    kinds = set(map(type, values))
    if kinds <= FIXED:
        return True
    if kinds <= TUPLES and FIXED.issuperset(map(type, chain.from_iterable(values))):
        return True
    return all(map(is_fixed, values))


def copied(value: Any) -> Any:
    """Return an independent copy of a value.

    An object that occurs several times in the value is copied once. Raises CannotCopyError.
    """
    return _functions[type(value)](value)


class Copier:
    """Copies the values that an operator's functions emit.

    Threads may share a copier. A race can only lose a measurement of a copy's duration.
    """

    is_off: bool = False

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._until_timed = _TIMED
        self._seconds: dict[str, float] = {}

    def copied(self, value: Any) -> Any:
        copy_function = _functions[type(value)]
        return value if copy_function is _same else self._apply(copy_function, value, False)

    def emitted(self, value: Any) -> Any:
        """Copy a value, unless only the caller refers to it."""
        copy_function = _functions[type(value)]
        if copy_function is _same:
            return value
        unshared = getrefcount(value) <= _REFERENCES and not getweakrefcount(value)
        self._until_timed -= 1
        if self._until_timed <= 0:
            return self._apply(copy_function, value, unshared)
        try:
            return copy_function(value, None, unshared)
        except CannotCopyError as error:
            raise self._refusal(value, error) from error.__cause__

    def take_milliseconds(self) -> dict[str, int]:
        seconds, self._seconds = self._seconds, {}
        return {name: took for name, elapsed in seconds.items() if (took := round(elapsed * 1000))}

    def _apply(self, copy_function: _CopyFunction, value: Any, unshared: bool) -> Any:
        is_timed = self._until_timed <= 1
        self._until_timed = _TIMED if is_timed else self._until_timed - 1
        began = perf_counter()
        try:
            result = copy_function(value, None, unshared)
        except CannotCopyError as error:
            raise self._refusal(value, error) from error.__cause__
        if is_timed:
            name = type(value).__name__
            self._seconds[name] = self._seconds.get(name, 0.0) + _TIMED * (perf_counter() - began)
        return result

    def _refusal(self, value: Any, error: CannotCopyError) -> ProgramError:
        name = error.kind.__qualname__
        why = "" if error.__cause__ is None else f" ({describe(error.__cause__)})"
        return ProgramError(
            f"operator {self._operator!r} emitted {shorten(value)}, which cannot be copied{why}. Keep"
            f" connections, locks and generators in the function that creates them. If instances of {name} never"
            f" change, declare pillarbox.immutable({name}). If no function changes a value that it has received or"
            " emitted, call env.enable_object_reuse()"
        )

    def _references(self, value: Any) -> int:
        return getrefcount(value)


class NoCopier(Copier):
    """Returns values uncopied, for programs that enable object reuse."""

    is_off = True

    def copied(self, value: Any) -> Any:
        return value

    def emitted(self, value: Any) -> Any:
        return value


def copier_of(operator: str, *, object_reuse: bool) -> Copier:
    return NoCopier(operator) if object_reuse else Copier(operator)


def _calibrated() -> int:
    emitted = Copier("")._references
    result: Any = object()
    result = emitted(result)
    return int(result)


_REFERENCES = _calibrated()


class _Functions(dict[type, _CopyFunction]):
    def __missing__(self, kind: type) -> _CopyFunction:
        function = self[kind] = _copy_function_of(kind)
        return function


_functions = _Functions()


def _copy_function_of(kind: type) -> _CopyFunction:
    if kind in FIXED or issubclass(kind, (*_FIXED_BASES, *_immutable, *_of_libraries())):
        return _same
    if kind in _OF_BUILTINS:
        return _OF_BUILTINS[kind]
    if issubclass(kind, tuple) and _is_named_tuple(kind):
        TUPLES.add(kind)
        return _copy_tuple
    names = _attributes_of(kind)
    if names is None:
        return _copy_other
    return _object_copy(kind, names)


def _of_libraries() -> Iterator[type]:
    for module, names in _FIXED_OF_LIBRARIES.items():
        loaded = sys.modules.get(module)
        for name in names:
            kind = getattr(loaded, name, None)
            if isinstance(kind, type):
                yield kind


def _is_named_tuple(kind: type) -> bool:
    return hasattr(kind, "_fields") and not kind.__dictoffset__ and not hasattr(kind, "__deepcopy__")


def _attributes_of(kind: type) -> tuple[str, ...] | None:
    """Return the slots of a class and its bases, or None if instances may hold other data."""
    if getattr(kind, "__new__", None) is not object.__new__ or kind in dispatch_table:
        return None
    for name in _PROTOCOL:
        own = getattr(kind, name, None)
        # Methods that frozen dataclasses generate behave like the defaults.
        if own is not getattr(object, name, None) and getattr(own, "__module__", None) != "dataclasses":
            return None
    slots: list[str] = []
    for cls in kind.__mro__:
        declared = cls.__dict__.get("__slots__", ())
        for name in (declared,) if isinstance(declared, str) else declared:
            if name not in ("__dict__", "__weakref__"):
                is_private = name.startswith("__") and not name.endswith("__")
                slots.append(f"_{cls.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(slots) if slots or kind.__dictoffset__ else None


def _object_copy(kind: type, slots: tuple[str, ...]) -> _CopyFunction:
    new, fixed = object.__new__, FIXED
    # A frozen dataclass is immutable if its field values are.
    params = getattr(kind, "__dataclass_params__", None)
    frozen = dataclasses.is_dataclass(kind) and params is not None and bool(params.frozen)
    set_attribute: Any = kind.__setattr__
    sets_itself = set_attribute is not object.__setattr__

    def copy_plain(value: Any, memo: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
        attributes = value.__dict__
        if memo is None:
            for item in attributes.values():
                if type(item) not in fixed:
                    return copy_attributes(value, attributes, {})
            if unshared or frozen:
                return value
            other: Any = new(kind)
            if sets_itself:
                other.__dict__.update(attributes)
            else:
                other.__dict__ = attributes.copy()
            return other
        return copy_attributes(value, attributes, memo)

    def copy_slotted(value: Any, memo: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
        attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        attributes.update(getattr(value, "__dict__", ()))
        if memo is None:
            if (unshared or frozen) and fixed.issuperset(map(type, attributes.values())):
                return value
            memo = {}
        return copy_attributes(value, attributes, memo)

    def copy_attributes(value: Any, attributes: dict[str, Any], memo: dict[int, Any]) -> Any:
        other = memo.get(id(value))
        if other is None:
            other = memo[id(value)] = new(kind)
            same = True
            try:
                for name, item in attributes.items():
                    its_copy = item if type(item) in fixed else _functions[type(item)](item, memo)
                    same = same and its_copy is item
                    object.__setattr__(other, name, its_copy)
            except CannotCopyError as error:
                if not error.has_owner:
                    error.kind, error.has_owner = kind, True
                raise
            if frozen and same:
                other = memo[id(value)] = value
        return other

    return copy_slotted if slots else copy_plain


def _same(value: Any, memo: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    return value


def _copy_list(value: list[Any], memo: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    if memo is None:
        if FIXED.issuperset(map(type, value)):
            return value if unshared else value.copy()
        memo = {}
    other = memo.get(id(value))
    if other is None:
        other = memo[id(value)] = []
        for item in value:
            other.append(item if type(item) in FIXED else _functions[type(item)](item, memo))
    return other


def _copy_dict(value: dict[Any, Any], memo: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    if memo is None:
        if FIXED.issuperset(map(type, value.values())) and FIXED.issuperset(map(type, value)):
            return value if unshared else value.copy()
        memo = {}
    other = memo.get(id(value))
    if other is None:
        other = memo[id(value)] = {}
        for key, item in value.items():
            key = key if type(key) in FIXED else _functions[type(key)](key, memo)  # noqa: PLW2901
            other[key] = item if type(item) in FIXED else _functions[type(item)](item, memo)
    return other


def _copy_set(value: set[Any], memo: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    if FIXED.issuperset(map(type, value)) and memo is None:
        return value if unshared else value.copy()
    memo = {} if memo is None else memo
    other = memo.get(id(value))
    if other is None:
        other = memo[id(value)] = {_functions[type(item)](item, memo) for item in value}
    return other


def _copy_tuple(value: tuple[Any, ...], memo: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    if FIXED.issuperset(map(type, value)):
        return value
    memo = {} if memo is None else memo
    items = [item if type(item) in FIXED else _functions[type(item)](item, memo) for item in value]
    if all(copied_item is other for copied_item, other in zip(items, value)):
        return value
    # The tuple may contain itself.
    other = memo.get(id(value))
    if other is None:
        other = memo[id(value)] = tuple.__new__(type(value), items)
    return other


def _copy_frozenset(value: frozenset[Any], memo: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    if are_fixed(value):
        return value
    memo = {} if memo is None else memo
    return frozenset([_functions[type(item)](item, memo) for item in value])


def _copy_bytearray(value: bytearray, memo: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    memo = {} if memo is None else memo
    other = memo.get(id(value))
    if other is None:
        other = memo[id(value)] = value if unshared else value[:]
    return other


def _copy_deque(value: deque[Any], memo: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    memo = {} if memo is None else memo
    other = memo.get(id(value))
    if other is None:
        other = memo[id(value)] = deque(maxlen=value.maxlen)
        other.extend(item if type(item) in FIXED else _functions[type(item)](item, memo) for item in value)
    return other


def _copy_other(value: Any, memo: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    try:
        return copy.deepcopy(value, memo)
    except CannotCopyError:
        raise
    except Exception as error:
        raise CannotCopyError(type(value)) from error


_OF_BUILTINS: dict[type, _CopyFunction] = {
    list: _copy_list,
    dict: _copy_dict,
    set: _copy_set,
    tuple: _copy_tuple,
    frozenset: _copy_frozenset,
    bytearray: _copy_bytearray,
    deque: _copy_deque,
}
