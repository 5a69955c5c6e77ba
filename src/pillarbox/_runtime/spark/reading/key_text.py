"""Parses a key that a user has entered as text."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from pillarbox._errors import ProgramError, shorten
from pillarbox._state.keys.key_note import KeyNote, declared_key
from pillarbox._types.scalars import scalar_of_spark

_READINGS: dict[type, tuple[str, Callable[[str], Any]]] = {
    str: ("text", str),
    int: ("a whole number", int),
    float: ("a number", float),
    Decimal: ("a decimal", Decimal),
    dt.date: ("a date", dt.date.fromisoformat),
    dt.datetime: ("a timestamp", dt.datetime.fromisoformat),
    dt.time: ("a time", dt.time.fromisoformat),
    bool: ("true or false", lambda text: {"true": True, "false": False}[text.lower()]),
}
_NUMBERS = (int, float, Decimal)


def keys_of_text(text: str) -> list[Any]:
    """Return all keys that a text may stand for, for example as JSON or as a date."""
    keys: list[Any] = [text]
    readings: list[Callable[[str], Any]] = [
        lambda text: _as_key(json.loads(text)),
        dt.date.fromisoformat,
        dt.datetime.fromisoformat,
        Decimal,
    ]
    for reading in readings:
        try:
            value = reading(text)
        except (ValueError, InvalidOperation):
            continue
        if value is not None and not any(is_same_key(value, key) for key in keys):
            keys.append(value)
    return keys


def _as_key(value: Any) -> Any:
    return tuple(map(_as_key, value)) if isinstance(value, list) else value


def is_same_key(key: Any, other: Any) -> bool:
    # True equals 1, but they are different keys.
    if isinstance(key, bool) != isinstance(other, bool):
        return False
    try:
        return bool(key == other)
    except Exception:  # such as arrays
        return False


def possible_keys(text: str, notes: Iterable[KeyNote | None]) -> list[Any]:
    """Return all keys that a text may stand for. If the key type is declared, return only keys of that type."""
    types, _ = declared_key(notes)
    classes = [None if (scalar := scalar_of_spark(spark_type)) is None else scalar.classes[0] for spark_type in types]
    if not types or not all(kind in _READINGS for kind in classes):
        return keys_of_text(text)
    named = ", ".join(types)
    try:
        if len(types) == 1:
            return [_read(text, classes[0])]
        parts = json.loads(text)
        if isinstance(parts, list) and len(parts) == len(types):
            return [tuple(_read(part, kind) for part, kind in zip(parts, classes))]
    except (ValueError, KeyError, InvalidOperation):
        pass
    example = ' as JSON, such as ["a", 1]' if len(types) > 1 else ""
    raise ProgramError(
        f"{shorten(text)} is not a key of the operator, whose keys are {named.upper()}: pass a key of this"
        f" type{example}"
    )


def _read(part: Any, kind: Any) -> Any:
    if part is None or type(part) is kind:
        return part
    if isinstance(part, (bool, list, dict)) or (kind is str and not isinstance(part, str)):
        raise ValueError(part)
    return _READINGS[kind][1](str(part))


def described_keys(keys: Sequence[Any]) -> list[str]:
    return [
        f"{shorten(key)} as {_READINGS[type(key)][0] if type(key) in _READINGS else f'a {type(key).__name__}'}"
        for key in keys
    ]


def several_keys(text: str, uid: str, keys: Sequence[Any], why: str, advice: str) -> ProgramError:
    return ProgramError(
        f"the key {shorten(text)} of {uid!r} may be {' or '.join(described_keys(keys))}, and {why}: put a string in"
        f" double quotes ({json.dumps(text)}), or {advice}"
    )
