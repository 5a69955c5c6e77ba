"""About how many bytes rows take when they are pickled, without pickling them.

Only their proportions matter: what a chunk takes in all is known once it is written, and shared out by these.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import chain, islice
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["sizes_of"]

_ROW = 8.0
_SCALAR = 5.0
_NAME = 64.0
_SCALARS = frozenset({int, float, bool, type(None)})
# Of what holds more elements than this, the first so many stand for all.
_SAMPLE = 32
_DEPTH = 6


def sizes_of(keys: list[Any], rows: list[Any]) -> npt.NDArray[np.float64]:
    """Return about how many bytes each key takes together with its row."""
    if _SCALARS.issuperset(set(map(type, chain(keys, chain.from_iterable(rows))))):
        return np.full(len(keys), _ROW + _SCALAR * (1 + (len(rows[0]) if rows else 0)))
    return np.array([_size(key, 0) + _size(row, 0) for key, row in zip(keys, rows)], np.float64)


def _size(value: Any, depth: int) -> float:
    kind = type(value)
    if kind in _SCALARS:
        return _SCALAR
    if isinstance(value, (str, bytes, bytearray)):
        return _SCALAR + len(value)
    if depth > _DEPTH:
        return _SCALAR
    if isinstance(value, dict):
        return _ROW + _sum(chain.from_iterable(value.items()), 2 * len(value), depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        return _ROW + _sum(value, len(value), depth)
    if isinstance(value, (type, FunctionType, ModuleType)):
        return _NAME
    attributes = getattr(value, "__dict__", None)
    # What is no Python object within tells its size, arrays for one.
    own = float(sys.getsizeof(value, 64))
    return own + (_sum(chain.from_iterable(attributes.items()), 2 * len(attributes), depth) if attributes else 0.0)


def _sum(values: Iterable[Any], count: int, depth: int) -> float:
    if count <= _SAMPLE:
        return sum([_size(value, depth + 1) for value in values])
    return sum([_size(value, depth + 1) for value in islice(values, _SAMPLE)]) * count / _SAMPLE
