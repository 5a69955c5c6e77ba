"""Measures a worker process's memory and its memory limit.

``spark.executor.pyspark.memory`` limits the address space of each Python worker (RLIMIT_AS). A container (control
group) limits the memory of the executor's JVM and all workers together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

# Version 1 control groups write a larger number for "no limit".
_NO_LIMIT = 1 << 50
# Memory above this share of the limit is scarce. A container's share is larger, as a JVM ends up using all its heap.
_SCARCE = 0.7
# Pause between measurements, as a multiple of a measurement's duration.
_PAUSE = 1000
_SCARCE_IN_CONTAINER = 0.9


class Memory(NamedTuple):
    """Memory in use and its limit, in bytes.

    Attributes:
        share: this process's part of the memory in use, if the limit is a container's; otherwise None.
    """

    used: int
    limit: int
    share: int | None = None

    @property
    def is_scarce(self) -> bool:
        return self.used >= (_SCARCE if self.share is None else _SCARCE_IN_CONTAINER) * self.limit

    @property
    def left(self) -> int:
        return self.limit - (self.used if self.share is None else self.share)


MemoryProbe = Callable[[], Memory | None]


class _Group(NamedTuple):
    used: str
    limit: str
    statistics: str
    #: Cached files, which the kernel reclaims first.
    reclaimable: frozenset[bytes]


def process_memory(root: str = "/sys/fs/cgroup", process: str = "/proc/self") -> Memory | None:
    """Return the used memory and the limit of this process or, if its limit is nearer, of the container.

    Returns None if there is no limit or no ``/proc``.
    """
    try:
        size, resident, *_ = map(int, _read(f"{process}/statm").split())
    except (OSError, ValueError):
        return None
    import resource

    page = os.sysconf("SC_PAGE_SIZE")
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    own = Memory(size * page, address_space) if address_space != resource.RLIM_INFINITY else None
    if own is not None and own.is_scarce:
        return own
    shared = _container_memory(root, process, resident * page)
    return shared if shared is not None and (own is None or shared.is_scarce) else own


def resident_bytes(process: str = "/proc/self") -> int | None:
    try:
        return int(_read(f"{process}/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


class PrivateMemory:
    """Measures this process's memory that is not shared with other processes. Thread-safe.

    Processes that run tasks share imported modules, so only their private memory can be summed. The kernel scans all
    pages to count it (10 ms per GiB). Most calls therefore assume that the amount of shared memory has not changed.
    """

    def __init__(self, process: str = "/proc/self", clock: Callable[[], float] = time.perf_counter) -> None:
        self._process = process
        self._clock = clock
        # Pid, its shared bytes, time of the next measurement.
        self._measured = (0, 0, 0.0)

    def bytes(self) -> int | None:
        resident = resident_bytes(self._process)
        if resident is None:
            return None
        pid, shared, until = self._measured
        began = self._clock()
        if pid != os.getpid() or began >= until:
            shared = max(0, resident - self._private(resident))
            self._measured = (os.getpid(), shared, began + _PAUSE * (self._clock() - began))
        return max(0, resident - shared)

    def _private(self, resident: int) -> int:
        try:
            lines = _read(f"{self._process}/smaps_rollup").splitlines()
            return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(b"Private_"))
        except (OSError, ValueError):  # the kernel is old or forbids it
            return resident


private_memory = PrivateMemory()


def container_limit(root: str = "/sys/fs/cgroup", process: str = "/proc/self") -> int | None:
    limits = []
    for group in _groups(root, process):
        try:
            limits.append(int(_read(group.limit)))
        except (OSError, ValueError):
            continue
    return min(limits, default=None)


def _container_memory(root: str, process: str, share: int) -> Memory | None:
    memories = [memory for group in _groups(root, process) if (memory := _group_memory(group, share)) is not None]
    return max(memories, key=lambda memory: memory.used / memory.limit, default=None)


def _group_memory(group: _Group, share: int) -> Memory | None:
    try:
        used, limit = int(_read(group.used)), int(_read(group.limit))
        # Only near the limit, because the kernel adds up all processors.
        if Memory(used, limit, share).is_scarce:
            named = (line.split() for line in _read(group.statistics).splitlines())
            used -= sum(int(amount) for name, amount in named if name in group.reclaimable)
    except (OSError, ValueError):
        return None
    # The kernel counts the two values at different times.
    return Memory(max(used, share), limit, share)


@cache
def _groups(root: str, process: str) -> tuple[_Group, ...]:
    try:
        lines = _read(f"{process}/cgroup").decode().splitlines()
    except OSError:
        lines = []
    paths = {kind: path for _, kind, path in (line.split(":", 2) for line in lines if line.count(":") >= 2)}
    first = next((path for kinds, path in paths.items() if "memory" in kinds.split(",")), "/")
    groups = [
        *(
            _Group(
                f"{folder}/memory.current",
                f"{folder}/memory.max",
                f"{folder}/memory.stat",
                frozenset({b"inactive_file", b"active_file", b"slab_reclaimable"}),
            )
            for folder in _upwards(root, paths.get("", "/"))
        ),
        *(
            _Group(
                f"{folder}/memory.usage_in_bytes",
                f"{folder}/memory.limit_in_bytes",
                f"{folder}/memory.stat",
                frozenset({b"total_inactive_file", b"total_active_file"}),
            )
            for folder in _upwards(f"{root}/memory", first)
        ),
    ]
    return tuple(group for group in groups if _is_limited(group))


def _upwards(root: str, path: str) -> list[str]:
    names = [name for name in path.split("/") if name not in ("", "..")]
    return ["/".join([root, *names[:length]]) for length in range(len(names), -1, -1)]


def _is_limited(group: _Group) -> bool:
    try:
        return int(_read(group.limit)) < _NO_LIMIT
    except (OSError, ValueError):
        return False


def _read(path: str) -> bytes:
    """Read a file, five times as fast as Python's text files."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 1 << 14)
    finally:
        os.close(file)


def readable(size: float) -> str:
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    shown = f"{amount:.0f}" if unit == "bytes" else f"{amount:.1f}".removesuffix(".0")
    return f"{shown} {unit}"
