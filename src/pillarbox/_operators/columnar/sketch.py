"""Estimates the number of distinct values from the smallest hashes of each group's values (k minimum values).

For fewer than ``K`` distinct values, a sketch contains all hashes. The hash function must never change, because state
contains hashes.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

K = 1024
"""The number of stored hashes. The relative standard error is 1 / sqrt(K - 2)."""

Hashes = npt.NDArray[np.uint64]

# Odd, so that it has an inverse modulo 2**64.
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)
_BYTES = 1 << 18


def least(groups: npt.NDArray[np.int64], values: Hashes, size: int) -> pa.Array:
    order = np.lexsort((values, groups))
    groups, values = groups[order], values[order]
    new = np.ones(len(values), np.bool_)
    new[1:] = (groups[1:] != groups[:-1]) | (values[1:] != values[:-1])
    groups, values = groups[new], values[new]
    starts = np.searchsorted(groups, np.arange(size))
    smallest = np.arange(len(groups)) - starts[groups] < K
    offsets = np.zeros(size + 1, np.int32)
    np.cumsum(np.bincount(groups[smallest], minlength=size), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[smallest]))


def estimates(sketches: pa.Array) -> pa.Array:
    counts = np.diff(sketches.offsets.to_numpy()).astype(np.int64)
    full = np.flatnonzero(counts >= K)
    if len(full):
        largest = sketches.values.to_numpy()[sketches.offsets.to_numpy()[full + 1] - 1]
        counts[full] = np.rint((K - 1) * (2.0**64 / (largest.astype(np.float64) + 1.0))).astype(np.int64)
    return pa.array(counts)


def hashes(column: pa.Array) -> Hashes:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        # Hashes each distinct string once, because most columns repeat strings.
        encoded = column.dictionary_encode()
        of_texts: Hashes = _of_texts(encoded.dictionary)[encoded.indices.to_numpy()]
        return of_texts
    if pa.types.is_decimal(kind):
        words = np.frombuffer(column.buffers()[1], np.uint64)[2 * column.offset : 2 * (column.offset + len(column))]
        return _mixed(words[0::2] ^ _mixed(words[1::2]))
    return _mixed(numbers_of(column).view(np.uint64))


def numbers_of(column: pa.Array) -> npt.NDArray[np.int64]:
    kind = column.type
    if pa.types.is_floating(kind):
        numbers = column.cast(pa.float64()).to_numpy() + 0.0
        numbers[np.isnan(numbers)] = np.nan
        bits: npt.NDArray[np.int64] = numbers.view(np.int64)
        return bits
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    integers: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    return integers


def _mixed(words: Hashes) -> Hashes:
    words = words + np.uint64(_BASE)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = words ^ (words >> np.uint64(31))
    return mixed


def _of_texts(texts: pa.Array) -> Hashes:
    texts = texts.cast(pa.binary())
    ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    content = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    lengths = np.diff(ends)
    values: Any = np.empty(len(texts), np.uint64)
    start = 0
    while start < len(texts):
        if lengths[start] > _BYTES:
            long = content[ends[start] : ends[start + 1]].tobytes()
            values[start] = int.from_bytes(hashlib.blake2b(long, digest_size=8).digest(), "little")
            start += 1
            continue
        stop = int(np.searchsorted(ends, ends[start] + _BYTES, "right")) - 1
        values[start:stop] = _polynomials(content[ends[start] : ends[stop]], ends[start : stop + 1] - ends[start])
        start = stop
    return _mixed(values ^ _mixed(lengths.view(np.uint64)))


def _polynomials(content: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> Hashes:
    powers, inverses = _powers()
    sums = np.zeros(len(content) + 1, np.uint64)
    np.cumsum((content.astype(np.uint64) + np.uint64(1)) * powers[: len(content)], out=sums[1:])
    values: Hashes = (sums[ends[1:]] - sums[ends[:-1]]) * inverses[ends[:-1]]
    return values


@lru_cache(maxsize=1)
def _powers() -> tuple[Hashes, Hashes]:
    powers = []
    for base in (_BASE, _INVERSE):
        factors = np.full(_BYTES + 1, base, np.uint64)
        factors[0] = 1
        powers.append(np.cumprod(factors, dtype=np.uint64))
    return powers[0], powers[1]
