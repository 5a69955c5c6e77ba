"""About how many bytes rows take when they are pickled, without pickling them; and in memory.

Only the proportions matter: what a chunk takes in all is known once it is written, and shared out by these. Values
are looked at by column, and by what their elements are: a call for each would take longer than pickling them.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["largest_rows", "sizes_of"]

_CONTAINER = 8.0
_SCALAR = 5.0
_NAME = 64.0
_SCALARS = frozenset({int, float, bool, type(None)})
_TEXTS = frozenset({str, bytes})
_SEQUENCES = frozenset({list, tuple, set, frozenset})
# Of a container with more elements than this, the first ones, up to this number, stand for all.
_SAMPLE = 32
_DEPTH = 6
_ROUGH_SAMPLE = 64
# So many rows are looked at together.
_PORTION = 4096


def sizes_of(keys: list[Any], rows: list[Any]) -> npt.NDArray[np.float64]:
    """Return about how many bytes each key takes together with its row."""
    if _SCALARS.issuperset(map(type, keys)) and _SCALARS.issuperset(map(type, chain.from_iterable(rows))):
        return np.full(len(keys), _CONTAINER + _SCALAR * (1 + (len(rows[0]) if rows else 0)))
    parts = []
    for start in range(0, len(keys), _PORTION):
        columns = [keys[start : start + _PORTION], *zip(*rows[start : start + _PORTION])]
        parts.append(_CONTAINER + np.sum([_sizes(column, 0) for column in columns], axis=0))
    return np.concatenate(parts)


def _sizes(values: Sequence[Any], depth: int) -> npt.NDArray[np.float64]:
    """Return about how many bytes each value takes."""
    count = len(values)
    kinds = set(map(type, values))
    if kinds <= _SCALARS:
        return np.full(count, _SCALAR)
    if kinds <= _TEXTS:
        return _SCALAR + np.fromiter(map(len, values), np.float64, count)
    if depth <= _DEPTH and (kinds <= _SEQUENCES or kinds == {dict}):
        lengths = np.fromiter(map(len, values), np.int64, count)
        if lengths.max() * (2 if kinds == {dict} else 1) <= _SAMPLE:
            parts = [chain.from_iterable(values)]
            if kinds == {dict}:
                parts.append(chain.from_iterable([value.values() for value in values]))
            sizes: npt.NDArray[np.float64] = np.full(count, _CONTAINER, np.float64)
            for part in parts:
                np.add(sizes, _sums(list(part), lengths, depth), out=sizes)
            return sizes
    return np.array([_size(value, depth) for value in values], np.float64)


def _sums(elements: list[Any], lengths: npt.NDArray[np.int64], depth: int) -> npt.NDArray[np.float64]:
    """Return about how many bytes the elements of each container take."""
    if _SCALARS.issuperset(map(type, elements)):
        return lengths.astype(np.float64) * _SCALAR
    ends = np.cumsum(np.concatenate([np.zeros(1), _sizes(elements, depth + 1)]))
    places = np.cumsum(lengths)
    sums: npt.NDArray[np.float64] = ends[places] - ends[places - lengths]
    return sums


def _size(value: Any, depth: int) -> float:
    kind = type(value)
    if kind in _SCALARS:
        return _SCALAR
    if isinstance(value, (str, bytes, bytearray)):
        return _SCALAR + len(value)
    if depth > _DEPTH:
        return _SCALAR
    if isinstance(value, dict):
        return _CONTAINER + _sum(chain.from_iterable(value.items()), 2 * len(value), depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        return _CONTAINER + _sum(value, len(value), depth)
    if isinstance(value, (type, FunctionType, ModuleType)):
        return _NAME
    attributes = getattr(value, "__dict__", None)
    # Objects without Python objects within, such as arrays, know their size.
    own = float(sys.getsizeof(value, 64))
    return own + (_sum(chain.from_iterable(attributes.items()), 2 * len(attributes), depth) if attributes else 0.0)


def _sum(values: Iterable[Any], count: int, depth: int) -> float:
    if count <= _SAMPLE:
        return sum([_size(value, depth + 1) for value in values])
    return sum([_size(value, depth + 1) for value in islice(values, _SAMPLE)]) * count / _SAMPLE


# -- in memory --


def largest_rows(rows: Iterable[tuple[Any, Any]], count: int = 3) -> list[tuple[Any, int]]:
    """Return the keys whose rows take most memory, and about how many bytes each takes.

    It allocates next to nothing: it is asked when there is nothing left.
    """
    sizes = ((_rough_size(row), number, key) for number, (key, row) in enumerate(rows))
    return [(key, size) for size, _, key in heapq.nlargest(count, sizes)]


def _rough_size(value: Any, depth: int = 3) -> int:
    """Return about how many bytes a value takes: of large containers, the first elements stand for all."""
    size = sys.getsizeof(value)
    if depth and isinstance(value, (list, tuple, set, dict)) and value:
        elements: Iterable[Any] = value
        if isinstance(value, dict):
            elements = (part for entry in value.items() for part in entry)
        sampled = [_rough_size(element, depth - 1) for element in islice(elements, _ROUGH_SAMPLE)]
        parts = 2 * len(value) if isinstance(value, dict) else len(value)
        size += sum(sampled) * parts // len(sampled)
    return size
