"""How near a worker is to its memory limit.

State is live Python objects, so it has to fit in the memory of the worker: of all residents of the process together.
Two limits may be there. ``spark.executor.pyspark.memory`` sets one for each Python worker (an RLIMIT_AS, which counts
address space). A container (a control group) has one for all that runs in it: the executor's JVM and every worker, of
each level after a shuffle as many as there are cores. So it is compared with what they all use together. Without
either there is nothing to compare with.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

# More than any machine has: so a control group of the first version says that there is no limit.
_NO_LIMIT = 1 << 50
# From these shares of a limit on memory is scarce. A JVM is given most of its container on purpose, and takes all of
# its heap in time: so there the share is larger.
_SCARCE = 0.7
# How many times as long as a measurement took the next one is put off.
_PAUSE = 1000
_SCARCE_IN_CONTAINER = 0.9


class Memory(NamedTuple):
    """Bytes in use, and the most there may be.

    Attributes:
        used: by all that share the limit.
        limit: the most that they may use.
        share: what this process has of a container's memory; None: the limit is of this process alone.
    """

    used: int
    limit: int
    share: int | None = None

    @property
    def is_scarce(self) -> bool:
        """Whether so little is left that the user should know."""
        return self.used >= (_SCARCE if self.share is None else _SCARCE_IN_CONTAINER) * self.limit

    @property
    def left(self) -> int:
        """How much this process could still take if all the others gave theirs back."""
        return self.limit - (self.used if self.share is None else self.share)


MemoryProbe = Callable[[], Memory | None]


class _Group(NamedTuple):
    """The files of a control group that say what its processes use together, and may use."""

    used: str
    limit: str
    statistics: str
    #: Parts of what is used that the kernel takes back before it ends a process: files that it keeps at hand.
    given_back: frozenset[bytes]


def process_memory(root: str = "/sys/fs/cgroup", process: str = "/proc/self") -> Memory | None:
    """Return the memory of this process against its limit, or the container's against that one if it is the scarce one.

    Args:
        root: where the control groups are.
        process: the folder in which the kernel tells of this process.

    Returns:
        None where there is no limit, or no way to know.
    """
    try:
        size, resident, *_ = map(int, _read(f"{process}/statm").split())
    except (OSError, ValueError):
        return None
    import resource  # only where there is /proc

    page = os.sysconf("SC_PAGE_SIZE")
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    own = Memory(size * page, address_space) if address_space != resource.RLIM_INFINITY else None
    if own is not None and own.is_scarce:
        return own
    shared = _container_memory(root, process, resident * page)
    return shared if shared is not None and (own is None or shared.is_scarce) else own


def resident_bytes(process: str = "/proc/self") -> int | None:
    """Return the memory of this process that is not swapped out; None: there is no way to know."""
    try:
        return int(_read(f"{process}/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


class PrivateMemory:
    """The memory of this process without pages that other processes have, too.

    A sum over processes counts no page twice, although homes share what their starter has imported. The kernel looks at
    all pages to find out (``Private_...``): 2 ms for a small process, and 10 ms for each GiB. So it is asked again only
    after a thousand times as long as it took; in between, the shared part is taken to be what it was. Any thread.

    Args:
        process: the folder in which the kernel tells of this process.
        clock: seconds.
    """

    def __init__(self, process: str = "/proc/self", clock: Callable[[], float] = time.perf_counter) -> None:
        self._process = process
        self._clock = clock
        # The process that was measured, its bytes in shared pages, and when to measure again.
        self._measured = (0, 0, 0.0)

    def bytes(self) -> int | None:
        """Return the bytes of the process; None: the kernel does not tell."""
        resident = resident_bytes(self._process)
        if resident is None:
            return None
        pid, shared, until = self._measured
        began = self._clock()
        if pid != os.getpid() or began >= until:  # a fork has other pages than its parent
            shared = max(0, resident - self._private(resident))
            self._measured = (os.getpid(), shared, began + _PAUSE * (self._clock() - began))
        return max(0, resident - shared)

    def _private(self, resident: int) -> int:
        try:
            lines = _read(f"{self._process}/smaps_rollup").splitlines()
            return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(b"Private_"))
        except (OSError, ValueError):  # a kernel without it, or one that does not let a process look at itself
            return resident


#: The memory of this process alone.
private_memory = PrivateMemory()


def container_limit(root: str = "/sys/fs/cgroup", process: str = "/proc/self") -> int | None:
    """Return how many bytes all processes of this container may use; None: there is no limit, or no way to know."""
    found = []
    for group in _groups(root, process):
        try:
            found.append(int(_read(group.limit)))
        except (OSError, ValueError):  # it has no limit any more
            continue
    return min(found, default=None)


def _container_memory(root: str, process: str, share: int) -> Memory | None:
    """Return what the processes of a container use of its limit: of several around each other, the fullest one's."""
    found = [memory for group in _groups(root, process) if (memory := _group_memory(group, share)) is not None]
    return max(found, key=lambda memory: memory.used / memory.limit, default=None)


def _group_memory(group: _Group, share: int) -> Memory | None:
    try:
        used, limit = int(_read(group.used)), int(_read(group.limit))
        # To count them the kernel goes through the groups of all processors, which there is a reason for when it is
        # near the limit.
        if Memory(used, limit, share).is_scarce:
            named = (line.split() for line in _read(group.statistics).splitlines())
            used -= sum(int(amount) for name, amount in named if name in group.given_back)
    except (OSError, ValueError):  # it is gone, or has no limit any more
        return None
    # The kernel counts them at different times.
    return Memory(max(used, share), limit, share)


@cache
def _groups(root: str, process: str) -> tuple[_Group, ...]:
    """Return the control groups around this process that have a limit. They are those of its executor, for its life."""
    try:
        lines = _read(f"{process}/cgroup").decode().splitlines()
    except OSError:
        lines = []
    paths = {kind: path for _, kind, path in (line.split(":", 2) for line in lines if line.count(":") >= 2)}
    first = next((path for kinds, path in paths.items() if "memory" in kinds.split(",")), "/")
    found = [
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
    return tuple(group for group in found if _is_limited(group))


def _upwards(root: str, path: str) -> list[str]:
    """Return the folders from a group's own up to the root, which in a container is that of the container itself."""
    names = [name for name in path.split("/") if name not in ("", "..")]
    return ["/".join([root, *names[:length]]) for length in range(len(names), -1, -1)]


def _is_limited(group: _Group) -> bool:
    try:
        return int(_read(group.limit)) < _NO_LIMIT
    except (OSError, ValueError):  # no such group, or it says "max"
        return False


def _read(path: str) -> bytes:
    """Return what the kernel says in a small file. Each epoch asks, and Python's text files take five times as long."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 1 << 14)
    finally:
        os.close(file)


def readable(size: float) -> str:
    """Return a number of bytes as people write it."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    shown = f"{amount:.0f}" if unit == "bytes" else f"{amount:.1f}".removesuffix(".0")
    return f"{shown} {unit}"
