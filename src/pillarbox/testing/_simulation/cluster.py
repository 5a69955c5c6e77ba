"""A simulated cluster, where workers are lost, tasks fail and buffers arrive in any order.

A seed determines all random decisions, so the same seed repeats a run exactly.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pillarbox._elements.buffers import Buffer
from pillarbox._elements.records import Records
from pillarbox._graph.program import Program
from pillarbox._operators.frame.shared_resources import SharedResources
from pillarbox._runtime.local import LocalEpochStore, Savepoint, source_copier
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._task.source_stream_task import SourceStreamTask
from pillarbox._task.vertex import Vertex
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox.testing._program_harness import ProgramHarnessJob
from pillarbox.testing._simulation.turns import Turns

T = TypeVar("T")

#: Each kind of fault, and its probabilities in ``ClusterFaultRates``.
FAULTS: dict[str, tuple[str, ...]] = {
    "move": ("move",),
    "fail": ("fail",),
    "retry": ("lose", "repeat"),
    "kill": ("kill",),
    "restart": ("restart",),
    "rescale": ("rescale",),
    "reorder": ("reorder",),
    "delay": ("delay",),
}


class ClusterWorkerLostError(Exception):
    """A simulated worker was lost, or a task failed on it."""


@dataclass
class ClusterFaultRates:
    """The probability of each fault, drawn for each run, so that some runs have many faults of a single kind.

    Attributes:
        fail: an attempt at a subtask fails at some buffer.
        lose: the result of a successful attempt is lost, and the attempt repeated.
        repeat: a completed epoch is not committed, and is repeated.
        kill: a worker is lost with all its tasks, and replaced.
        delay: the maximum advance of the clock before each step (ms). Not a probability.
        seeds: whether the process's random number generator is reseeded, as user code may do.
    """

    workers: int
    move: float
    fail: float
    lose: float
    repeat: float
    kill: float
    restart: float
    rescale: float
    reorder: float
    delay: int
    seeds: bool

    @staticmethod
    def draw(rng: random.Random, faults: Collection[str] | None = None) -> ClusterFaultRates:
        rates = ClusterFaultRates(
            workers=rng.choice([1, 2, 2, 3]),
            move=rng.choice([0.0, 0.3, 0.7, 1.0]),
            fail=rng.choice([0.0, 0.0, 0.05, 0.2]),
            lose=rng.choice([0.0, 0.0, 0.05, 0.2]),
            repeat=rng.choice([0.0, 0.0, 0.1, 0.4]),
            kill=rng.choice([0.0, 0.0, 0.1, 0.3]),
            restart=rng.choice([0.0, 0.1, 0.4]),
            rescale=0.5,
            reorder=rng.choice([0.0, 0.5, 1.0]),
            delay=rng.choice([0, 0, 7, 40]),
            seeds=rng.random() < 0.5,
        )
        if faults is None:
            return rates
        changed: dict[str, Any] = {name: 0 for kind, names in FAULTS.items() if kind not in faults for name in names}
        if "rescale" in faults and "restart" not in faults:
            del changed["restart"]
            changed["rescale"] = 1
        return replace(rates, **changed)


@dataclass
class ClusterStepLog:
    """A log of a simulated run's steps."""

    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        self.lines.append(line)


class SimulatedClusterJob(ProgramHarnessJob):
    """A job on a simulated cluster."""

    def __init__(
        self,
        program: Program,
        rates: ClusterFaultRates,
        turns: Turns,
        rng: random.Random,
        steps: ClusterStepLog,
        *,
        clock: ManualProcessingTimeService,
    ) -> None:
        super().__init__(turns, program, clock=clock)
        self._turns = turns
        self._rates = rates
        self._rng = rng
        self._steps = steps
        self._now = clock
        self._last_worker: dict[tuple[int, int], int] = {}
        # Times of started epochs. A repeated epoch keeps its time, as under Spark.
        self._times: dict[int, int] = {}

    def attempt_epoch(self, inputs: dict[int, Any], *, bounded: bool) -> dict[str, list[Any]] | None:
        """Run an epoch and return its output, or None if the epoch was not committed."""
        rng, rates = self._rng, self._rates
        for worker in range(rates.workers):
            if rng.random() < rates.kill:
                self._steps.add(f"worker {worker} is lost")
                self._leave(worker)
        outcome = self._run_epoch(inputs, bounded)
        if rng.random() < rates.repeat:
            self._steps.add(f"epoch {self.epoch} is not committed")
            return None
        self._commit(outcome)
        return outcome.outputs

    def go_back(self, epoch: int, savepoint: Savepoint, *, workers_stay: bool) -> None:
        self.epoch = epoch
        self._times = {number: time for number, time in self._times.items() if number < epoch}
        self._stores = {subtask: store.copy() for subtask, store in savepoint.items()}
        if not workers_stay:
            self.reset()

    def keep_times_of(self, former: SimulatedClusterJob) -> None:
        self._times = {number: time for number, time in former._times.items() if number < self.epoch}

    def stop_faults(self) -> None:
        self._rates = replace(self._rates, fail=0.0, lose=0.0, repeat=0.0, kill=0.0, restart=0.0)

    def tick(self) -> None:
        if self._rates.delay:
            self._turns.set_clock(self._now.current_processing_time() + self._rng.randrange(self._rates.delay))
        self._turns.settle()

    @property
    def epoch_time(self) -> int:
        assert self._epoch_time is not None
        return self._epoch_time

    # -- hooks of LocalJob --

    def _time_of_epoch(self) -> int:
        return self._times.setdefault(self.epoch, self._now.current_processing_time())

    def _in_order(self, places: Sequence[T]) -> Sequence[T]:
        return self._rng.sample(places, len(places))

    def _run_partition(self, number: int, partition: int, runs: Iterable[Records], bounded: bool) -> list[Buffer]:
        runs, copied = list(runs), source_copier(self.program, number).copied
        while True:
            # Each attempt reads its own copies, because a function may change its records.
            read = [run.copied(copied) for run in runs]
            worker = self._choose_worker(number, partition)
            task = self._resident_source(worker, number)
            try:
                parts = task.run_epoch(
                    self._until_lost(read), subtask=partition, checkpoint_id=self.epoch, bounded=bounded
                )
                sent = self._take(parts)
            except BaseException as error:
                self._failed(worker, (worker, number), error)
                continue
            if not self._is_lost(number, partition, worker):
                return sent

    def _run_subtask(self, vertex: Vertex, subtask: int, arrived: list[Buffer]) -> tuple[list[Buffer], LocalEpochStore]:
        while True:
            store = LocalEpochStore(self._store(vertex.uid, subtask))
            task_store = None if self.program.batch else store
            worker = self._choose_worker(vertex.number, subtask)
            task_id = (worker, vertex.number, subtask)
            task = self._resident(task_id, task_store)
            try:
                sent = self._take(
                    task.run_epoch(self._until_lost(self._portions(arrived)), task_store, self._epoch_time)
                )
            except BaseException as error:
                self._failed(worker, task_id, error)
                continue
            self.tick()
            if not self._is_lost(vertex.number, subtask, worker):
                return sent, store

    def _choose_worker(self, number: int, subtask: int) -> int:
        worker = self._last_worker.get((number, subtask))
        if worker is None or self._rng.random() < self._rates.move:
            worker = self._rng.randrange(self._rates.workers)
        self._last_worker[number, subtask] = worker
        return worker

    def _vertex(self, number: int) -> Vertex:
        vertex = super()._vertex(number)
        # If subtasks can move between workers, no request is carried into the next epoch.
        vertex.shared = SharedResources(stay=not self._rates.move or self._rates.workers == 1)
        return vertex

    def _resident_source(self, worker: int, number: int) -> SourceStreamTask:
        task = self._sources.get((worker, number))
        if task is None:
            task = self._sources[worker, number] = self._new_source(number)
            task.restore()
        return task

    def _resident(self, task_id: tuple[int, int, int], store: LocalEpochStore | None) -> MultipleInputStreamTask:
        """Return the worker's task for a subtask, restored unless its state has the version in ``store``."""
        if store is None and task_id in self._tasks:
            self._tasks.pop(task_id).close()
        for _ in range(2):
            task = self._tasks.get(task_id)
            if task is None:
                _, number, subtask = task_id
                task = self._tasks[task_id] = self._new_task(number, subtask)
            if task.restore(store):
                return task
            self._steps.add(f"task {task_id} has diverged")
            del self._tasks[task_id]
            task.cancel()
        raise AssertionError("a new task has nothing that could differ from the store")

    def _leave(self, worker: int) -> None:
        tasks: list[dict[Any, Any]] = [self._tasks, self._sources]
        for residents in tasks:
            for task_id in [task_id for task_id in residents if task_id[0] == worker]:
                residents.pop(task_id).cancel()

    def _failed(self, worker: int, task_id: tuple[int, ...], error: BaseException) -> None:
        if not _is_planned(error):
            raise error
        if self._rng.random() < 0.5:
            self._steps.add(f"epoch {self.epoch}: worker {worker} is lost in task {task_id}")
            self._leave(worker)
        else:
            self._steps.add(f"epoch {self.epoch}: task {task_id} fails")
            tasks: list[dict[Any, Any]] = [self._tasks, self._sources]
            for residents in tasks:
                if task_id in residents:
                    residents.pop(task_id).cancel()

    def _is_lost(self, number: int, subtask: int, worker: int) -> bool:
        lost = self._rng.random() < self._rates.lose
        if lost:
            self._steps.add(
                f"epoch {self.epoch}: the work of vertex {number}, subtask {subtask} in worker {worker} is lost"
            )
        return lost

    def _portions(self, arrived: list[Buffer]) -> list[list[Buffer]]:
        rng = self._rng
        if rng.random() < self._rates.reorder:
            arrived = rng.sample(arrived, len(arrived))
        portions = []
        start = 0
        while start < len(arrived):
            end = start + rng.choice([1, 2, 5, 100])
            portions.append(arrived[start:end])
            start = end
        return portions

    def _until_lost(self, items: Sequence[T]) -> Iterator[T]:
        fails_at = None
        if self._rng.random() < self._rates.fail:
            fails_at = self._rng.randrange(len(items) + 1)
        return _until(items, fails_at, self._rates.seeds)

    def _take(self, parts: Iterator[list[Buffer]]) -> list[Buffer]:
        gives_up_after = self._rng.randrange(3) if self._rng.random() < self._rates.fail / 2 else None
        sent: list[Buffer] = []
        for number, part in enumerate(parts):
            if number == gives_up_after:
                parts.close()  # type: ignore[attr-defined]
                raise ClusterWorkerLostError
            sent += part
        return sent


def _until(items: Sequence[T], fails_at: int | None, seeds: bool) -> Iterator[T]:
    for number, item in enumerate(items):
        if number == fails_at:
            raise ClusterWorkerLostError
        yield item
    if fails_at == len(items):
        raise ClusterWorkerLostError
    if seeds:
        random.seed(7)


def _is_planned(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ClusterWorkerLostError):
            return True
        error = error.__cause__ or error.__context__
    return False
