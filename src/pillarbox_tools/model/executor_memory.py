"""The memory that executors need by a formula, and the memory that they use.

The sizes of processes are from ``make bench-processes``, rounded up; the state's factors are from ``make
bench-key-cost``. ``docs/operations.md`` has the same formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pillarbox_tools.model.settings import bytes_in, number_in
from pillarbox_tools.model.snapshot import Snapshot, SnapshotExecutor

_MIB = 1 << 20

#: PySpark's daemon, the starter of home processes, and the memory that workers and homes share with them.
SHARED = 150 * _MIB
#: A Python worker that shares the imports of ``pillarbox.daemon``, and a Python worker that does not.
WORKER = 25 * _MIB
WORKER_ALONE = 95 * _MIB
HOME = 20 * _MIB
#: Bytes per key, and the ratio of the state's size in memory to its pickled size.
KEY = 350
STATE = 4
RECORDS = 3
#: Additional share for growth and for data in functions' fields.
GROWTH = 1 / 3
# Spark's default overhead beyond the JVM's heap, and its minimum.
_JVM_FACTOR = 0.1
_JVM_LEAST = 384 * _MIB
# Spark's default for non-JVM programs on Kubernetes.
_KUBERNETES_FACTOR = 0.4
_STEP = 100 * _MIB


@dataclass(frozen=True)
class _Term:
    """A term of the formula, and its calculation as text."""

    name: str
    bytes: int
    formula: str


@dataclass(frozen=True)
class ExecutorMemory:
    """An executor's memory outside of its JVM's heap, calculated and measured.

    None means unknown.

    Attributes:
        home_bytes: measured memory of its home processes. Also None if there are no such processes.
        worker_bytes: measured memory of its workers with tasks.
        needed: the sum of the terms, with ``home_bytes``, if known, in place of the terms for homes and state.
        overhead: recommended ``spark.executor.memoryOverhead``, ``needed`` plus a third.
        limit: the container's limit in bytes. Also None if there is no limit.
    """

    host: str
    executor: int | None
    terms: list[_Term]
    computed: int
    home_bytes: int | None
    worker_bytes: int | None
    needed: int
    overhead: int
    heap: int
    limit: int | None

    @property
    def name(self) -> str:
        return self.host if self.executor is None else f"{self.host}, process {self.executor}"


def executor_memory_of(snapshot: Snapshot) -> list[ExecutorMemory]:
    executors = snapshot.run.executors
    sent = max((sum(vertex.bytes_out for vertex in epoch.vertices) for epoch in snapshot.epochs), default=0)
    return [
        _memory(executor, snapshot.run.settings, len(executors), math.ceil(sent / len(executors)))
        for executor in executors
    ]


def _memory(executor: SnapshotExecutor, settings: Mapping[str, str], executors: int, sent: int) -> ExecutorMemory:
    heap = _heap(settings)
    jvm = max(round(_JVM_FACTOR * heap), _JVM_LEAST)
    if settings.get("spark.pillarbox.homes", "").strip().lower() == "off":
        executor = _without_homes(executor)
    homes, seen = executor.homes, executor.workers
    home_bytes = executor.home_bytes if homes else None
    cores = _cores(settings, executors)
    workers = max(seen, cores or 0)
    worker = WORKER if settings.get("spark.python.daemon.module") == "pillarbox.daemon" else WORKER_ALONE
    state = executor.keys * KEY + STATE * executor.state_bytes
    of_state = f"{executor.keys:,} keys x {KEY} bytes + {STATE} x {executor.state_bytes:,} bytes"
    terms = [
        _Term("JVM besides its heap", jvm, f"{_JVM_FACTOR:.0%} of the heap, at least {_JVM_LEAST // _MIB} MiB"),
        _Term("shared", SHARED, "daemon, starter, and what processes share with them"),
        _Term("workers", workers * worker, f"{workers:,} x {worker // _MIB} MiB"),
        _Term("homes", homes * HOME, f"{homes:,} x {HOME // _MIB} MiB"),
        _Term("state", state, of_state),
        _Term("records", RECORDS * sent, f"{RECORDS} x {sent:,} bytes of the largest epoch"),
    ]
    computed = sum(term.bytes for term in terms)
    needed = computed if home_bytes is None else computed - homes * HOME - state + home_bytes
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


def _without_homes(executor: SnapshotExecutor) -> SnapshotExecutor:
    sizes = executor.home_bytes, executor.worker_bytes
    total = None if None in sizes else sum(size or 0 for size in sizes)
    workers = executor.workers + executor.homes
    return replace(executor, homes=0, home_bytes=None, workers=workers, worker_bytes=total)


def _is_local(settings: Mapping[str, str]) -> bool:
    return settings.get("spark.master", "").partition("[")[0] == "local"


def _heap(settings: Mapping[str, str]) -> int:
    name = "spark.driver.memory" if _is_local(settings) else "spark.executor.memory"
    return bytes_in(settings, name) or 1024 * _MIB


def _cores(settings: Mapping[str, str], executors: int) -> int | None:
    cores, all_cores = number_in(settings, "spark.executor.cores"), number_in(settings, "cores")
    if cores is not None and not _is_local(settings):
        return cores
    return None if all_cores is None else math.ceil(all_cores / executors)


def _limit(reported: int | None, settings: Mapping[str, str], heap: int) -> int | None:
    """Return the container's limit that tasks report, or a lower limit that Spark requests from the cluster."""
    master = settings.get("spark.master", "")
    if not master.startswith(("yarn", "k8s")):
        return reported
    factor = _KUBERNETES_FACTOR if master.startswith("k8s") else _JVM_FACTOR
    setting = settings.get("spark.executor.memoryOverheadFactor", "")
    overhead = bytes_in(settings, "spark.executor.memoryOverhead")
    if overhead is None:
        overhead = max(round(heap * (float(setting) if setting else factor)), _JVM_LEAST)
    asked = heap + overhead + (bytes_in(settings, "spark.executor.pyspark.memory") or 0)
    return asked if reported is None else min(reported, asked)
