"""A cluster in this process: workers that come and go, tasks that fail and are run again, buffers in any order.

A generator of random numbers decides what happens, and nothing else does: the same one, the same run.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pillarbox._elements import Buffer, Records
from pillarbox._graph.program import Program
from pillarbox._operators.frame.shared_resources import SharedResources
from pillarbox._runtime.local import EpochStore, Savepoint
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._task.source_stream_task import SourceStreamTask
from pillarbox._task.vertex import Vertex
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox.testing._program_harness import PatientJob
from pillarbox.testing._simulation.turns import Turns

T = TypeVar("T")

#: The kinds of disturbances, and which likelihoods each of them stands for.
FAULTS: dict[str, tuple[str, ...]] = {
    "move": ("hand_over",),
    "fail": ("fail",),
    "retry": ("lose", "repeat"),
    "kill": ("leave",),
    "restart": ("go_back",),
    "rescale": ("rescale",),
    "reorder": ("disorder",),
    "delay": ("tick",),
}


class WorkerLostError(Exception):
    """A worker was lost, or a task failed there."""


@dataclass
class Weather:
    """How likely each disturbance is; drawn for each run, so that some runs have many of one kind and none of others.

    Attributes:
        workers: the number of workers.
        hand_over: that a subtask goes to another worker than the last time.
        fail: that an attempt at a subtask fails at some buffer.
        lose: that an attempt which came through is lost all the same, and made again.
        repeat: that an epoch which came through is not committed, and run again.
        leave: that a worker leaves, with all its residents, and another takes its place.
        go_back: that the query is started again from an earlier savepoint.
        rescale: that it has another parallelism then.
        disorder: that the buffers of a subtask come in any order.
        tick: the most milliseconds that the clock moves on before anything happens.
        seeds: whether the process's random numbers are seeded again and again, as a function of the user's may do.
    """

    workers: int
    hand_over: float
    fail: float
    lose: float
    repeat: float
    leave: float
    go_back: float
    rescale: float
    disorder: float
    tick: int
    seeds: bool

    @staticmethod
    def draw(rng: random.Random, faults: Collection[str] | None = None) -> Weather:
        """Return the weather of one run, with these kinds of disturbances; None: with all."""
        weather = Weather(
            workers=rng.choice([1, 2, 2, 3]),
            hand_over=rng.choice([0.0, 0.3, 0.7, 1.0]),
            fail=rng.choice([0.0, 0.0, 0.05, 0.2]),
            lose=rng.choice([0.0, 0.0, 0.05, 0.2]),
            repeat=rng.choice([0.0, 0.0, 0.1, 0.4]),
            leave=rng.choice([0.0, 0.0, 0.1, 0.3]),
            go_back=rng.choice([0.0, 0.1, 0.4]),
            rescale=0.5,
            disorder=rng.choice([0.0, 0.5, 1.0]),
            tick=rng.choice([0, 0, 7, 40]),
            seeds=rng.random() < 0.5,
        )
        if faults is None:
            return weather
        changed: dict[str, Any] = {name: 0 for kind, names in FAULTS.items() if kind not in faults for name in names}
        if "rescale" in faults and "restart" not in faults:  # a query has to start again to be rescaled
            del changed["go_back"]
            changed["rescale"] = 1
        return replace(weather, **changed)


@dataclass
class Story:
    """What was done in a run, for people."""

    lines: list[str] = field(default_factory=list)

    def tell(self, line: str) -> None:
        self.lines.append(line)


class SimulatedJob(PatientJob):
    """A job on a simulated cluster."""

    def __init__(
        self,
        program: Program,
        weather: Weather,
        turns: Turns,
        rng: random.Random,
        story: Story,
        *,
        clock: ManualProcessingTimeService,
    ) -> None:
        super().__init__(turns, program, clock=clock)
        self._turns = turns
        self._weather = weather
        self._rng = rng
        self._story = story
        self._now = clock
        self._last_worker: dict[tuple[int, int], int] = {}
        # Of epochs that were begun, as Spark notes them: one that is run again keeps its time.
        self._times: dict[int, int] = {}

    def attempt_epoch(self, inputs: dict[int, Any], *, bounded: bool) -> dict[str, list[Any]] | None:
        """Run an epoch; return what came out, or None where it was not committed."""
        rng, weather = self._rng, self._weather
        for worker in range(weather.workers):
            if rng.random() < weather.leave:
                self._story.tell(f"worker {worker} leaves")
                self._leave(worker)
        outcome = self._run_epoch(inputs, bounded)
        if rng.random() < weather.repeat:
            self._story.tell(f"epoch {self.epoch} is not committed")
            return None
        self._commit(outcome)
        return outcome.outputs

    def go_back(self, epoch: int, savepoint: Savepoint, *, workers_stay: bool) -> None:
        """Start again from an earlier state, with the workers there were or with new ones."""
        self.epoch = epoch
        self._times = {number: time for number, time in self._times.items() if number < epoch}
        self._stores = {place: store.copy() for place, store in savepoint.items()}
        if not workers_stay:
            self.reset()

    def take_times(self, former: SimulatedJob) -> None:
        """Take over the times of the epochs that were begun before the query was started again."""
        self._times = {number: time for number, time in former._times.items() if number < self.epoch}

    def calm_down(self) -> None:
        """Lose nothing any more; subtasks still change hands."""
        self._weather = replace(self._weather, fail=0.0, lose=0.0, repeat=0.0, leave=0.0, go_back=0.0)

    def tick(self) -> None:
        """Let the clock move on."""
        if self._weather.tick:
            self._now.advance(self._rng.randrange(self._weather.tick))
        self._turns.settle()

    @property
    def epoch_time(self) -> int:
        """The time of the epoch that ran last."""
        assert self._epoch_time is not None
        return self._epoch_time

    # -- what LocalJob leaves open --

    def _time_of_epoch(self) -> int:
        return self._times.setdefault(self.epoch, self._now.current_processing_time())

    def _in_order(self, places: Sequence[T]) -> Sequence[T]:
        return self._rng.sample(places, len(places))

    def _run_partition(self, number: int, partition: int, runs: Iterable[Records], bounded: bool) -> list[Buffer]:
        runs = list(runs)
        while True:
            worker = self._choose_worker(number, partition)
            task = self._resident_source(worker, number)
            try:
                parts = task.run_epoch(
                    self._until_lost(runs), subtask=partition, checkpoint_id=self.epoch, bounded=bounded
                )
                sent = self._take(parts)
            except BaseException as error:
                self._failed(worker, (worker, number), error)
                continue
            if not self._is_lost(number, partition, worker):
                return sent

    def _run_subtask(self, vertex: Vertex, subtask: int, arrived: list[Buffer]) -> tuple[list[Buffer], EpochStore]:
        while True:
            store = EpochStore(self._store(vertex.uid, subtask))
            kept = None if self.program.batch else store
            worker = self._choose_worker(vertex.number, subtask)
            place = (worker, vertex.number, subtask)
            task = self._resident(place, kept)
            try:
                sent = self._take(task.run_epoch(self._until_lost(self._portions(arrived)), kept, self._epoch_time))
            except BaseException as error:
                self._failed(worker, place, error)
                continue
            self.tick()
            if not self._is_lost(vertex.number, subtask, worker):
                return sent, store

    # -- workers --

    def _choose_worker(self, number: int, subtask: int) -> int:
        worker = self._last_worker.get((number, subtask))
        if worker is None or self._rng.random() < self._weather.hand_over:
            worker = self._rng.randrange(self._weather.workers)
        self._last_worker[number, subtask] = worker
        return worker

    def _vertex(self, number: int) -> Vertex:
        vertex = super()._vertex(number)
        # Where subtasks go from worker to worker, as without homes, no request is carried.
        vertex.shared = SharedResources(stay=not self._weather.hand_over or self._weather.workers == 1)
        return vertex

    def _resident_source(self, worker: int, number: int) -> SourceStreamTask:
        task = self._sources.get((worker, number))
        if task is None:
            task = self._sources[worker, number] = self._new_source(number)
            task.restore()
        return task

    def _resident(self, place: tuple[int, int, int], store: EpochStore | None) -> MultipleInputStreamTask:
        """Return a worker's task of a subtask at the version in ``store``, as Spark's workers do it.

        A batch keeps nothing: each attempt has a task of its own.
        """
        if store is None and place in self._tasks:
            self._tasks.pop(place).close()
        for _ in range(2):
            task = self._tasks.get(place)
            if task is None:
                _, number, subtask = place
                task = self._tasks[place] = self._new_task(number, subtask)
            if task.restore(store):
                return task
            self._story.tell(f"the resident {place} has diverged")
            del self._tasks[place]
            task.cancel()
        raise AssertionError("a new task has nothing that could differ from the store")

    def _leave(self, worker: int) -> None:
        tasks: list[dict[Any, Any]] = [self._tasks, self._sources]
        for residents in tasks:
            for place in [place for place in residents if place[0] == worker]:
                residents.pop(place).cancel()

    def _failed(self, worker: int, place: tuple[int, ...], error: BaseException) -> None:
        """Let a task go that failed; where that was not planned, the run is over."""
        if not _was_planned(error):
            raise error
        if self._rng.random() < 0.5:
            self._story.tell(f"epoch {self.epoch}: worker {worker} is lost in the task {place}")
            self._leave(worker)
        else:
            self._story.tell(f"epoch {self.epoch}: the task {place} fails")
            tasks: list[dict[Any, Any]] = [self._tasks, self._sources]
            for residents in tasks:
                if place in residents:
                    residents.pop(place).cancel()

    # -- attempts --

    def _is_lost(self, number: int, subtask: int, worker: int) -> bool:
        lost = self._rng.random() < self._weather.lose
        if lost:
            self._story.tell(f"epoch {self.epoch}: what vertex {number}, subtask {subtask} did in {worker} is lost")
        return lost

    def _portions(self, arrived: list[Buffer]) -> list[list[Buffer]]:
        """Return the buffers as they arrive: in any order, a few at a time."""
        rng = self._rng
        if rng.random() < self._weather.disorder:
            arrived = rng.sample(arrived, len(arrived))
        portions = []
        start = 0
        while start < len(arrived):
            end = start + rng.choice([1, 2, 5, 100])
            portions.append(arrived[start:end])
            start = end
        return portions

    def _until_lost(self, items: Sequence[T]) -> Iterator[T]:
        """Return what arrives at an attempt, which may fail at any of it."""
        fails_at = None
        if self._rng.random() < self._weather.fail:
            fails_at = self._rng.randrange(len(items) + 1)
        return _until(items, fails_at, self._weather.seeds)

    def _take(self, parts: Iterator[list[Buffer]]) -> list[Buffer]:
        """Return what a task sends; whoever takes it may give up in between."""
        gives_up_after = self._rng.randrange(3) if self._rng.random() < self._weather.fail / 2 else None
        sent: list[Buffer] = []
        for number, part in enumerate(parts):
            if number == gives_up_after:
                parts.close()  # type: ignore[attr-defined]
                raise WorkerLostError
            sent += part
        return sent


def _until(items: Sequence[T], fails_at: int | None, seeds: bool) -> Iterator[T]:
    for number, item in enumerate(items):
        if number == fails_at:
            raise WorkerLostError
        yield item
    if fails_at == len(items):
        raise WorkerLostError
    if seeds:
        random.seed(7)


def _was_planned(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, WorkerLostError):
            return True
        error = error.__cause__ or error.__context__
    return False
