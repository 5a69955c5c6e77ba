"""Copies of what user code may go on changing."""

from __future__ import annotations

import copy
import datetime
import decimal
from typing import Any

__all__ = ["ATOMS", "deep_copy"]

# Values of these types cannot change.
ATOMS = frozenset(
    {int, float, complex, str, bool, bytes, type(None), decimal.Decimal}
    | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
)


def deep_copy(value: Any) -> Any:
    """Return what ``copy.deepcopy`` returns; what JSON is made of, lists and dictionaries, is quicker.

    What is there several times in a value is so in its copy, too, also where it contains itself.
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
