"""The memory that executors need, term by term, and what of it is measured.

``make bench-processes`` measures the sizes of processes, which are rounded up here, and ``make bench-key-cost`` the
factors of state. ``docs/operations.md`` has the same formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pillarbox_tools.model.growth import bytes_of
from pillarbox_tools.model.snapshot import ExecutorRun, Snapshot

_MIB = 1 << 20

#: PySpark's daemon, the starter of homes, and what workers and homes share with these.
SHARED = 250 * _MIB
#: A Python worker, if it shares what ``pillarbox.daemon`` has imported, and if it has imported all by itself.
WORKER = 25 * _MIB
WORKER_ALONE = 95 * _MIB
#: A home without state.
HOME = 20 * _MIB
#: A key takes so many bytes, and its state so many times what is written of it.
KEY = 350
STATE = 4
#: Records of an epoch take so many times what is sent of them.
RECORDS = 3
#: Of what is needed, for growth, and for what functions keep in fields.
GROWTH = 1 / 3
# Spark's own default for what a JVM takes besides its heap, and the least.
_JVM_FACTOR = 0.1
_JVM_LEAST = 384 * _MIB
# Spark's default of Kubernetes for programs that are not Java's.
_KUBERNETES_FACTOR = 0.4
_STEP = 100 * _MIB


@dataclass(frozen=True)
class Term:
    """A term of the formula.

    Attributes:
        formula: how it is computed, for people.
    """

    name: str
    bytes: int
    formula: str


@dataclass(frozen=True)
class ExecutorMemory:
    """The memory of an executor besides the heap of its JVM, as the formula has it and as its tasks have measured it.

    Attributes:
        executor: the process of its JVM; None: it is not known.
        terms: of the formula.
        computed: their sum.
        home_bytes: what its homes take, as measured; None: it is not known, or there are none.
        worker_bytes: what the workers take in which tasks run, as measured; None: it is not known.
        needed: the sum, with the measured bytes of homes instead of the terms for homes and state, if they are known.
        overhead: what to set ``spark.executor.memoryOverhead`` to: what is needed, and a third.
        heap: of its JVM.
        limit: bytes that its container may use; None: it is not known, or there is no limit.
    """

    host: str
    executor: int | None
    terms: list[Term]
    computed: int
    home_bytes: int | None
    worker_bytes: int | None
    needed: int
    overhead: int
    heap: int
    limit: int | None

    @property
    def name(self) -> str:
        """The executor, for people."""
        return self.host if self.executor is None else f"{self.host}, process {self.executor}"


def executor_memory_of(snapshot: Snapshot) -> list[ExecutorMemory]:
    """Return the memory of each executor in which tasks of the query live."""
    executors = snapshot.run.executors
    sent = max((sum(vertex.bytes_out for vertex in epoch.vertices) for epoch in snapshot.epochs), default=0)
    return [
        _memory(each, snapshot.run.settings, len(executors), math.ceil(sent / len(executors))) for each in executors
    ]


def _memory(executor: ExecutorRun, settings: Mapping[str, str], executors: int, sent: int) -> ExecutorMemory:
    heap = _heap(settings)
    jvm = max(round(_JVM_FACTOR * heap), _JVM_LEAST)
    if settings.get("spark.pillarbox.homes", "").strip().lower() == "off":
        executor = _without_homes(executor)
    homes, seen = executor.homes, executor.workers
    home_bytes = executor.home_bytes if homes else None
    cores = _cores(settings, executors)
    workers = max(seen, 2 * cores if cores is not None else 0)
    worker = WORKER if settings.get("spark.python.daemon.module") == "pillarbox.daemon" else WORKER_ALONE
    of_homes = [
        Term("homes", homes * HOME, f"{homes:,} x {HOME // _MIB} MiB"),
        Term(
            *("state", executor.keys * KEY + STATE * executor.state_bytes),
            f"{executor.keys:,} keys x {KEY} bytes + {STATE} x {executor.state_bytes:,} bytes",
        ),
    ]
    others = [
        Term("JVM besides its heap", jvm, f"{_JVM_FACTOR:.0%} of the heap, at least {_JVM_LEAST // _MIB} MiB"),
        Term("shared", SHARED, "daemon, starter, and what processes share with them"),
        Term("workers", workers * worker, f"{workers:,} x {worker // _MIB} MiB"),
        Term("records", RECORDS * sent, f"{RECORDS} x {sent:,} bytes of the largest epoch"),
    ]
    terms = [*others[:3], *of_homes, others[3]]
    computed = sum(each.bytes for each in terms)
    needed = computed
    if home_bytes is not None:
        needed += home_bytes - sum(each.bytes for each in of_homes)
    return ExecutorMemory(
        host=executor.host,
        executor=executor.executor,
        terms=terms,
        computed=computed,
        home_bytes=home_bytes,
        worker_bytes=executor.worker_bytes,
        needed=needed,
        overhead=_STEP * math.ceil(needed * (1 + GROWTH) / _STEP),
        heap=heap,
        limit=_limit(executor.limit, settings, heap),
    )


def _without_homes(executor: ExecutorRun) -> ExecutorRun:
    """Return an executor in which tasks with state live in Python workers."""
    sizes = executor.home_bytes, executor.worker_bytes
    known = None if None in sizes else sum(each or 0 for each in sizes)
    workers = executor.workers + executor.homes
    return replace(executor, homes=0, home_bytes=None, workers=workers, worker_bytes=known)


def _is_local(settings: Mapping[str, str]) -> bool:
    return settings.get("spark.master", "").partition("[")[0] == "local"


def _heap(settings: Mapping[str, str]) -> int:
    name = "spark.driver.memory" if _is_local(settings) else "spark.executor.memory"
    return bytes_of(settings.get(name)) or 1024 * _MIB


def _cores(settings: Mapping[str, str], executors: int) -> int | None:
    """Return the cores of an executor; None: they are not known."""
    said, all_ = settings.get("spark.executor.cores", ""), settings.get("cores", "")
    if said.isdigit() and not _is_local(settings):
        return int(said)
    return math.ceil(int(all_) / executors) if all_.isdigit() else None


def _limit(told: int | None, settings: Mapping[str, str], heap: int) -> int | None:
    """Return the limit of an executor's container: what its tasks have read, or what Spark asks a cluster for."""
    master = settings.get("spark.master", "")
    if not master.startswith(("yarn", "k8s")):
        return told
    factor = _KUBERNETES_FACTOR if master.startswith("k8s") else _JVM_FACTOR
    said = settings.get("spark.executor.memoryOverheadFactor", "")
    overhead = bytes_of(settings.get("spark.executor.memoryOverhead"))
    if overhead is None:
        overhead = max(round(heap * (float(said) if said else factor)), _JVM_LEAST)
    asked = heap + overhead + (bytes_of(settings.get("spark.executor.pyspark.memory")) or 0)
    return asked if told is None else min(told, asked)
