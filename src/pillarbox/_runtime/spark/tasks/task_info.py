"""Query data that a Spark task reads when it begins.

The checkpoint's layout (numbers of subtasks) is known only after planning, when the query starts. The start puts it and
other parameters into the session's settings, which Spark passes to tasks as local properties.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pillarbox._graph.layout import Layout, Parallelisms, subtask_places
from pillarbox._graph.program import Program
from pillarbox._graph.targets import CODES
from pillarbox._runtime.spark.session.spark_names import BATCH_ID, JOB_GROUP, QUERY_ID, STATE_PARTITIONS

#: The id of a query's run.
RUN = "spark.pillarbox.run"

#: The query's last micro-batch, which ends event time.
DRAIN = "spark.pillarbox.drain"


def layout_setting(program: str, layout: Layout) -> tuple[str, str]:
    return _name(program), json.dumps(layout)


def _name(program: str) -> str:
    return f"spark.pillarbox.layout.{program}"


def local_property(name: str) -> str | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


@dataclass(frozen=True)
class TaskLayout:
    """A program's layout, which tasks need to decode subtask codes."""

    program: str
    parallelisms: Parallelisms
    compiled: Layout

    @staticmethod
    def of(program: Program) -> TaskLayout:
        return TaskLayout(program.id, program.parallelisms, program.layout._replace(codes=CODES))

    def decode(self, layout: Layout, code: int) -> tuple[int, int] | None:
        return subtask_places(self.parallelisms, layout).get(code)

    def codes(self, layout: Layout) -> Iterable[int]:
        return subtask_places(self.parallelisms, layout).keys()


class TaskInfo(NamedTuple):
    """Data about a Spark task and its query.

    Attributes:
        batch: the number of the micro-batch, or None in a batch query.
        is_last: whether this is the query's last micro-batch, which ends event time.
        partitions: the number of state partitions, or None if the program's number applies.
        task: the Spark task's number, higher for later attempts. None outside of Spark tasks.
        attempt: the Spark task's attempt, from 0. None outside of Spark tasks.
        time: the micro-batch's time (Unix time in ms), if known.
        clock: the recorded clock in a repeated epoch, or None for the system clock.
        fallback: why the task runs in a worker, or None if it runs in a home process.
        watermark: Spark's watermark in the micro-batch (Unix time in ms), or -1 if unknown.
    """

    layout: Layout
    query: str = ""
    run: str = ""
    batch: int | None = None
    is_last: bool = False
    partitions: int | None = None
    partition: int = 0
    task: int | None = None
    attempt: int | None = None
    time: int = 0
    clock: bytes | None = None
    executor: int | None = None
    fallback: str | None = None
    watermark: int = -1

    @staticmethod
    def here(program: TaskLayout) -> TaskInfo:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            return TaskInfo(program.compiled)
        layout, batch, partitions = map(local_property, (_name(program.program), BATCH_ID, STATE_PARTITIONS))
        return TaskInfo(
            layout=program.compiled if layout is None else Layout(*json.loads(layout)),
            query=local_property(QUERY_ID) or "",
            # The job group identifies the run, unless a function sets another group.
            run=local_property(RUN) or local_property(JOB_GROUP) or "",
            batch=None if batch is None else int(batch),
            is_last=batch is not None and batch == local_property(DRAIN),
            partitions=int(partitions) if partitions else None,
            partition=context.partitionId(),
            task=context.taskAttemptId(),
            attempt=context.attemptNumber(),
        )
