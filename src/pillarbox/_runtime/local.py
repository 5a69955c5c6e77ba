"""The local runtime, which runs tasks in one process, epoch by epoch, without a JVM.

A failed epoch has no effect: state is committed after all tasks have succeeded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NoReturn, TypeAlias, TypeVar

import pyarrow as pa

from pillarbox._copies import Copier, copier_of
from pillarbox._elements.buffers import Buffer, decode
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._elements.task_report import TaskReport
from pillarbox._errors import CheckpointMismatchError, ProgramError
from pillarbox._graph.budgets import budgets_of
from pillarbox._graph.program import Program
from pillarbox._graph.targets import output_target
from pillarbox._graph.transformations import CollectionSource
from pillarbox._operators.budgets.ledger import LedgerScope, LocalLedger
from pillarbox._runtime.failures import failures_of
from pillarbox._runtime.shipping import ship
from pillarbox._state.chunks.head import META
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.inspect.view import LogView
from pillarbox._task.lifecycle import suppress
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._task.source_stream_task import SourceStreamTask
from pillarbox._task.vertex import REPORT_TARGET, Vertex
from pillarbox._time.clock import ProcessingTimeService

# Records read from a collection at a time, as in Spark's batches.
_RUN = 10_000
_SHORT_RUN = 100

Savepoint = dict[tuple[str, int], MemoryChunkStore]
Run: TypeAlias = list[Any] | pa.RecordBatch | Records
T = TypeVar("T")


class LocalEpochStore:
    """A state store for one epoch, which buffers the epoch's writes until the commit."""

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


def _key_groups(savepoint: Savepoint) -> int | None:
    written = (store for store in savepoint.values() if store.get(META) is not None)
    return next((LogView(store, 0).head.max_parallelism for store in written), None)


def _records(run: Run) -> Records:
    if isinstance(run, list):
        return Records(run)
    return ArrowRecords(run) if isinstance(run, pa.RecordBatch) else run


@dataclass
class _Outcome:
    outputs: dict[str, list[Any]]
    reports: list[TaskReport] = field(default_factory=list)
    stores: list[LocalEpochStore] = field(default_factory=list)


def source_copier(program: Program, number: int) -> Copier:
    return copier_of(program.sources[number].name, object_reuse=program.vertices[number].object_reuse)


class LocalJob:
    """Runs a program in this process, epoch by epoch.

    Args:
        clock: the clock of all tasks, or None for the system clock.
        savepoint: initial state. By default, the program's savepoint, if any.

    Attributes:
        epoch: number of committed epochs.
        reports: the tasks' metrics in the last epoch.
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
        if program.batch and savepoint:
            raise ProgramError(
                "a program in batch mode starts without state: drop the savepoint, or use streaming mode"
            )
        if savepoint is None and program.savepoint is not None:
            from pillarbox._runtime.savepoint_stores import stores_from_savepoint

            savepoint = stores_from_savepoint(program)
        elif savepoint and not program.sets_max_parallelism:
            program.lay_out(program.layout._replace(key_groups=_key_groups(savepoint) or program.max_parallelism))
        self._shipped = [ship(vertex) for vertex in program.vertices]
        self._codes = {subtask: code for code, subtask in program.subtasks.items()}
        self._stores: Savepoint = {subtask: store.copy() for subtask, store in (savepoint or {}).items()}
        places = {(vertex.uid, subtask) for vertex in program.vertices for subtask in range(vertex.parallelism)}
        unknown = sorted(self._stores.keys() - places)
        if unknown:
            uid, subtask = unknown[0]
            raise CheckpointMismatchError(
                f"the savepoint contains state of operator {uid!r}, subtask {subtask}, but the program has no such"
                " subtask: set the parallelism and each operator's uid() as in the program that wrote the savepoint"
            )
        budgets_of(program.vertices)  # raises for wrong budgets
        self._budget_scope = LedgerScope(LocalLedger(clock), clock=clock)
        self._tasks: dict[tuple[int, ...], MultipleInputStreamTask] = {}
        self._sources: dict[tuple[int, ...], SourceStreamTask] = {}

    def run_epoch(
        self, inputs: Mapping[int, Sequence[Iterable[Run]]], *, bounded: bool = False
    ) -> dict[str, list[Any]]:
        """Run one epoch.

        Args:
            inputs: the partitions of each source, by source number. A partition consists of lists of values, or of
                Arrow record batches with a DataFrame's rows.
            bounded: whether event time advances to infinity, because this is the last input.

        Returns:
            The records, by output name.
        """
        if self.program.batch and (self.epoch or not bounded):
            raise ProgramError(
                "a program in batch mode processes all of its input in a single epoch: call end_input() instead"
            )
        try:
            outcome = self._run_epoch(inputs, bounded)
        except BaseException:
            self.reset()
            raise
        self._commit(outcome)
        return outcome.outputs

    def _run_epoch(self, inputs: Mapping[int, Sequence[Iterable[Run]]], bounded: bool) -> _Outcome:
        outcome = _Outcome({name: [] for name in self.program.outputs})
        for name, records in self._results(inputs, bounded, outcome):
            outcome.outputs[name].extend(records.values)
        return outcome

    def _results(
        self, inputs: Mapping[int, Sequence[Iterable[Run]]], bounded: bool, outcome: _Outcome
    ) -> Iterator[tuple[str, Records]]:
        """Run one epoch without committing it. Yields (output, records) as they arrive."""
        self._epoch_time = self._time_of_epoch()
        names = {output_target(index): name for index, name in enumerate(self.program.outputs)}
        travelling: dict[int, list[Buffer]] = defaultdict(list)

        def carry(buffers: Iterable[Buffer]) -> Iterator[tuple[str, Records]]:
            for buffer in buffers:
                if buffer.target == REPORT_TARGET:
                    report = decode(buffer.payload)
                    assert isinstance(report, TaskReport)
                    outcome.reports.append(report)
                elif buffer.target in names:
                    records = decode(buffer.payload)
                    assert isinstance(records, Records)
                    yield names[buffer.target], records
                else:
                    travelling[buffer.target].append(buffer)

        # Even without records, a bounded source must end event time.
        partitions = [
            (number, partition)
            for number in self.program.sources
            for partition in enumerate(inputs.get(number) or ((),))
        ]
        for number, (partition, runs) in self._in_order(partitions):
            yield from carry(self._run_partition(number, partition, map(_records, runs), bounded))
        for level in self.program.levels[1:]:
            places = [(vertex, subtask) for vertex in level for subtask in range(vertex.parallelism)]
            for vertex, subtask in self._in_order(places):
                arrived = travelling.pop(self._codes[vertex.number, subtask], [])
                sent, store = self._run_subtask(vertex, subtask, arrived)
                outcome.stores.append(store)
                yield from carry(sent)

    def _commit(self, outcome: _Outcome) -> None:
        for store in outcome.stores:
            store.commit()
        self.epoch += 1
        self.reports = outcome.reports

    # -- steps that a simulated cluster overrides --

    def _time_of_epoch(self) -> int | None:
        return None if self._clock is None else self._clock.current_processing_time()

    def _in_order(self, places: Sequence[T]) -> Sequence[T]:
        return places

    def _run_partition(self, number: int, partition: int, runs: Iterable[Records], bounded: bool) -> Iterable[Buffer]:
        task = self._source(number)
        with failures_of(self._shipped[number].name, partition):
            yield from chain.from_iterable(
                task.run_epoch(runs, subtask=partition, checkpoint_id=self.epoch, bounded=bounded)
            )

    def _run_subtask(
        self, vertex: Vertex, subtask: int, arrived: list[Buffer]
    ) -> tuple[Iterable[Buffer], LocalEpochStore]:
        store = LocalEpochStore(self._store(vertex.uid, subtask))
        return self._buffers_of(vertex, subtask, arrived, store), store

    def _buffers_of(
        self, vertex: Vertex, subtask: int, arrived: list[Buffer], store: LocalEpochStore
    ) -> Iterator[Buffer]:
        state = None if self.program.batch else store
        with failures_of(vertex.name, subtask):
            task = self._task(vertex.number, subtask, state)
            yield from chain.from_iterable(task.run_epoch(([buffer] for buffer in arrived), state, self._epoch_time))

    def run(self) -> dict[str, list[Any]]:
        """Run a program over collections to the end, in one epoch."""
        return self.run_epoch(self._collections(_RUN), bounded=True)

    def results(self, limit: int | None) -> Generator[list[Any], None, None]:
        """Run a program over collections to the end. Yields output records as they arrive.

        Args:
            limit: the approximate number of records that the caller will read, or None for all.
        """
        run = _RUN if limit is None else _SHORT_RUN
        outcome = _Outcome({})
        try:
            for _, records in self._results(self._collections(run), True, outcome):
                yield records.values
        except BaseException:
            self.reset()
            raise
        self._commit(outcome)

    def _collections(self, length: int) -> dict[int, list[list[Records]]]:
        collections: dict[int, list[list[Records]]] = {}
        for number, source in self.program.sources.items():
            if isinstance(source, CollectionSource):
                # A function may change its records, but not the caller's collection.
                records = list(map(source_copier(self.program, number).copied, source.collection))
                collections[number] = [
                    [Records(records[start : start + length]) for start in range(0, len(records), length)]
                ]
        return collections

    def savepoint(self) -> Savepoint:
        """Return a copy of the committed state."""
        return {subtask: store.copy() for subtask, store in self._stores.items()}

    def reset(self) -> None:
        """Discard the tasks, but not committed state, as if their processes had died."""
        for task in (*self._tasks.values(), *self._sources.values()):
            task.cancel()
        self._tasks = {}
        self._sources = {}

    def close(self) -> None:
        """Close all tasks, then raise the first error of their functions' ``close()``."""
        errors: list[Exception] = []
        for task in (*self._sources.values(), *self._tasks.values()):
            try:
                task.close()
            except Exception as error:
                errors.append(error)
        self._tasks = {}
        self._sources = {}
        for later in errors[1:]:
            suppress(errors[0], later, "closing another task failed as well")
        if errors:
            raise errors[0]

    def __enter__(self) -> LocalJob:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _store(self, uid: str, subtask: int) -> MemoryChunkStore:
        return self._stores.setdefault((uid, subtask), MemoryChunkStore())

    def _new_source(self, number: int) -> SourceStreamTask:
        return SourceStreamTask(self._vertex(number), 0, clock=self._clock)

    def _new_task(self, number: int, subtask: int) -> MultipleInputStreamTask:
        return MultipleInputStreamTask(self._vertex(number), subtask, clock=self._clock)

    def _vertex(self, number: int) -> Vertex:
        vertex = self._shipped[number].load()
        vertex.budget_scope = self._budget_scope
        return vertex

    def _source(self, number: int) -> SourceStreamTask:
        task = self._sources.get((number,))
        if task is None:
            with failures_of(self._shipped[number].name, 0):
                task = self._sources[(number,)] = self._new_source(number)
                task.restore()
        return task

    def _task(self, number: int, subtask: int, store: LocalEpochStore | None) -> MultipleInputStreamTask:
        task = self._tasks.get((number, subtask))
        if task is None:
            task = self._tasks[number, subtask] = self._new_task(number, subtask)
        if not task.restore(store):
            raise AssertionError("the local runtime's tasks are recreated after a failure")
        return task


class LocalRuntime:
    """Runs programs in this process, without DataFrames."""

    parallelism = 1
    task_slots = 1

    def __init__(self, time_zone: str | None = None) -> None:
        self.time_zone = time_zone

    def collect(self, program: Program, limit: int | None = None) -> Generator[list[Any], None, None]:
        with LocalJob(program) as job:
            yield from job.results(limit)

    def dataframe(self, program: Program, schema: Any) -> NoReturn:
        raise _takes_a_session("to_dataframe()")

    def for_each_batch(self, program: Program, schemas: Any, function: Callable[..., None]) -> NoReturn:
        raise _takes_a_session("for_each_batch()")


def _takes_a_session(method: str) -> ProgramError:
    return ProgramError(
        f"{method} needs a Spark session, but the program reads only collections: pass a session to"
        " get_execution_environment(spark)"
    )
