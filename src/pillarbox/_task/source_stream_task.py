"""The task of a source, which processes one partition in each epoch. Follows Flink's ``SourceStreamTask``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pillarbox._elements.buffers import Buffer
from pillarbox._elements.records import Records
from pillarbox._task.lifecycle import EpochPhase, TaskEvent
from pillarbox._task.network.task_input import DataInputStatus
from pillarbox._task.stream_task import StreamTask


class SourceStreamTask(StreamTask):
    """A task of a source and its chained operators, which have no state."""

    _bounded = False

    def restore(self) -> None:
        with self._working(TaskEvent.RESTORE, TaskEvent.RESTORED):
            self.chain.open()

    def run_epoch(
        self, records: Iterable[Records], *, subtask: int, checkpoint_id: int, bounded: bool
    ) -> Iterator[list[Buffer]]:
        with self._working(TaskEvent.BEGIN_EPOCH, TaskEvent.END_EPOCH):
            self.subtask = subtask
            self.chain.set_subtask(subtask)
            self._bounded = bounded
            self.writer.begin_epoch(subtask, checkpoint_id)
            yield from self._run_epoch(checkpoint_id, records)

    def _begin_epoch(self) -> None:
        self.chain.begin_epoch()

    def _process(self, item: Records) -> None:
        self.metrics.count_run(len(item))
        self.chain.head.process_records(item)

    def _end_epoch(self) -> DataInputStatus:
        if self._bounded and self._phase is not EpochPhase.DATA_ENDED:
            return DataInputStatus.END_OF_DATA
        return self._end_input()
