"""What a task of Spark's is told of the query that it belongs to. It is asked once, when the task begins.

The layout of a query's checkpoint is known when the query starts, and its plan was made before. So it is a setting of
the session while the query starts, as is all else here that Spark does not tell by itself: Spark keeps the session's
settings for the query, and hands them to its tasks as local properties.
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

#: The setting for the id of a query's run.
RUN = "spark.pillarbox.run"

#: The setting that says which micro-batch is the query's last one, in which event time ends.
DRAIN = "spark.pillarbox.drain"


def layout_setting(program: str, layout: Layout) -> tuple[str, str]:
    """Return name and value of the setting that tells the tasks of a program the layout of its checkpoint."""
    return _name(program), json.dumps(layout)


def _name(program: str) -> str:
    return f"spark.pillarbox.layout.{program}"


def local_property(name: str) -> str | None:
    """Return a local property of the Spark task that runs here; None: it has no such property, or none runs."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


@dataclass(frozen=True)
class ProgramLayout:
    """The layout of a program, as its tasks find it out.

    Attributes:
        program: its id.
        parallelisms: the numbers of subtasks of its vertices.
        compiled: the layout that it was compiled with, for a checkpoint that says nothing else.
    """

    program: str
    parallelisms: Parallelisms
    compiled: Layout

    @staticmethod
    def of(program: Program) -> ProgramLayout:
        """Return the layout of a program."""
        return ProgramLayout(program.id, program.parallelisms, program.layout._replace(codes=CODES))

    def place(self, layout: Layout, code: int) -> tuple[int, int] | None:
        """Return vertex and subtask of a code; None: it is no subtask's."""
        return subtask_places(self.parallelisms, layout).get(code)

    def codes(self, layout: Layout) -> Iterable[int]:
        """Return the codes of all subtasks."""
        return subtask_places(self.parallelisms, layout).keys()


class TaskFacts(NamedTuple):
    """What a task of Spark's knows of its query.

    Attributes:
        layout: the layout of the program in the query's checkpoint.
        query: the query's id; empty where nobody knows.
        run: the id of the query's run; empty where nobody knows.
        batch: the micro-batch; None: the query has none.
        is_last: whether that is the query's last one, in which event time ends.
        partitions: in how many partitions the state lies; None: in as many as the program was compiled for.
        partition: the task's partition.
        task: the task's number; a later attempt has a higher one. None: no task of Spark's runs here.
        attempt: which attempt the task is, from 0; None: no task of Spark's runs here.
        time: the time of the micro-batch (epoch ms), where it is known.
        clock: the log of the clock that the task goes by, as one of an epoch that runs again for a recording; None: it
            goes by the clock of its machine.
        executor: the process of the executor; None: it is not known.
        fallback: why the task runs in a worker although a home is wanted; None: it does not.
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

    @staticmethod
    def here(program: ProgramLayout) -> TaskFacts:
        """Return what the task of Spark's knows that runs here."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            return TaskFacts(program.compiled)
        layout, batch, partitions = map(local_property, (_name(program.program), BATCH_ID, STATE_PARTITIONS))
        return TaskFacts(
            layout=program.compiled if layout is None else Layout(*json.loads(layout)),
            query=local_property(QUERY_ID) or "",
            # Spark runs the query's jobs as a group whose name is an id of the run, too, unless a user's function sets
            # another.
            run=local_property(RUN) or local_property(JOB_GROUP) or "",
            batch=None if batch is None else int(batch),
            is_last=batch is not None and batch == local_property(DRAIN),
            partitions=int(partitions) if partitions else None,
            partition=context.partitionId(),
            task=context.taskAttemptId(),
            attempt=context.attemptNumber(),
        )
