"""The local runtime: the same vertices, tasks, buffers and barriers in one process, epoch by epoch, without a JVM.

For unit tests, for trying things out, and for replaying an epoch under a debugger. An epoch that fails leaves no trace:
state is committed when all tasks have come through, and the tasks are made anew from what was committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pillarbox.elements import Buffer, Records, TaskReport, decode
from pillarbox.errors import CheckpointMismatchError
from pillarbox.graph import REPORT_TARGET, Program, output_target
from pillarbox.runtime.failures import failures_of
from pillarbox.runtime.shipping import ship
from pillarbox.state import MemoryChunkStore
from pillarbox.task import KeyedStreamTask, SourceStreamTask
from pillarbox.time import ProcessingTimeService

__all__ = ["LocalJob", "Savepoint"]

Savepoint = dict[tuple[str, int], MemoryChunkStore]


class _EpochStore:
    """What an epoch writes, over what was committed before."""

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
        self.epoch = 0
        self.reports: list[dict[str, Any]] = []
        self._clock = clock
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
        self._keyed: dict[tuple[int, int], KeyedStreamTask] = {}
        self._sources: dict[int, SourceStreamTask] = {}

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
        self.reports = []
        outputs: dict[str, list[Any]] = {name: [] for name in self.program.outputs}
        names = {output_target(index): name for index, name in enumerate(self.program.outputs)}
        travelling: dict[int, list[Buffer]] = defaultdict(list)
        stores: list[_EpochStore] = []

        def carry(buffers: Iterable[Buffer]) -> None:
            for buffer in buffers:
                if buffer.target == REPORT_TARGET:
                    report = decode(buffer.payload)
                    assert isinstance(report, TaskReport)
                    self.reports.append(report.values)
                elif buffer.target in names:
                    records = decode(buffer.payload)
                    assert isinstance(records, Records)
                    outputs[names[buffer.target]].extend(records.values)
                else:
                    travelling[buffer.target].append(buffer)

        try:
            for number in self.program.sources:
                partitions = inputs.get(number, ())
                task = self._source(number)
                # A source without anything to say still ends its epoch; a bounded one must end its event time.
                for subtask, runs in enumerate(partitions or ((),)):
                    with failures_of(self._shipped[number].name, subtask):
                        for part in task.run_epoch(runs, subtask=subtask, checkpoint_id=self.epoch, bounded=bounded):
                            carry(part)
            for level in self.program.levels[1:]:
                for vertex in level:
                    for subtask in range(vertex.parallelism):
                        store = _EpochStore(self._store(vertex.uid, subtask))
                        stores.append(store)
                        arrived = travelling.pop(self._codes[vertex.number, subtask], [])
                        with failures_of(vertex.name, subtask):
                            task_ = self._task(vertex.number, subtask, store)
                            for part in task_.run_epoch([arrived] if arrived else [], store):
                                carry(part)
        except BaseException:
            self.reset()
            raise
        for store in stores:
            store.commit()
        self.epoch += 1
        return outputs

    def run(self) -> dict[str, list[Any]]:
        """Run the program's collections to their end, in one epoch."""
        inputs = {number: [[Records(list(source.collection or ()))]] for number, source in self.program.sources.items()}
        return self.run_epoch(inputs, bounded=True)

    def savepoint(self) -> Savepoint:
        """Give the committed state."""
        return {place: store.copy() for place, store in self._stores.items()}

    def reset(self) -> None:
        """Forget the resident tasks, as if their processes had died; state is what was committed."""
        for task in (*self._keyed.values(), *self._sources.values()):
            task.cancel()
        self._keyed = {}
        self._sources = {}

    def close(self) -> None:
        """End all tasks in good order."""
        for task in (*self._sources.values(), *self._keyed.values()):
            task.close()
        self._keyed = {}
        self._sources = {}

    def __enter__(self) -> LocalJob:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _store(self, uid: str, subtask: int) -> MemoryChunkStore:
        return self._stores.setdefault((uid, subtask), MemoryChunkStore())

    def _source(self, number: int) -> SourceStreamTask:
        task = self._sources.get(number)
        if task is None:
            with failures_of(self._shipped[number].name, 0):
                task = self._sources[number] = SourceStreamTask(self._shipped[number].load(), 0, clock=self._clock)
                task.restore()
        return task

    def _task(self, number: int, subtask: int, store: _EpochStore) -> KeyedStreamTask:
        task = self._keyed.get((number, subtask))
        if task is None:
            task = KeyedStreamTask(self._shipped[number].load(), subtask, clock=self._clock)
            self._keyed[number, subtask] = task
        if not task.restore(store):
            raise AssertionError("the local runtime's tasks are made anew after a failure")
        return task
