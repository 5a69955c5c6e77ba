"""Keys of map states: NaN, which equals nothing in Python, is one key, as in Flink.

A map holds one NaN of each type, which a dict finds by identity; so does a tuple with NaN in it, such as a row. A
dataclass with NaN stays a key that nothing equals.
"""

from __future__ import annotations

import datetime
import math
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

_DECIMAL_NAN = Decimal("nan")

WITHOUT_NAN = frozenset(
    {int, str, bool, bytes, type(None), uuid.UUID}
    | {datetime.date, datetime.datetime, datetime.time, datetime.timedelta}
)
"""Types whose instances are keys as they are."""


def map_key(key: Any) -> Any:
    """Return the key that a map holds for a key: the key itself, unless it is NaN or a tuple with NaN in it."""
    if type(key) is float:
        return math.nan if key != key else key
    if type(key) in WITHOUT_NAN:
        return key
    if isinstance(key, tuple):
        if WITHOUT_NAN.issuperset(map(type, key)):
            return key
        parts = list(map(map_key, key))
        if all(part is each for part, each in zip(parts, key)):
            return key
        make = tuple if type(key) is tuple else getattr(type(key), "_make", None)
        return key if make is None else make(parts)
    if isinstance(key, (float, np.floating)):  # of NumPy, or a subclass
        return math.nan if key != key else key
    if isinstance(key, Decimal):
        return _DECIMAL_NAN if key.is_qnan() else key
    return key


def with_map_keys(entries: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a new dict: a mapping whose keys are replaced by the keys that a map holds."""
    if WITHOUT_NAN.issuperset(map(type, entries)):
        return dict(entries)
    return {map_key(key): value for key, value in entries.items()}


def restore_maps(rows: Sequence[list[Any]], slot: int) -> None:
    """Replace the maps in a slot of restored rows by maps with :func:`restored_keys`, if they have others."""
    for row in rows:
        entries = row[slot]
        if entries is not None:
            keys = list(entries)
            restored = restored_keys(keys)
            if restored is not keys:
                row[slot] = dict(zip(restored, entries.values()))


def restored_keys(keys: list[Any]) -> list[Any]:
    """Return the keys of a map that was read from a checkpoint: NaN is another object there.

    A map of an earlier version may have several NaN, none of which can be found: it stays as it is.
    """
    if WITHOUT_NAN.issuperset(map(type, keys)):
        return keys
    found = list(map(map_key, keys))
    return found if len(set(found)) == len(keys) else keys
