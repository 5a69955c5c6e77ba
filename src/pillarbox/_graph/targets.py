"""Computes subtask codes (grouping keys of shuffles) that spread subtasks evenly over Spark's partitions.

Spark puts a row into partition ``pmod(murmur3(key), n)``. The codes 0, 1, 2... would leave some partitions empty.
Murmur3 of a ``bigint`` can be inverted, so codes are chosen whose hashes are consecutive numbers.
"""

from __future__ import annotations

from pillarbox._task.vertex import REPORT_TARGET

# The version of the codes, stored in checkpoints.
CODES = 2

_M32 = 0xFFFFFFFF


def output_target(index: int) -> int:
    """Return the code of the output ``index``: a negative number less than ``REPORT_TARGET``."""
    return REPORT_TARGET - 1 - index


def _rotated(word: int, by: int) -> int:
    return ((word << by) | (word >> (32 - by))) & _M32


def _scrambled(word: int) -> int:
    return (_rotated((word * 0xCC9E2D51) & _M32, 15) * 0x1B873593) & _M32


def spark_hash(value: int) -> int:
    """Return Spark SQL's ``hash()`` of a ``bigint``: signed Murmur3 (x86, 32 bits) with seed 42."""
    mixed = 42
    for word in (value & _M32, (value >> 32) & _M32):
        mixed = (_rotated(mixed ^ _scrambled(word), 13) * 5 + 0xE6546B64) & _M32
    mixed ^= 8
    mixed ^= mixed >> 16
    mixed = (mixed * 0x85EBCA6B) & _M32
    mixed ^= mixed >> 13
    mixed = (mixed * 0xC2B2AE35) & _M32
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >= 1 << 31 else mixed


def _inverse(factor: int) -> int:
    return pow(factor, -1, 1 << 32)


def value_of_hash(hashed: int, upper: int) -> int:
    """Return the ``bigint`` whose upper 32 bits are ``upper`` and whose hash is ``hashed``."""
    mixed = hashed & _M32
    mixed ^= mixed >> 16
    mixed = (mixed * _inverse(0xC2B2AE35)) & _M32
    mixed ^= (mixed >> 13) ^ (mixed >> 26)
    mixed = (mixed * _inverse(0x85EBCA6B)) & _M32
    mixed ^= mixed >> 16
    mixed ^= 8
    for scrambled in (_scrambled(upper), 42):
        mixed = _rotated(((mixed - 0xE6546B64) * _inverse(5)) & _M32, 19) ^ scrambled
    word = _rotated((mixed * _inverse(0x1B873593)) & _M32, 17)
    return (upper << 32) | ((word * _inverse(0xCC9E2D51)) & _M32)


def subtask_codes(vertex: int, parallelism: int) -> list[int]:
    """Return a vertex's subtask codes, which have consecutive hashes.

    Subtask 0's code is always the vertex number, so a program with a different parallelism or code version finds this
    state, and is refused.
    """
    first = spark_hash(vertex)
    # Count down if the hashes would overflow 32 bits.
    step = 1 if first + parallelism <= 1 << 31 else -1
    # Nonzero upper bits distinguish codes from vertex numbers.
    return [vertex, *(value_of_hash(first + step * subtask, vertex + 1) for subtask in range(1, parallelism))]
