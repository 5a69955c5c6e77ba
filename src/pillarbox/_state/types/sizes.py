"""About how many bytes rows take when they are pickled, without pickling them; and in memory.

Only the proportions matter: what a chunk takes in all is known once it is written, and shared out by these. Values
are looked at by column, and by what their elements are: a call for each would take longer than pickling them.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import chain, islice
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

_CONTAINER = 8.0
_SCALAR = 5.0
_NAME = 64.0
_UUID = 36.0
_SCALARS = frozenset({int, float, bool, type(None)})
_TEXTS = frozenset({str, bytes})
_SEQUENCES = frozenset({list, tuple, set, frozenset})
_FLAT = _SCALARS | _TEXTS
# Of a container with more elements than this, others are looked at only if they are no numbers or text; and of one with
# many, only if those that are looked at first, of all parts of it, differ by more than a factor.
_SAMPLE = 32
_MANY = 1024
_ALIKE = 4.0
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


def size_of_all(values: Sequence[Any]) -> float:
    """Return about how many bytes some values take together."""
    return float(_sizes(values, 0).sum()) if values else 0.0


def size_of(value: Any) -> float:
    """Return about how many bytes one value takes: of a tuple or a row of plain values, quickly."""
    size = _CONTAINER
    for part in value if isinstance(value, tuple) else (value,):
        kind = type(part)
        if kind in _SCALARS:
            size += _SCALAR
        elif kind in _TEXTS:
            size += _SCALAR + len(part)
        else:
            size += _size(part, 1)
    return size


def _sizes(values: Sequence[Any], depth: int) -> npt.NDArray[np.float64]:
    """Return about how many bytes each value takes."""
    count = len(values)
    kinds = set(map(type, values))
    if kinds <= _SCALARS:
        return np.full(count, _SCALAR)
    if kinds <= _TEXTS:
        return _SCALAR + np.fromiter(map(len, values), np.float64, count)
    if kinds == {UUID}:
        return np.full(count, _UUID)
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
    kind: Any = type(value)
    if kind in _SCALARS:
        return _SCALAR
    if isinstance(value, (str, bytes, bytearray)):
        return _SCALAR + len(value)
    if kind is UUID:
        return _UUID
    if depth > _DEPTH:
        return _SCALAR
    if isinstance(value, dict):
        return _CONTAINER + _sum(value, depth) + _sum(value.values(), depth)
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return _CONTAINER + _sum(value, depth)
    if isinstance(value, (type, FunctionType, ModuleType)):
        return _NAME
    # Objects without Python objects within, such as arrays, know their size.
    size = float(sys.getsizeof(value, 64))
    if isinstance(value, np.ndarray):
        size = max(size, float(value.nbytes))  # a view does not count what it shows
    attributes = value.__dict__ if kind.__dictoffset__ else None  # (where it has one: else its __getattr__ is asked)
    if attributes:
        size += _sum(attributes, depth) + _sum(attributes.values(), depth)
    slots = _slots(kind)
    return size + _sum([_content(slot, value) for slot in slots], depth) if slots else size


@lru_cache(maxsize=1024)
def _slots(kind: Any) -> list[MemberDescriptorType]:
    """Return what reads the slots of a class, and calls nothing of the user's."""
    classes = [vars(each) for each in kind.__mro__ if "__slots__" in vars(each)]
    return [found for names in classes for found in names.values() if type(found) is MemberDescriptorType]


def _content(slot: MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:  # it was never set
        return None


def _sum(values: Collection[Any], depth: int) -> float:
    """Return about how many bytes the elements of a container take."""
    count = len(values)
    if count > _MANY:
        some = [_size(value, depth + 1) for value in islice(values, 0, None, count // _SAMPLE | 1)]
        if max(some) <= _ALIKE * min(some):
            return sum(some) * count / len(some)
    if count <= _SAMPLE:
        return sum([_size(value, depth + 1) for value in values])
    kinds = set(map(type, values))
    if kinds <= _SCALARS:
        return _SCALAR * count
    if kinds <= _TEXTS:
        return _SCALAR * count + sum(map(len, values))
    texts = [len(value) for value in values if type(value) in _TEXTS]
    others = [value for value in values if type(value) not in _FLAT]
    some = [_size(value, depth + 1) for value in islice(others, 0, None, max(1, len(others) // _SAMPLE))]
    return _SCALAR * (count - len(others)) + sum(texts) + (sum(some) * len(others) / len(some) if some else 0.0)


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
