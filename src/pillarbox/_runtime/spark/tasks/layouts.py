"""The layout of a query's checkpoint, on its way to the tasks.

It is known when the query starts, and its plan was made before. So it is a setting of the session while the query
starts: Spark keeps the session's settings for the query, and hands them to its tasks as local properties.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pillarbox._errors import CheckpointMismatchError
from pillarbox._graph import CODES, Layout, Parallelisms, Program, subtask_places

if TYPE_CHECKING:
    from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
    from pillarbox._runtime.spark.plan.registry import PlannedProgram

__all__ = [
    "RUN",
    "STATE_PARTITIONS",
    "ProgramLayout",
    "attempt_number",
    "check_compiled",
    "layout_setting",
    "local_property",
    "partition_id",
    "query",
    "run_of_query",
]

#: The setting for the id of a query's run.
RUN = "spark.pillarbox.run"

#: The setting for the number of state partitions, which is that of tasks of a level.
STATE_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"


def layout_setting(program: str, layout: Layout) -> tuple[str, str]:
    """Return name and value of the setting that tells the tasks of a program the layout of its checkpoint."""
    return _name(program), json.dumps(layout)


def local_property(name: str) -> str | None:
    """Return a local property of the task of Spark's that runs here; None: it has no such one, or none runs."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def partition_id() -> int:
    """Return the partition of the task of Spark's that runs here; 0 where none runs."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def attempt_number() -> int | None:
    """Return which attempt the task of Spark's that runs here is, from 0; None where none runs."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.attemptNumber()


def query() -> str:
    """Return the id of the query that the running task of Spark's belongs to; an empty text where nobody knows."""
    return local_property("sql.streaming.queryId") or ""


def run_of_query() -> str:
    """Return the id of that query's run; an empty text where nobody knows.

    Spark runs the query's jobs as a group whose name is an id of the run, too, unless a user's function sets another.
    """
    return local_property(RUN) or local_property("spark.jobGroup.id") or ""


def _name(program: str) -> str:
    return f"spark.pillarbox.layout.{program}"


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
        """Return that of a program."""
        return ProgramLayout(program.id, program.parallelisms, program.layout._replace(codes=CODES))

    def current(self) -> Layout:
        """Return the layout of the query that the running task of Spark's belongs to."""
        told = local_property(_name(self.program))
        return self.compiled if told is None else Layout(*json.loads(told))

    def place(self, layout: Layout, code: int) -> tuple[int, int] | None:
        """Return vertex and subtask of a code; None: it is no subtask's."""
        return subtask_places(self.parallelisms, layout).get(code)

    def codes(self, layout: Layout) -> Iterable[int]:
        """Return the codes of all subtasks."""
        return subtask_places(self.parallelisms, layout).keys()


def check_compiled(checkpoint: Checkpoint, planned: Sequence[PlannedProgram], layouts: Sequence[Layout]) -> None:
    """Refuse a checkpoint that is laid out in another way than its programs, for tasks that cannot be told.

    Raises:
        CheckpointMismatchError: it is.
    """
    for one, layout in zip(planned, layouts):
        if one.parallelism and layout != one.layout._replace(codes=CODES):
            what, how = "is laid out in another way than the program", ""
            if layout.subtasks != one.layout.subtasks:
                what = f"has max parallelism {layout.subtasks}, and the program {one.layout.subtasks}"
                how = f"call env.set_max_parallelism({layout.subtasks}), or "
            raise CheckpointMismatchError(
                f"checkpoint {checkpoint} {what}; under Spark Connect, tasks of foreachBatch and for_each_batch are"
                f" not told of that: {how}start the query in a classic session"
            )
