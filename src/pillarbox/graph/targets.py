"""Codes of subtasks: the grouping keys of the exchange, chosen so that each subtask has a Spark partition of its own.

Spark puts a row into partition ``pmod(murmur3(key), n)``. With codes 0, 1, 2... several subtasks would meet in one
partition while others stay empty; so the codes are searched for.
"""

from __future__ import annotations

__all__ = ["REPORT_TARGET", "SubtaskCodes", "output_target", "spark_hash"]

# Codes below this are the vertices' numbers.
_FIRST_FREE = 1 << 16

# Negative codes never belong to a subtask: they go through to the end of the plan.
REPORT_TARGET = -1

_M32 = 0xFFFFFFFF


def output_target(index: int) -> int:
    """Return the code of an output."""
    return -2 - index


def spark_hash(value: int) -> int:
    """Return Spark SQL's ``hash()`` of one ``bigint``: Murmur3 (x86, 32 bits) of its 8 bytes with seed 42, signed."""
    mixed = 42
    for word in (value & _M32, (value >> 32) & _M32):
        scrambled = (word * 0xCC9E2D51) & _M32
        scrambled = ((scrambled << 15) | (scrambled >> 17)) & _M32
        mixed ^= (scrambled * 0x1B873593) & _M32
        mixed = ((mixed << 13) | (mixed >> 19)) & _M32
        mixed = (mixed * 5 + 0xE6546B64) & _M32
    mixed ^= 8
    mixed ^= mixed >> 16
    mixed = (mixed * 0x85EBCA6B) & _M32
    mixed ^= mixed >> 13
    mixed = (mixed * 0xC2B2AE35) & _M32
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >= 1 << 31 else mixed


class SubtaskCodes:
    """Hands out codes: for the subtasks of a vertex, each in a partition of its own out of ``partitions``."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._next = _FIRST_FREE

    def take(self, vertex: int) -> list[int]:
        """Return the codes of a vertex's subtasks, as many as there are partitions.

        Subtask 0 has the vertex's number, whatever the parallelism: so a program that is started on a checkpoint of
        another parallelism meets the state there, and is refused.
        """
        codes = [vertex]
        taken = {spark_hash(vertex) % self._partitions}
        while len(codes) < self._partitions:
            partition = spark_hash(self._next) % self._partitions
            if partition not in taken:
                taken.add(partition)
                codes.append(self._next)
            self._next += 1
        return codes
