"""Runs the tasks of sources, in partitions of ``mapInArrow``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from pillarbox._elements.buffers import Buffer
from pillarbox._elements.records import ArrowRecords, Records, pickled_records
from pillarbox._reports.failure import FailedAttempt
from pillarbox._rows import batch_to_bytes
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._runtime.spark.failures import failures_in_worker
from pillarbox._runtime.spark.rows.output import TaskOutput
from pillarbox._runtime.spark.session.packages import packages_here
from pillarbox._runtime.spark.tasks import residency
from pillarbox._runtime.spark.tasks.accumulators import collecting
from pillarbox._runtime.spark.tasks.replacement import replacement_here
from pillarbox._runtime.spark.tasks.task_info import TaskInfo, TaskLayout
from pillarbox._runtime.spark.worker.closing import hold, working
from pillarbox._runtime.spark.worker.executor import executor_here
from pillarbox._runtime.spark.worker.worker_sockets import acknowledge_at_once
from pillarbox._task.vertex import WAKE_CHANNEL


class SourceHost:
    """The function for ``mapInArrow``."""

    def __init__(
        self,
        shipped: ShippedVertex,
        layout: TaskLayout,
        output: TaskOutput,
        *,
        bounded: bool,
        columns: list[str] | None,
    ) -> None:
        self._shipped = shipped
        self._layout = layout
        self._output = output
        self._bounded = bounded
        self._columns = columns

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        acknowledge_at_once()
        facts = TaskInfo.here(self._layout)._replace(executor=executor_here())
        replacement = replacement_here()
        if replacement is not None and replacement.is_task(self._layout.program, self._shipped.number, facts.partition):
            epoch = {"is_last": facts.is_last, "layout": list(facts.layout), "is_pickled": self._columns is None}
            replacement.send(epoch, (batch_to_bytes(self._named(batch)) for batch in batches))
            return
        if replacement is not None and replacement.is_left_out(self._layout.program, self._shipped.number):
            return
        attempt = None if self._bounded else FailedAttempt(self._shipped.number, facts.batch, facts.attempt)
        with working(), failures_in_worker(self._shipped.name, facts.partition, attempt), collecting():
            is_new = not residency.here.has(self._shipped, -1, facts)
            task = residency.here.source_task(self._shipped, facts)
            task.attempt, task.process_tasks = facts.attempt, len(residency.here)
            task.executor = facts.executor
            task.versions = dict(packages_here()) if is_new else None
            if is_new and not self._bounded:
                hold(facts)
            if facts.is_last:
                # In the last epoch, every subtask runs, even without input.
                codes = self._layout.codes(facts.layout)
                yield from self._output(Buffer(code, WAKE_CHANNEL, 0, b"") for code in codes)
            try:
                for buffers in task.run_epoch(
                    self._records(batches),
                    subtask=facts.partition,
                    checkpoint_id=facts.batch or 0,
                    bounded=self._bounded or facts.is_last,
                ):
                    yield from self._output(buffers)
                    if task.is_satisfied:
                        residency.here.discard(task)
                        return
                if self._bounded and any(operator.has_close for operator in task.chain.operators):
                    # A task with nothing to release can also serve the next partition.
                    residency.here.end(task)
                residency.here.spare_the_collector()
            except BaseException:
                residency.here.discard(task)
                raise

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if self._columns is None else batch.rename_columns(self._columns)

    def _records(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Records]:
        for batch in map(self._named, batches):
            if self._columns is None:
                yield pickled_records(batch)
            elif batch.num_rows:
                yield ArrowRecords(batch)
