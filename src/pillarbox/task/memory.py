"""How near a worker's process is to its memory limit, and which keys hold most of a task's state.

State is live Python objects, so it has to fit in the memory of the worker: of all residents of the process together.
The limit is what ``spark.executor.pyspark.memory`` sets for Python workers (an RLIMIT_AS, which counts address space),
or that of the container (a cgroup's, which counts resident memory). Without either there is nothing to compare with.
"""

from __future__ import annotations

import heapq
import os
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

__all__ = ["Memory", "MemoryProbe", "largest_rows", "process_memory", "readable"]

# More than any machine has: so a cgroup of the first version says that there is no limit.
_NO_LIMIT = 1 << 50
_SAMPLE = 64


class Memory(NamedTuple):
    """Bytes in use, and the most there may be."""

    used: int
    limit: int


MemoryProbe = Callable[[], Memory | None]


def process_memory() -> Memory | None:
    """Return the memory of this process against its limit; None where there is no limit, or no way to know."""
    try:
        size, resident, *_ = map(int, _read("/proc/self/statm").split())
    except (OSError, ValueError):
        return None
    import resource  # only where there is /proc

    page = os.sysconf("SC_PAGE_SIZE")
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        return Memory(size * page, address_space)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = int(_read(path))
        except (OSError, ValueError):  # no such cgroup, or it says "max"
            continue
        if limit < _NO_LIMIT:
            return Memory(resident * page, limit)
    return None


def _read(path: str) -> bytes:
    """Return what the kernel says in a small file. Each epoch asks, and Python's text files take five times as long."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def readable(size: int) -> str:
    """Return a number of bytes as people write it."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def largest_rows(rows: dict[Any, list[Any]], count: int = 3) -> list[tuple[Any, int]]:
    """Return the keys whose rows take most memory, and about how many bytes each takes.

    It allocates next to nothing: it is asked when there is nothing left.
    """
    sizes = ((_rough_size(row), number, key) for number, (key, row) in enumerate(rows.items()))
    return [(key, size) for size, _, key in heapq.nlargest(count, sizes)]


def _rough_size(value: Any, depth: int = 3) -> int:
    """Return about how many bytes a value takes: of large containers, the first elements stand for all."""
    size = sys.getsizeof(value)
    if depth and isinstance(value, (list, tuple, set, dict)) and value:
        elements: Iterable[Any] = value
        if isinstance(value, dict):
            elements = (part for entry in value.items() for part in entry)
        sampled = [_rough_size(element, depth - 1) for element in islice(elements, _SAMPLE)]
        parts = 2 * len(value) if isinstance(value, dict) else len(value)
        size += sum(sampled) * parts // len(sampled)
    return size
