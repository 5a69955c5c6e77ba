"""Dataclasses and named tuples whose fields differ from the fields of the values that were written.

A dataclass is pickled with the names of its fields, but for those that are frozen and have slots; a named tuple is
pickled by places. So what a pickle alone tells is not enough: where types are declared, the head of a log has the
former fields.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

_PICKLING = ("__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__", "__getstate__", "__setstate__")
_LEAVES = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray})
_SEQUENCES = (list, tuple, set, frozenset, deque)
# A class that was pickled by value may hold a copy of ``dataclasses.MISSING``; the class of the copy is the same.
_Missing = type(dataclasses.MISSING)


class RecordError(Exception):
    """A value cannot become one of its class as it is now.

    Args:
        record: the class.
        why: the rest of the message.
    """

    def __init__(self, record: type, why: str) -> None:
        super().__init__(f"{record.__module__}.{record.__qualname__} {why}")
        self.record = record


@lru_cache(maxsize=1024)
def is_record(found: Any) -> bool:
    """Return whether something is a dataclass or a named tuple that is pickled as Python does it."""
    return (
        isinstance(found, type)
        and (dataclasses.is_dataclass(found) or (issubclass(found, tuple) and hasattr(found, "_fields")))
        and own_pickling(found) is None
    )


def own_pickling(record: type) -> str | None:
    """Return the method by which a dataclass or a named tuple pickles in a way of its own; None: there is none."""
    return next((name for name in _PICKLING if _is_own(record, name)), None)


def _is_own(record: type, name: str) -> bool:
    for each in record.__mro__:
        if name in vars(each):
            made = getattr(vars(each)[name], "__module__", None)
            is_named_tuple = name == "__getnewargs__" and issubclass(record, tuple) and "_fields" in vars(each)
            return each not in (object, tuple) and made != "dataclasses" and not is_named_tuple
    return False


@lru_cache(maxsize=1024)
def field_names(record: Any) -> tuple[str, ...]:
    """Return the names of a class's fields, in their order."""
    if issubclass(record, tuple):
        return tuple(record._fields)
    return tuple(each.name for each in dataclasses.fields(record))


@lru_cache(maxsize=1024)
def _defaults(record: Any) -> Mapping[str, Callable[[], Any]]:
    """Return what makes the default of each field that has one."""
    if issubclass(record, tuple):
        return {name: always(value) for name, value in record._field_defaults.items()}
    made: dict[str, Callable[[], Any]] = {}
    for each in dataclasses.fields(record):
        factory: Any = each.default_factory
        if not isinstance(factory, _Missing):
            made[each.name] = factory
        elif not isinstance(each.default, _Missing):
            made[each.name] = always(each.default)
    return made


def always(value: Any) -> Callable[[], Any]:
    """Return a function that returns the value."""
    return lambda: value


def optional_fields(record: type) -> frozenset[str]:
    """Return the fields that have a default."""
    return frozenset(_defaults(record))


def _default(record: type, name: str) -> Any:
    make = _defaults(record).get(name)
    if make is None:
        raise RecordError(record, f"has the field {name!r}, which the value was written without: give it a default")
    return make()


# -- values of declared types --


def reader(record: type, then: Sequence[str] | None, changed: Callable[[], None]) -> type:
    """Return a class that stands for another in one pickle: it makes objects of the other, with its fields of now.

    Args:
        record: a dataclass or named tuple that is pickled as Python does it.
        then: the fields with which values were written; None: they are not known.
        changed: is called with each value that becomes another.
    """
    names = field_names(record)
    same = then is not None and tuple(then) == names

    def named(values: Sequence[Any]) -> dict[str, Any]:
        """Return values that were written by their places, by name."""
        if then is None and len(values) > len(names):
            raise RecordError(
                record,
                f"has {len(names)} fields, and the value was written with {len(values)}, of which nothing says the"
                " names: keep the fields that it had",
            )
        if then is not None and len(values) != len(then):
            raise RecordError(record, f"was written with {len(values)} fields, where it had {len(then)}")
        differs = len(values) != len(names) if then is None else not same
        if differs:
            changed()
        return dict(zip(names if then is None else then, values))

    def complete(by_name: Mapping[str, Any]) -> list[Any]:
        return [by_name[name] if name in by_name else _default(record, name) for name in names]

    if issubclass(record, tuple):

        def new_tuple(_: type, *values: Any) -> Any:
            if not values and then:
                raise RecordError(record, "was a dataclass, and is a named tuple: let it be a dataclass")
            return tuple.__new__(record, complete(named(values)))

        return type(record.__name__, (), {"__new__": new_tuple, "__slots__": ()})

    def put(made: Any, by_name: Mapping[str, Any]) -> None:
        for name, value in zip(names, complete(by_name)):
            object.__setattr__(made, name, value)

    def set_state(made: Any, state: Any) -> None:
        """Take the fields of a pickle, in one of the three forms in which dataclasses have them."""
        object.__setattr__(made, "__class__", record)
        if isinstance(state, list):
            by_name = named(state)
        else:
            parts = [part for part in (state if isinstance(state, tuple) else (state,)) if part is not None]
            by_name = {name: value for part in parts for name, value in part.items()}
            if by_name.keys() != set(names):
                changed()
        put(made, by_name)

    metaclass: Any = type(record)
    unset: Any = metaclass(record.__name__, (record,), {"__slots__": (), "__setstate__": set_state})

    def new(_: type, *values: Any) -> Any:
        if values or then == ():  # it was a named tuple, or had no fields: nothing follows
            made = object.__new__(record)
            changed()
            put(made, named(values))
            return made
        return object.__new__(unset)

    return type(record.__name__, (), {"__new__": new, "__slots__": ()})


# -- values of any type --


def fill(values: Iterable[Any], with_more: set[type] | None = None) -> bool:
    """Give dataclasses that were pickled without some of their fields these fields' defaults, wherever inside values.

    Args:
        with_more: gets the dataclasses of which objects have attributes that are no fields, such as former fields.

    Returns:
        whether any value was changed.

    Raises:
        RecordError: a field has no default.
    """
    changed = False
    seen: set[int] = set()
    level: list[Any] = list(values)
    while level:
        kinds: set[type] = set(map(type, level))
        inner: list[Any] = []
        for kind in kinds - _LEAVES:
            mine: list[Any] = level if len(kinds) == 1 else [value for value in level if type(value) is kind]
            if issubclass(kind, dict):
                inner += chain.from_iterable(mine)
                inner += chain.from_iterable(map(dict.values, mine))
            elif issubclass(kind, _SEQUENCES):
                inner += chain.from_iterable(mine)
            elif not issubclass(kind, type):
                if dataclasses.is_dataclass(kind) and is_record(kind):
                    changed |= _complete(kind, mine, set() if with_more is None else with_more)
                    for name in fields_beside(kind):
                        inner += [getattr(value, name, None) for value in mine]
                if hasattr(mine[0], "__dict__"):
                    inner += chain.from_iterable([vars(value).values() for value in mine])
        # (Nearly always there are but leaves: that is found out without a look at each in Python.)
        leaves_only = _LEAVES.issuperset(map(type, inner))
        found = {} if leaves_only else {id(value): value for value in inner if type(value) not in _LEAVES}
        level = [value for key, value in found.items() if key not in seen]
        seen.update(found)
    return changed


def _complete(record: type, values: list[Any], with_more: set[type]) -> bool:
    names, beside = field_names(record), fields_beside(record)
    own = frozenset(names) - beside
    if not beside:
        shapes = [frozenset(shape) for shape in set(map(tuple, map(vars, values)))]
        if any(shape - own for shape in shapes):
            with_more.add(record)
        if all(own <= shape for shape in shapes):
            return False
    changed = False
    init = {each.name for each in dataclasses.fields(record) if each.init}
    for value in values:
        for name in names:
            lacks = not hasattr(value, name) if name in beside else name not in vars(value)
            # (A field that is no argument may come about in another way, or not at all.)
            if lacks and (name in init or name in _defaults(record)):
                object.__setattr__(value, name, _default(record, name))
                changed = True
    return changed


def compared_fields(record: Any) -> tuple[str, ...] | None:
    """Return the fields by which objects are compared that can be keys; None: they are compared in another way."""
    if issubclass(record, tuple):
        return tuple(record._fields)
    parameters = record.__dataclass_params__
    if not parameters.eq or record.__hash__ is None or "__eq__" not in vars(record):
        return None
    return tuple(each.name for each in dataclasses.fields(record) if each.compare)


@lru_cache(maxsize=1024)
def fields_beside(record: Any) -> frozenset[str]:
    """Return the fields that are not in the dictionary of an object, but in slots, or where a descriptor has them."""
    return frozenset(name for name in field_names(record) if hasattr(type(_attributes_of(record).get(name)), "__set__"))


def _attributes_of(record: type) -> dict[str, Any]:
    """Return the attributes of a class and of those that it is derived from."""
    return {name: value for each in reversed(record.__mro__) for name, value in vars(each).items()}


@lru_cache(maxsize=1024)
def pickled_form(record: Any) -> str | None:
    """Return the form in which objects of a class are pickled (``plain_names.FORMS``); None: in another one."""
    if issubclass(record, tuple):
        return "tuple"
    if is_pickled_by_places(record):
        return "list"
    beside = fields_beside(record)
    if not beside:
        return "dict"
    return "slots" if len(beside) == len(field_names(record)) and not record.__dictoffset__ else None


def is_pickled_by_places(record: Any) -> bool:
    """Return whether a dataclass is pickled by places, which it does not count when it is read."""
    made = _attributes_of(record).get("__setstate__")
    return dataclasses.is_dataclass(record) and getattr(made, "__module__", None) == "dataclasses"
