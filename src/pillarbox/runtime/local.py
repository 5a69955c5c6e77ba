"""The local runtime: the same vertices, tasks, buffers and barriers in one process, epoch by epoch, without a JVM.

For unit tests, for trying things out, and for replaying an epoch under a debugger. An epoch that fails leaves no trace:
state is committed when all tasks have come through, and the tasks are made anew from what was committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NoReturn, TypeVar

from pillarbox.elements import Buffer, Records, TaskReport, decode
from pillarbox.errors import CheckpointMismatchError, ProgramError
from pillarbox.graph import CollectionSource, Program, output_target
from pillarbox.runtime.failures import failures_of
from pillarbox.runtime.shipping import ship
from pillarbox.state import MemoryChunkStore
from pillarbox.task import REPORT_TARGET, MultipleInputStreamTask, SourceStreamTask
from pillarbox.task.vertex import Vertex
from pillarbox.time import ProcessingTimeService

__all__ = ["EpochStore", "LocalJob", "LocalRuntime", "Savepoint"]

Savepoint = dict[tuple[str, int], MemoryChunkStore]
T = TypeVar("T")


class EpochStore:
    """The writes of an epoch, over the state that was committed before."""

    def __init__(self, committed: MemoryChunkStore) -> None:
        self._committed = committed
        self._written: dict[int, bytes | None] = {}

    def get(self, number: int) -> bytes | None:
        if number in self._written:
            return self._written[number]
        return self._committed.get(number)

    def put(self, number: int, value: bytes) -> None:
        self._written[number] = value

    def remove(self, number: int) -> None:
        self._written[number] = None

    def commit(self) -> None:
        for number, value in self._written.items():
            if value is not None:
                self._committed.put(number, value)
            elif self._committed.get(number) is not None:
                self._committed.remove(number)


@dataclass
class _Outcome:
    """The outcome of an epoch that is not committed yet."""

    outputs: dict[str, list[Any]]
    reports: list[TaskReport] = field(default_factory=list)
    stores: list[EpochStore] = field(default_factory=list)


class LocalJob:
    """A program running here.

    Args:
        clock: processing time, shared by all tasks; the system's when None.
        savepoint: state to start from.

    Attributes:
        epoch: number of epochs committed.
        reports: metrics of the tasks in the last epoch.
    """

    def __init__(
        self,
        program: Program,
        *,
        clock: ProcessingTimeService | None = None,
        savepoint: Savepoint | None = None,
    ) -> None:
        self.program = program
        self.epoch: int = 0
        self.reports: list[TaskReport] = []
        self._clock = clock
        self._epoch_time: int | None = None
        self._shipped = [ship(vertex) for vertex in program.vertices]
        self._codes = {place: code for code, place in program.subtasks.items()}
        self._stores: Savepoint = {place: store.copy() for place, store in (savepoint or {}).items()}
        places = {(vertex.uid, subtask) for vertex in program.vertices for subtask in range(vertex.parallelism)}
        homeless = sorted(self._stores.keys() - places)
        if homeless:
            uid, subtask = homeless[0]
            raise CheckpointMismatchError(
                f"the savepoint holds state of operator {uid!r}, subtask {subtask}, which the program does not have:"
                " run the program that wrote it, with its parallelism, and set uid() of the operators to those in it"
            )
        self._tasks: dict[tuple[int, ...], MultipleInputStreamTask] = {}
        self._sources: dict[tuple[int, ...], SourceStreamTask] = {}

    def run_epoch(
        self, inputs: Mapping[int, Sequence[Iterable[Records]]], *, bounded: bool = False
    ) -> dict[str, list[Any]]:
        """Run one epoch.

        Args:
            inputs: for each source vertex, its partitions, each a number of runs of records.
            bounded: whether no more will come: event time ends.

        Returns:
            the records that reached each output.
        """
        try:
            outcome = self._run_epoch(inputs, bounded)
        except BaseException:
            self.reset()
            raise
        self._commit(outcome)
        return outcome.outputs

    def _run_epoch(self, inputs: Mapping[int, Sequence[Iterable[Records]]], bounded: bool) -> _Outcome:
        """Run one epoch without committing it."""
        outcome = _Outcome({name: [] for name in self.program.outputs})
        self._epoch_time = self._time_of_epoch()
        names = {output_target(index): name for index, name in enumerate(self.program.outputs)}
        travelling: dict[int, list[Buffer]] = defaultdict(list)

        def carry(buffers: Iterable[Buffer]) -> None:
            for buffer in buffers:
                if buffer.target == REPORT_TARGET:
                    report = decode(buffer.payload)
                    assert isinstance(report, TaskReport)
                    outcome.reports.append(report)
                elif buffer.target in names:
                    records = decode(buffer.payload)
                    assert isinstance(records, Records)
                    outcome.outputs[names[buffer.target]].extend(records.values)
                else:
                    travelling[buffer.target].append(buffer)

        # A source without anything to say still ends its epoch; a bounded one must end its event time.
        partitions = [
            (number, place) for number in self.program.sources for place in enumerate(inputs.get(number) or ((),))
        ]
        for number, (partition, runs) in self._in_order(partitions):
            carry(self._run_partition(number, partition, runs, bounded))
        for level in self.program.levels[1:]:
            places = [(vertex, subtask) for vertex in level for subtask in range(vertex.parallelism)]
            for vertex, subtask in self._in_order(places):
                arrived = travelling.pop(self._codes[vertex.number, subtask], [])
                sent, store = self._run_subtask(vertex, subtask, arrived)
                outcome.stores.append(store)
                carry(sent)
        return outcome

    def _commit(self, outcome: _Outcome) -> None:
        for store in outcome.stores:
            store.commit()
        self.epoch += 1
        self.reports = outcome.reports

    # -- steps that a simulated cluster does in other ways --

    def _time_of_epoch(self) -> int | None:
        """Return the time that all tasks take for that of the epoch; None: each asks its own clock."""
        return None if self._clock is None else self._clock.current_processing_time()

    def _in_order(self, places: Sequence[T]) -> Sequence[T]:
        """Return the partitions of the sources, or the subtasks of a level, in the order in which they run."""
        return places

    def _run_partition(self, number: int, partition: int, runs: Iterable[Records], bounded: bool) -> list[Buffer]:
        """Run one partition of a source; return the buffers that it sends."""
        task = self._source(number)
        with failures_of(self._shipped[number].name, partition):
            parts = task.run_epoch(runs, subtask=partition, checkpoint_id=self.epoch, bounded=bounded)
            return list(chain.from_iterable(parts))

    def _run_subtask(self, vertex: Vertex, subtask: int, arrived: list[Buffer]) -> tuple[list[Buffer], EpochStore]:
        """Run one subtask on its buffers; return the buffers that it sends, and the state that it writes."""
        store = EpochStore(self._store(vertex.uid, subtask))
        with failures_of(vertex.name, subtask):
            task = self._task(vertex.number, subtask, store)
            parts = task.run_epoch([arrived] if arrived else [], store, self._epoch_time)
            return list(chain.from_iterable(parts)), store

    def run(self) -> dict[str, list[Any]]:
        """Run the program's collections to their end, in one epoch."""
        inputs = {
            number: [[Records(list(source.collection))]]
            for number, source in self.program.sources.items()
            if isinstance(source, CollectionSource)
        }
        return self.run_epoch(inputs, bounded=True)

    def savepoint(self) -> Savepoint:
        """Return the committed state."""
        return {place: store.copy() for place, store in self._stores.items()}

    def reset(self) -> None:
        """Forget the resident tasks, as if their processes had died; the state is the committed one."""
        for task in (*self._tasks.values(), *self._sources.values()):
            task.cancel()
        self._tasks = {}
        self._sources = {}

    def close(self) -> None:
        """End all tasks in good order."""
        for task in (*self._sources.values(), *self._tasks.values()):
            task.close()
        self._tasks = {}
        self._sources = {}

    def __enter__(self) -> LocalJob:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _store(self, uid: str, subtask: int) -> MemoryChunkStore:
        return self._stores.setdefault((uid, subtask), MemoryChunkStore())

    def _new_source(self, number: int) -> SourceStreamTask:
        return SourceStreamTask(self._shipped[number].load(), 0, clock=self._clock)

    def _new_task(self, number: int, subtask: int) -> MultipleInputStreamTask:
        return MultipleInputStreamTask(self._shipped[number].load(), subtask, clock=self._clock)

    def _source(self, number: int) -> SourceStreamTask:
        task = self._sources.get((number,))
        if task is None:
            with failures_of(self._shipped[number].name, 0):
                task = self._sources[(number,)] = self._new_source(number)
                task.restore()
        return task

    def _task(self, number: int, subtask: int, store: EpochStore) -> MultipleInputStreamTask:
        task = self._tasks.get((number, subtask))
        if task is None:
            task = self._tasks[number, subtask] = self._new_task(number, subtask)
        if not task.restore(store):
            raise AssertionError("the local runtime's tasks are made anew after a failure")
        return task


class LocalRuntime:
    """Runs programs in this process; it knows no DataFrames."""

    parallelism = 1
    task_slots = 1
    time_zone = "UTC"

    def collect(self, program: Program) -> dict[str, list[Any]]:
        """Run a program on its collections; return the records of each output."""
        with LocalJob(program) as job:
            return job.run()

    def dataframe(self, program: Program, schema: Any) -> NoReturn:
        """Refuse.

        Raises:
            ProgramError: always.
        """
        raise _takes_a_session("to_dataframe()")

    def for_each_batch(self, program: Program, schemas: Any, function: Callable[..., None]) -> NoReturn:
        """Refuse.

        Raises:
            ProgramError: always.
        """
        raise _takes_a_session("for_each_batch()")


def _takes_a_session(method: str) -> ProgramError:
    return ProgramError(
        f"{method} makes a DataFrame, which takes a Spark session, and the program reads only collections: give"
        " it one, get_execution_environment(spark)"
    )
