"""Encodes keys of columnar joins as 64-bit codes. Equal keys have equal codes.

If a key is a single column of fixed-size values, different keys have different codes. Otherwise, a code is a hash, and
rows with equal codes must be compared by key. Codes are not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pillarbox._operators.columnar import sketch

_ODD = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0x6E756C6C)
# Bits of a hash. With more bits, a row's key, time and position often would not fit one integer, which sorts faster.
_HASH_BITS = 25


def without_nulls(columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_] | None:
    valid = [column.is_valid() for column in columns if column.null_count]
    return None if not valid else reduce(pc.and_, valid).to_numpy(zero_copy_only=False)


def are_exact(kinds: Sequence[pa.DataType]) -> bool:
    return len(kinds) == 1 and (pa.types.is_primitive(kinds[0]) and not pa.types.is_decimal(kinds[0]))


def codes_of(columns: Sequence[pa.Array], *, exact: bool) -> npt.NDArray[np.int64]:
    """Return the codes of keys. ``exact=True`` requires that :func:`are_exact` is true and no key is null."""
    if exact:
        return sketch.numbers_of(columns[0])
    codes = np.zeros(len(columns[0]), np.uint64)
    for leaf in _leaves(columns):
        part = np.full(len(leaf), _NULL)
        present = leaf.is_valid().to_numpy(zero_copy_only=False)
        part[present] = sketch.hashes(leaf.drop_null() if leaf.null_count else leaf)
        codes = codes * _ODD + part
    highest: npt.NDArray[np.int64] = (codes >> np.uint64(64 - _HASH_BITS)).view(np.int64)
    return highest


def are_equal(columns: Sequence[pa.Array], others: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    """Compare keys row by row. Nulls are equal to each other, and so are NaNs."""
    equal = np.ones(len(columns[0]), np.bool_)
    for column, other in zip(_leaves(columns), _leaves(others)):
        same = pc.equal(column, other)
        if pa.types.is_floating(column.type):
            same = pc.or_(same, pc.and_(pc.is_nan(column), pc.is_nan(other)))
        if same.null_count:
            same = pc.or_(same.fill_null(False), pc.and_(column.is_null(), other.is_null()))
        equal &= same.to_numpy(zero_copy_only=False)
    return equal


def _leaves(columns: Sequence[pa.Array]) -> list[pa.Array]:
    leaves: list[pa.Array] = []
    for column in columns:
        if pa.types.is_struct(column.type):
            leaves += [column.is_valid(), *_leaves(column.flatten())]
        else:
            leaves.append(column)
    return leaves
