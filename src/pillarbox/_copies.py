"""Copies of values that user code may change later."""

from __future__ import annotations

import copy
import datetime
import decimal
from collections.abc import Collection
from typing import Any

# Values of these types cannot change.
ATOMS = frozenset(
    {int, float, complex, str, bool, bytes, type(None), decimal.Decimal}
    | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
)


def is_fixed(value: Any) -> bool:
    """Return whether a value, and all that is in it, cannot change."""
    # (Rows and named tuples have no attributes besides their fields; a class of the user's may.)
    return type(value) in ATOMS or (
        isinstance(value, tuple) and are_fixed(value) and not getattr(value, "__dict__", None)
    )


def are_fixed(values: Collection[Any]) -> bool:
    """Return whether none of the values can change."""
    return ATOMS.issuperset(map(type, values)) or all(map(is_fixed, values))


def copied(value: Any) -> Any:
    """Return a value that stays as it is, whatever is done to the given one."""
    if is_fixed(value):
        return value
    kind = type(value)
    if kind is list or kind is set:
        if are_fixed(value):
            return value.copy()
    elif kind is dict and are_fixed(value.values()):
        return value.copy()
    return deep_copy(value)


def deep_copy(value: Any) -> Any:
    """Return what ``copy.deepcopy`` returns; what JSON is made of, lists and dictionaries, is quicker.

    A value that occurs several times within another occurs as often in the copy, even if it contains itself.
    """
    return _copied(value, {})


def _copied(value: Any, known: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict:
        found = known.get(id(value))
        if found is None:
            found = known[id(value)] = {}
            for name, each in value.items():
                name = name if type(name) in ATOMS else _copied(name, known)  # noqa: PLW2901
                found[name] = each if type(each) in ATOMS else _copied(each, known)
        return found
    if kind is list:
        found = known.get(id(value))
        if found is None:
            found = known[id(value)] = []
            for each in value:
                found.append(each if type(each) in ATOMS else _copied(each, known))
        return found
    if kind is tuple or (hasattr(kind, "_fields") and isinstance(value, tuple) and _is_plain(value)):
        items = [each if type(each) in ATOMS else _copied(each, known) for each in value]
        if all(one is other for one, other in zip(items, value)):
            return value
        # It may contain itself, by way of a list.
        found = known.get(id(value))
        if found is None:
            found = known[id(value)] = tuple.__new__(kind, items)
        return found
    return copy.deepcopy(value, known)


def _is_plain(value: tuple[Any, ...]) -> bool:
    """Return whether a row or named tuple is nothing but its fields."""
    return not getattr(value, "__dict__", None) and not hasattr(value, "__deepcopy__")
