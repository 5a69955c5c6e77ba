"""How near a worker's process is to its memory limit.

State is live Python objects, so it has to fit in the memory of the worker: of all residents of the process together.
The limit is what ``spark.executor.pyspark.memory`` sets for Python workers (an RLIMIT_AS, which counts address space),
or that of the container (a cgroup's, which counts resident memory). Without either there is nothing to compare with.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Memory", "MemoryProbe", "process_memory", "readable"]

# More than any machine has: so a cgroup of the first version says that there is no limit.
_NO_LIMIT = 1 << 50


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
