"""Copies of values that user code may change later.

A record belongs to the operator that receives it, and operators handle runs: a function may change a value that it has
emitted before any consumer has seen it. So emitted values are copied, as between Flink's chained operators, unless
their type is known to be immutable. Each class has one copy function, made at its first value and chosen by
:func:`_copy_function_of`.
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

# Instances of exactly these types cannot change.
FIXED = frozenset(
    {int, float, complex, str, bool, bytes, type(None), decimal.Decimal, fractions.Fraction, range, uuid.UUID}
    | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone, zoneinfo.ZoneInfo}
    | {ipaddress.IPv4Address, ipaddress.IPv6Address, re.Pattern, type, type(Ellipsis), type(NotImplemented)}
    | {types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType, object}
)
# Neither can instances of these and of their subclasses. (Nothing changes an exception, and its copy has no traceback.)
_FIXED_BASES = (enum.Enum, pathlib.PurePath, datetime.tzinfo, type, BaseException)
# The same of libraries, by module, as far as they are imported.
_FIXED_OF_LIBRARIES = {
    "numpy": ("number", "bool_", "str_", "bytes_", "datetime64"),
    "pandas": ("Timestamp", "Timedelta", "Period", "Interval"),
    "pyarrow": (
        *("Array", "ChunkedArray", "Scalar", "RecordBatch", "Table"),
        *("Buffer", "DataType", "Field", "Schema"),
    ),
}
COPY_MS = "copy_ms_"
"""The counters of the time (ms) that copies of emitted values took in the epoch: followed by the name of the class."""

# Tuples of these classes have fields and no attributes besides: known ones, for loops that look at the fields in line.
TUPLES: set[type] = {tuple}

# The methods by which a class decides how its instances are copied.
_PROTOCOL = (
    *("__deepcopy__", "__getnewargs__", "__getnewargs_ex__", "__getstate__", "__setstate__"),
    *("__reduce__", "__reduce_ex__"),
)

# One copy in so many is timed. (A prime: copies of several classes may alternate.)
_TIMED = 61


class CannotCopyError(Exception):
    """An object cannot be copied; the cause says why.

    Attributes:
        kind: its class; if the object is an attribute of another object, the class of that.
    """

    def __init__(self, kind: type) -> None:
        super().__init__(f"a {kind.__qualname__} cannot be copied")
        self.kind: type = kind
        self.has_owner: bool = False


class _CopyFunction(Protocol):
    """Copies values of one class.

    Args:
        known: the copies made within a larger value, by the id of the original; None: the value stands alone.
        unshared: whether only the caller refers to the value: it need not be copied unless its contents may change.
    """

    def __call__(self, value: Any, known: dict[int, Any] | None = None, unshared: bool = False, /) -> Any: ...


# -- declared classes --

_immutable: dict[type, None] = {}


def immutable(cls: C) -> C:
    """Declare that instances of a class, and of its subclasses, never change: they are emitted without a copy.

    Functions that emit such an object, keep it and change it nevertheless change records that were emitted already.

    Args:
        cls: the class. The call may decorate it, or name a class of a library.

    Returns:
        The class.

    Raises:
        ProgramError: it is not a class.

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
    """Return the declared classes, for a program that travels to other processes."""
    return tuple(_immutable)


def declare_immutable(classes: Iterable[type]) -> None:
    """Declare the classes of a program that has arrived here."""
    missing = [cls for cls in classes if cls not in _immutable]
    if missing:
        _immutable.update(dict.fromkeys(missing))
        _functions.clear()
        TUPLES.clear()
        TUPLES.add(tuple)


# -- values --


def is_fixed(value: Any) -> bool:
    """Return whether a value, and all that is in it, cannot change."""
    kind = type(value)
    if kind in FIXED:
        return True
    if kind in TUPLES or kind is frozenset:
        return are_fixed(value)
    return _functions[kind] is _same or (kind in TUPLES and are_fixed(value))


def are_fixed(values: Collection[Any]) -> bool:
    """Return whether none of the values can change."""
    kinds = set(map(type, values))
    if kinds <= FIXED:
        return True
    if kinds <= TUPLES and FIXED.issuperset(map(type, chain.from_iterable(values))):
        return True
    return all(map(is_fixed, values))


def copied(value: Any) -> Any:
    """Return a value that stays as it is, whatever happens to the given one.

    An object that occurs several times within a value occurs as often in its copy, even if it contains itself.

    Raises:
        CannotCopyError: the value, or an object in it, cannot be copied.
    """
    return _functions[type(value)](value)


class Copier:
    """Copies the values that the functions of one operator emit.

    An async operator's loop copies, too. Threads may lose each other's samples of times, and nothing else.

    Args:
        operator: the operator's name, for errors.

    Attributes:
        is_off: whether it copies nothing.
    """

    is_off: bool = False

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._until_timed = _TIMED
        self._seconds: dict[str, float] = {}

    def copied(self, value: Any) -> Any:
        """Return a copy of a value, or the value itself if it cannot change.

        Raises:
            ProgramError: it cannot be copied.
        """
        copy_function = _functions[type(value)]
        return value if copy_function is _same else self._apply(copy_function, value, False)

    def emitted(self, value: Any) -> Any:
        """Return the same for a value that no variable holds but one of the caller's: a new object needs no copy.

        Raises:
            ProgramError: it cannot be copied.
        """
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
        """Return the time that copies took since the last call, by the name of the class; estimated from samples."""
        seconds, self._seconds = self._seconds, {}
        return {name: took for name, each in seconds.items() if (took := round(each * 1000))}

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
            f"operator {self._operator!r} emitted {shorten(value)}, which cannot be copied{why}. Connections, locks,"
            f" generators and the like stay in the function that made them. If instances of {name} never change,"
            f" declare pillarbox.immutable({name}); if no function of the program changes a value that it has received"
            " or emitted, call env.enable_object_reuse()"
        )

    def _references(self, value: Any) -> int:
        return getrefcount(value)


class NoCopier(Copier):
    """Copies nothing, as the program promises that no function changes what it has received or emitted."""

    is_off = True

    def copied(self, value: Any) -> Any:
        """Return the value itself."""
        return value

    def emitted(self, value: Any) -> Any:
        """Return the value itself."""
        return value


def _calibrated() -> int:
    """Return how many references :meth:`Copier.emitted` counts to an object that one variable of its caller holds."""
    emitted = Copier("")._references
    result: Any = object()
    result = emitted(result)
    return int(result)


_REFERENCES = _calibrated()


# -- copy functions --


class _Functions(dict[type, _CopyFunction]):
    """The copy function of each class, found when the class is first seen."""

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
    """Return whether instances are tuples with names, and nothing else: they have no other attributes."""
    return hasattr(kind, "_fields") and not kind.__dictoffset__ and not hasattr(kind, "__deepcopy__")


def _attributes_of(kind: type) -> tuple[str, ...] | None:
    """Return the slots of a class whose instances are their attributes and nothing else; None for other classes."""
    if getattr(kind, "__new__", None) is not object.__new__ or kind in dispatch_table:
        return None
    for name in _PROTOCOL:
        own = getattr(kind, name, None)
        # (What the module dataclasses defines for frozen classes with slots does no more than the default.)
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
    """Return the copy function of a class whose instances are their attributes and nothing else."""
    new, fixed = object.__new__, FIXED
    # A frozen dataclass is as fixed as the values of its fields.
    params = getattr(kind, "__dataclass_params__", None)
    frozen = dataclasses.is_dataclass(kind) and params is not None and bool(params.frozen)
    set_attribute: Any = kind.__setattr__
    sets_itself = set_attribute is not object.__setattr__

    def copy_plain(value: Any, known: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
        attributes = value.__dict__
        if known is None:
            for each in attributes.values():
                if type(each) not in fixed:
                    return copy_attributes(value, attributes, {})
            if unshared or frozen:
                return value
            other: Any = new(kind)
            if sets_itself:
                other.__dict__.update(attributes)
            else:
                other.__dict__ = attributes.copy()
            return other
        return copy_attributes(value, attributes, known)

    def copy_slotted(value: Any, known: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
        attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        attributes.update(getattr(value, "__dict__", ()))
        if known is None:
            if (unshared or frozen) and fixed.issuperset(map(type, attributes.values())):
                return value
            known = {}
        return copy_attributes(value, attributes, known)

    def copy_attributes(value: Any, attributes: dict[str, Any], known: dict[int, Any]) -> Any:
        other = known.get(id(value))
        if other is None:
            other = known[id(value)] = new(kind)
            same = True
            try:
                for name, each in attributes.items():
                    its_copy = each if type(each) in fixed else _functions[type(each)](each, known)
                    same = same and its_copy is each
                    object.__setattr__(other, name, its_copy)
            except CannotCopyError as error:
                if not error.has_owner:
                    error.kind, error.has_owner = kind, True
                raise
            if frozen and same:
                other = known[id(value)] = value
        return other

    return copy_slotted if slots else copy_plain


def _same(value: Any, known: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    """Return the value, which cannot change."""
    return value


def _copy_list(value: list[Any], known: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    if known is None:
        if FIXED.issuperset(map(type, value)):
            return value if unshared else value.copy()
        known = {}
    other = known.get(id(value))
    if other is None:
        other = known[id(value)] = []
        for each in value:
            other.append(each if type(each) in FIXED else _functions[type(each)](each, known))
    return other


def _copy_dict(value: dict[Any, Any], known: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    if known is None:
        if FIXED.issuperset(map(type, value.values())) and FIXED.issuperset(map(type, value)):
            return value if unshared else value.copy()
        known = {}
    other = known.get(id(value))
    if other is None:
        other = known[id(value)] = {}
        for key, each in value.items():
            key = key if type(key) in FIXED else _functions[type(key)](key, known)  # noqa: PLW2901
            other[key] = each if type(each) in FIXED else _functions[type(each)](each, known)
    return other


def _copy_set(value: set[Any], known: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    if FIXED.issuperset(map(type, value)) and known is None:
        return value if unshared else value.copy()
    known = {} if known is None else known
    other = known.get(id(value))
    if other is None:
        other = known[id(value)] = {_functions[type(each)](each, known) for each in value}
    return other


def _copy_tuple(value: tuple[Any, ...], known: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    if FIXED.issuperset(map(type, value)):
        return value
    known = {} if known is None else known
    items = [each if type(each) in FIXED else _functions[type(each)](each, known) for each in value]
    if all(one is other for one, other in zip(items, value)):
        return value
    # It may contain itself, by way of a list.
    other = known.get(id(value))
    if other is None:
        other = known[id(value)] = tuple.__new__(type(value), items)
    return other


def _copy_frozenset(value: frozenset[Any], known: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    if are_fixed(value):
        return value
    known = {} if known is None else known
    return frozenset([_functions[type(each)](each, known) for each in value])


def _copy_bytearray(value: bytearray, known: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    known = {} if known is None else known
    other = known.get(id(value))
    if other is None:
        other = known[id(value)] = value if unshared else value[:]
    return other


def _copy_deque(value: deque[Any], known: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    known = {} if known is None else known
    other = known.get(id(value))
    if other is None:
        other = known[id(value)] = deque(maxlen=value.maxlen)
        other.extend(each if type(each) in FIXED else _functions[type(each)](each, known) for each in value)
    return other


def _copy_other(value: Any, known: dict[int, Any] | None = None, unshared: bool = False, /) -> Any:
    try:
        return copy.deepcopy(value, known)
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
