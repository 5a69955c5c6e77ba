"""Key groups: how keys are spread over subtasks, the same way in every process.

``key group = stable hash(key) mod max_parallelism``; each subtask owns one range of key groups, by
Flink's assignment (``KeyGroupRangeAssignment``). The hash depends neither on the process (Python's own
``hash`` of a string does) nor on the machine or Python version, and keys that are equal in Python
(``1 == 1.0 == True == Decimal(1)``) share it.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import uuid
import zlib
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pillarbox._errors import KeyTypeError, shorten
from pillarbox._rows import column_to_list

DEFAULT_MAX_PARALLELISM = 128
MAX_MAX_PARALLELISM = 1 << 15

_MASK = (1 << 64) - 1
# 2**64 over the golden ratio: the multiplier of Fibonacci hashing, whose upper half is well mixed.
_GOLDEN = 0x9E3779B97F4A7C15
_NONE_HASH = 0x6E6F6E65
_NULL_HASH = ((_NONE_HASH * _GOLDEN) & _MASK) >> 32
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_NAIVE_EPOCH = datetime.datetime(1970, 1, 1)
_NOT_EQUAL = (
    "cannot key by {}, which equals nothing, not even itself, so no two records would share its state: let the key"
    " function give None for it, or filter such records out"
)
_ATTOSECONDS = {
    "W": 604_800 * 10**18,
    "D": 86_400 * 10**18,
    "h": 3_600 * 10**18,
    "m": 60 * 10**18,
    **{unit: 10 ** (18 - 3 * place) for place, unit in enumerate(("s", "ms", "us", "ns", "ps", "fs", "as"))},
}


def stable_hash(key: Any) -> int:
    """Return the 32-bit hash of a key that decides its key group.

    Args:
        key: None, a bool, number, string, bytes, date, time, datetime, timedelta, UUID, enum member, a tuple
            (also a named tuple) or frozen dataclass of such.

    Raises:
        KeyTypeError: the key's type has no hash that every process agrees on, or the key is NaN.
    """
    kind = type(key)
    if kind is str:
        return ((zlib.crc32(key.encode("utf-8", "surrogatepass")) * _GOLDEN) & _MASK) >> 32
    if kind is int:
        return ((hash(key) * _GOLDEN) & _MASK) >> 32
    if isinstance(key, tuple):
        folded = len(key)
        for element in key:
            folded = (folded * 31 + stable_hash(element)) & _MASK
        return ((folded * _GOLDEN) & _MASK) >> 32
    return ((_seed(key) * _GOLDEN) & _MASK) >> 32


def _seed(key: Any) -> int:
    if key is None:
        return _NONE_HASH
    if isinstance(key, (int, float, Decimal, Fraction)):
        if key.is_nan() if isinstance(key, Decimal) else key != key:  # (A signalling NaN may not be compared.)
            raise KeyTypeError(_NOT_EQUAL.format("NaN"))
        return hash(key)  # numbers: Python defines this hash by value, without a seed
    if isinstance(key, np.generic):
        return _seed_of_numpy(key)
    if isinstance(key, str):
        return zlib.crc32(key.encode("utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return zlib.crc32(key)
    if isinstance(key, datetime.datetime):
        if key != key:  # pandas' NaT
            raise KeyTypeError(_NOT_EQUAL.format("NaT"))
        # (Those that differ by their fold alone are equal.)
        since = key.replace(fold=0) - _EPOCH if key.tzinfo is not None else key - _NAIVE_EPOCH
        return since // datetime.timedelta(microseconds=1)
    if isinstance(key, datetime.date):
        return key.toordinal()
    if isinstance(key, datetime.timedelta):
        return key // datetime.timedelta(microseconds=1)
    if isinstance(key, datetime.time):
        since = datetime.datetime.combine(_NAIVE_EPOCH, key.replace(tzinfo=None)) - _NAIVE_EPOCH
        return (since - (key.replace(fold=0).utcoffset() or datetime.timedelta())) // datetime.timedelta(microseconds=1)
    if isinstance(key, uuid.UUID):
        return hash(key.int)
    # After the types that a member may be as well: a member of a `str` enum equals its string.
    if isinstance(key, enum.Flag):  # several of them together have a name only in some versions of Python
        return zlib.crc32(f"{type(key).__qualname__}.{key.value}".encode())
    if isinstance(key, enum.Enum):
        return zlib.crc32(f"{type(key).__qualname__}.{key.name}".encode())
    params = getattr(type(key), "__dataclass_params__", None)
    if params is not None and params.frozen and params.eq:
        return stable_hash(tuple(getattr(key, field.name) for field in dataclasses.fields(key) if field.compare))
    raise KeyTypeError(
        f"cannot key by {shorten(key)} of type {type(key).__qualname__}: its hash is not the same in every"
        " process; let the key function give a string, a number, a date, a tuple or a frozen dataclass of them"
    )


def _seed_of_numpy(key: np.generic) -> int:
    if isinstance(key, (np.datetime64, np.timedelta64)):
        if np.isnat(key):
            raise KeyTypeError(_NOT_EQUAL.format("NaT"))
        unit, count = np.datetime_data(key.dtype)
        if unit in ("Y", "M"):
            key, unit, count = key.astype("M8[D]" if isinstance(key, np.datetime64) else "m8[M]"), "D", 1
        # Microseconds, as of the same time in Python, so far as it has no parts of one: times of all units are equal.
        micros, rest = divmod(int(key.view("i8")) * count * _ATTOSECONDS[unit], _ATTOSECONDS["us"])
        return micros if rest == 0 else hash(Fraction(rest, _ATTOSECONDS["us"]) + micros)
    item = key.item()
    return _seed(float(item) if isinstance(item, np.floating) else item)  # (A long double's item is itself.)


def key_group(key: Any, max_parallelism: int) -> int:
    """Return the key group of a key, in ``range(max_parallelism)``."""
    return stable_hash(key) % max_parallelism


def hashes_of_tuples(parts: Sequence[npt.NDArray[np.uint64]]) -> npt.NDArray[np.uint64]:
    """Return the hashes of tuples whose elements have these hashes; the same as :func:`stable_hash` of each."""
    folded = np.full(len(parts[0]), len(parts), np.uint64)
    for part in parts:
        folded = folded * np.uint64(31) + part
    return _mixed(folded)


def _mixed(seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    hashes: npt.NDArray[np.uint64] = (seeds * np.uint64(_GOLDEN)) >> np.uint64(32)
    return hashes


def hashes_of_integers(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return the hashes of a whole column of integers; the same as :func:`stable_hash` of each."""
    # Python's hash of an int is its residue modulo the Mersenne prime 2**61 - 1, with the sign kept, and
    # -2 instead of -1. Unsigned arithmetic wraps modulo 2**64, as the mask above does.
    prime = np.uint64((1 << 61) - 1)
    hashes = keys.view(np.uint64)
    if len(keys) and (keys.min() < 0 or keys.max() >= prime):
        negative = keys < 0
        magnitude = np.where(negative, np.uint64(0) - hashes, hashes) % prime
        hashes = np.where(negative, np.uint64(0) - magnitude, magnitude)
        hashes = np.where(negative & (magnitude == np.uint64(1)), np.uint64(_MASK - 1), hashes)
    return _mixed(hashes)


def hashes_of_keys(keys: list[Any]) -> npt.NDArray[np.uint64]:
    """Return the hashes of many keys of any types; the same as :func:`stable_hash` of each.

    Raises:
        KeyTypeError: a key has none.
    """
    kinds = set(map(type, keys))
    if kinds == {int}:
        try:
            return hashes_of_integers(np.array(keys, np.int64))
        except OverflowError:
            pass
    if kinds == {str}:
        crc32 = zlib.crc32
        return _mixed(np.array([crc32(key.encode("utf-8", "surrogatepass")) for key in keys], np.uint64))
    return np.fromiter(map(stable_hash, keys), np.uint64, len(keys))


def hashes_of_column(
    column: pa.Array, known: dict[Any, int], *, nan_is_key: bool = False
) -> npt.NDArray[np.uint64] | None:
    """Return the hashes of a whole column, of each different value once; None: it is for each value by itself to say.

    Args:
        known: hashes of values, which the column's hashes are added to.
        nan_is_key: whether NaN has a hash, as null has: rows are then grouped as SQL does, where NaN equals itself.
    """
    kind = column.type
    if pa.types.is_integer(kind) and not column.null_count and not pa.types.is_uint64(kind):
        return hashes_of_integers(column.to_numpy().astype(np.int64))
    if pa.types.is_temporal(kind):
        return _hashes_of_times(column)
    if pa.types.is_struct(kind):
        fields = [hashes_of_column(field, known, nan_is_key=nan_is_key) for field in column.flatten()]
        parts = [field for field in fields if field is not None]
        if not parts or len(parts) < len(fields):
            return None
        return np.where(column.is_null().to_numpy(zero_copy_only=False), np.uint64(_NULL_HASH), hashes_of_tuples(parts))
    of_one_value = pa.types.is_primitive, pa.types.is_decimal, pa.types.is_string, pa.types.is_binary
    if not any(is_so(kind) for is_so in of_one_value):
        return None
    if nan_is_key and pa.types.is_floating(kind):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
    encoded = column.dictionary_encode(null_encoding="encode")
    try:
        found = [
            known[value] if value in known else known.setdefault(value, stable_hash(value))
            for value in column_to_list(encoded.dictionary)
        ]
    except TypeError:
        return None
    hashes: npt.NDArray[np.uint64] = np.array(found, np.uint64)[encoded.indices.to_numpy()]
    return hashes


def _hashes_of_times(column: pa.Array) -> npt.NDArray[np.uint64] | None:
    """Return the hashes of a column of dates, times, timestamps or durations, also of those that Python cannot hold."""
    kind = column.type
    if pa.types.is_date32(kind):
        seeds = column.cast(pa.int32()).fill_null(0).to_numpy().astype(np.int64) + _EPOCH.toordinal()
    elif kind in (pa.time64("us"), pa.time64("ns")) or getattr(kind, "unit", "") == "us":
        seeds = column.cast(pa.int64()).fill_null(0).to_numpy() // (1000 if kind == pa.time64("ns") else 1)
    else:
        return None
    if column.null_count:
        seeds = np.where(column.is_null().to_numpy(zero_copy_only=False), _NONE_HASH, seeds)
    return _mixed(seeds.view(np.uint64))


def smallest_key(subtask: int, max_parallelism: int, parallelism: int) -> int:
    """Return the smallest whole number from 0 that is a key of a subtask."""
    return next(key for key in count() if subtask_of_key(key, max_parallelism, parallelism) == subtask)


def subtask_of(group: int, max_parallelism: int, parallelism: int) -> int:
    """Return the subtask that owns a key group."""
    return group * parallelism // max_parallelism


def subtask_of_key(key: Any, max_parallelism: int, parallelism: int) -> int:
    """Return the subtask that owns a key.

    Raises:
        TypeError: it is no key.
    """
    return subtask_of(key_group(key, max_parallelism), max_parallelism, parallelism)


def key_group_range(subtask: int, max_parallelism: int, parallelism: int) -> range:
    """Return the key groups that a subtask owns."""
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    end = ((subtask + 1) * max_parallelism - 1) // parallelism
    return range(start, end + 1)


def default_max_parallelism(parallelism: int, *of_operators: int) -> int:
    """Return the number of key groups for a program that does not set it: twice the parallelism, at most 128.

    An operator that has more subtasks of its own than that raises it to their number.

    Flink's is 128 and more: there a key group costs next to nothing, here each is a subtask of its own in a streaming
    query, with its own copy of broadcast state.
    """
    default = min(2 * parallelism, DEFAULT_MAX_PARALLELISM)
    return min(max(parallelism, default, *of_operators), MAX_MAX_PARALLELISM)


def owners(max_parallelism: int, parallelism: int) -> Sequence[int]:
    """Return the table from key group to owning subtask."""
    return [subtask_of(group, max_parallelism, parallelism) for group in range(max_parallelism)]
