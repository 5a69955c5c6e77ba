"""How many requests may begin in a second: buckets that fill as time passes.

Tasks that run at the same time are in different Python workers, and a task may be in another one in each epoch. So
a bucket is a moment in a file that all workers of an executor see. It is one of the monotonic clock, which is the same
in all processes of a machine. A new bucket is empty: nobody knows what another machine has just begun.
"""

from __future__ import annotations

import os
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from time import monotonic

try:
    import fcntl
except ImportError:  # Windows, where Spark starts a worker for each task
    fcntl = None  # type: ignore[assignment]

#: After a pause, such as that between two epochs, this time (seconds) is made up for: what could have begun in it
#: begins at once. It bounds how many requests begin in one moment.
CATCH_UP = 0.5
#: The name of the counter of milliseconds in which the next request waited for its turn.
RATE_LIMITED = "rate_limited_ms"

# So that no half minute has more requests than the limit says, a bucket fills a little more slowly.
_STEADY = 30 / (30 + CATCH_UP)

# How long a request waits at a closed bucket (seconds): whoever waits there is about to be cancelled.
_CLOSED = 1.0

_MOMENT = struct.Struct("<d")


class Bucket(ABC):
    """Holds requests that may begin, at most as many as ``CATCH_UP`` seconds allow. Any thread may use it.

    Args:
        rate: requests per second.
    """

    def __init__(self, rate: float) -> None:
        self._interval = 1 / (rate * _STEADY)

    def take(self) -> float:
        """Take a request out of the bucket, and return 0; or return how many seconds it takes until there is one."""
        return self._update(self._taken)

    def _taken(self, moment: float | None) -> tuple[float, float | None]:
        """Return the seconds to wait, and the moment to keep: when there will be a request in the bucket again."""
        now = monotonic()
        if moment is None or moment > now + self._interval:
            # A new bucket, or one that had another rate or was written before the machine was started.
            moment = now
        if moment > now:
            return moment - now, None
        return 0.0, max(moment, now - CATCH_UP) + self._interval

    @abstractmethod
    def _update(self, taken: Callable[[float | None], tuple[float, float | None]]) -> float:
        """Call ``taken`` with the moment that is kept, alone; keep what it returns, and return what it says."""

    def close(self) -> None:
        """Release what belongs to this object; the bucket stays."""


class _InMemory(Bucket):
    _moment: float | None = None

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self._lock = threading.Lock()

    def _update(self, taken: Callable[[float | None], tuple[float, float | None]]) -> float:
        with self._lock:
            wait, moment = taken(self._moment)
            if moment is not None:
                self._moment = moment
            return wait


class _InFile(Bucket):
    def __init__(self, rate: float, file: int) -> None:
        super().__init__(rate)
        # The lock of a file is that of its description: of all threads that use this object.
        self._lock = threading.Lock()
        self._file: int | None = file

    def _update(self, taken: Callable[[float | None], tuple[float, float | None]]) -> float:
        with self._lock:
            if self._file is None:
                return _CLOSED
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                kept = os.pread(self._file, _MOMENT.size, 0)
                wait, moment = taken(_MOMENT.unpack(kept)[0] if len(kept) == _MOMENT.size else None)
                if moment is not None:
                    os.pwrite(self._file, _MOMENT.pack(moment), 0)
                return wait
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release what belongs to this object; the bucket stays."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None


class Place:
    """One of the places of an operator's tasks, each of which has a bucket of its own. To be released."""

    def __init__(self, number: int, file: int | None = None) -> None:
        self.number = number
        self._file = file

    def release(self) -> None:
        """Let another task have it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Rates(ABC):
    """Where the buckets of a job's operators are."""

    @abstractmethod
    def bucket(self, name: str, rate: float) -> Bucket:
        """Return a bucket by its name: the same one for all who ask."""

    @abstractmethod
    def take_place(self, name: str, places: int) -> Place:
        """Return one of the places of tasks that run at the same time, where their number is all that is known."""


class RatesInMemory(Rates):
    """Buckets of tasks that run in this process, one after another."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}

    def bucket(self, name: str, rate: float) -> Bucket:
        """Return a bucket."""
        found = self._buckets.get(name)
        if found is None:
            found = self._buckets[name] = _InMemory(rate)
        return found

    def take_place(self, name: str, places: int) -> Place:
        """Return the only place that is needed."""
        return Place(0)


class RatesInFiles(Rates):
    """Buckets of tasks that run in several processes of this machine.

    Args:
        folder: where all of these processes, and nobody else, have their files.
        job: tells jobs apart.
    """

    def __init__(self, folder: str, job: str) -> None:
        self._folder = os.path.join(folder, "pillarbox-rates")
        self._job = job

    def _open(self, name: str) -> int:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        path = os.path.join(self._folder, sha256(f"{self._job}\0{name}".encode()).hexdigest()[:32])
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def bucket(self, name: str, rate: float) -> Bucket:
        """Return a bucket."""
        return _InFile(rate, self._open(name))

    def take_place(self, name: str, places: int) -> Place:
        """Return a place that nobody has, or else any: its bucket is shared then."""
        for number in range(places):
            file = self._open(f"{name} taken {number}")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(file)
            else:
                return Place(number, file)
        return Place(os.getpid() % places)


@dataclass(frozen=True)
class RateScope:
    """Which buckets a task uses.

    Attributes:
        rates: where they are.
        partitions: how many tasks of a vertex after a shuffle run at a time, at most.
        partition: which of these the task belongs to.
        shares_all: whether all tasks of a partition have one limit together, as Flink's subtask has one.
    """

    rates: Rates = field(default_factory=RatesInMemory)
    partitions: int = 1
    partition: int = 0
    shares_all: bool = False

    @staticmethod
    def of_worker(job: str, partitions: int, partition: int) -> RateScope:
        """Return the scope of a task in a Spark worker, whose executor has a folder for the time of the application."""
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
        rates = RatesInFiles(folder, job) if folder and fcntl is not None else RatesInMemory()
        return RateScope(rates, partitions, partition, shares_all=True)
