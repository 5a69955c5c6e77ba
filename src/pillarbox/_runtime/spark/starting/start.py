"""Starts queries. The user's session has the programs' settings only while a query starts.

Spark clones a starting query's session, and notes the state partitions and state store in the offset log. So a program
can run in the user's own session without affecting other queries.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pillarbox._errors import CheckpointMismatchError, ProgramError, describe
from pillarbox._graph.layout import Layout
from pillarbox._graph.targets import CODES
from pillarbox._runtime.spark.budgets.spent import resume_ceilings
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.checkpoint.damage import check_logs
from pillarbox._runtime.spark.checkpoint.state import CheckpointState
from pillarbox._runtime.spark.homes.settings import settings_of
from pillarbox._runtime.spark.notices import notify
from pillarbox._runtime.spark.plan.other_python import runs_other_python
from pillarbox._runtime.spark.plan.registry import (
    RegisteredProgram,
    check_uids,
    is_one_unstarted,
    note_start,
    programs_of,
    wanted_parallelism,
)
from pillarbox._runtime.spark.session.configuration import SessionConfiguration, configuration_of
from pillarbox._runtime.spark.session.parallelism import default_parallelism
from pillarbox._runtime.spark.session.session_settings import alone, session_settings
from pillarbox._runtime.spark.session.writer import WriterStart
from pillarbox._runtime.spark.starting.closing import close_ended_queries
from pillarbox._runtime.spark.starting.first_batch import begin_batch_without_input
from pillarbox._runtime.spark.starting.first_epoch import begin_from_savepoint
from pillarbox._runtime.spark.starting.query_settings import drain_setting, program_settings
from pillarbox._runtime.spark.starting.sink_log import complete_sink_log
from pillarbox._runtime.spark.starting.started import StartedQuery, remember
from pillarbox._runtime.spark.starting.whole_batches import whole_batches
from pillarbox._runtime.spark.tasks.task_info import RUN
from pillarbox._runtime.spark.tools import ToolHooks, installed_tools

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("pillarbox")

# Whether starts in this thread refuse changes, and whether the caller watches the queries.
_refusing: ContextVar[bool] = ContextVar("pillarbox_refusing", default=False)
_watched: ContextVar[bool] = ContextVar("pillarbox_watched", default=False)


@contextmanager
def changes_refused(*, watched: bool = False) -> Iterator[None]:
    """Within the block, refuse to start a program in this thread if its checkpoint's notes rule out resuming.

    With ``watched``, the caller watches the queries and calls the tools' hooks for them.
    """
    tokens = _refusing.set(True), _watched.set(watched)
    try:
        yield
    finally:
        _refusing.reset(tokens[0])
        _watched.reset(tokens[1])


def start_query(start: WriterStart, method: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query with its programs' settings, if any. ``method`` is the writer's own ``start``."""
    programs = _programs_to_start(start)
    if programs:
        return _Starter(start, programs).run(method)
    with alone():
        return method()


def _programs_to_start(start: WriterStart) -> list[RegisteredProgram]:
    """Return the programs of a query that is starting.

    Raises if the plan cannot be read but may contain a program.
    """
    try:
        return programs_of(start.writer)
    except ProgramError:
        raise
    except Exception as error:
        if is_one_unstarted(start.spark):
            raise  # a program in this query would run without its settings
        _log.warning(
            "the query's programs cannot be determined, so it starts without pillarbox's settings: %s", describe(error)
        )
        return []


class _Starter:
    def __init__(self, start: WriterStart, programs: Sequence[RegisteredProgram]) -> None:
        self._start = start
        self._spark = start.spark
        self._programs = programs
        self._run_id = uuid.uuid4().hex
        self._layouts: list[Layout] = []
        # Settings for tasks of the last epoch.
        self._drain: dict[str, str] = {}
        self._other_python = True

    def run(self, method: Callable[[], StreamingQuery]) -> StreamingQuery:
        start, spark, programs = self._start, self._spark, self._programs
        check_uids(programs)
        settings_of(lambda name: spark.conf.get(name, None))  # raises before anything runs
        # Noted even if the query is refused.
        note_start(spark)
        # Checked before a function of ``foreachBatch`` is wrapped.
        self._other_python = runs_other_python(start)
        checkpoint = None if start.checkpoint is None else Checkpoint(spark, start.checkpoint)
        if begin_from_savepoint(start, programs, checkpoint):
            checkpoint = Checkpoint(spark, str(checkpoint))
        if checkpoint is not None:
            checkpoint = self._prepared(checkpoint)
        if checkpoint is None or checkpoint.is_new:
            _notify_defaults(spark, programs)
        spent = resume_ceilings(spark, [program.id for program in programs], checkpoint)
        with whole_batches(start, checkpoint) as set_query, self._settings():
            query = method()
            set_query(query)
        if spent is not None:
            spent.belongs_to(query)
        # Done while Spark prepares the first epoch.
        configuration = self._configuration(checkpoint)
        started = StartedQuery(
            *(query, start, programs, self._run_id, configuration, self._layouts), is_watched=_watched.get()
        )
        # Nothing else notices the end of unwatched queries.
        close_ended_queries(remember(started))
        tools = installed_tools()
        if tools is not None:
            started.hooks = ToolHooks(started, tools)
        return query

    def _configuration(self, checkpoint: Checkpoint | None) -> SessionConfiguration:
        present = None if checkpoint is None else checkpoint.cached_parallelism
        stateful = [program.parallelism for program in self._programs if program.parallelism]
        own = {"trigger": self._start.trigger}
        if stateful:
            own["parallelism"] = str(present or max(stateful))
        return configuration_of(self._spark, **own)

    @contextmanager
    def _settings(self) -> Iterator[None]:
        needed = program_settings(
            self._spark,
            self._programs,
            self._layouts,
            other_python=self._other_python,
        )
        with needed, session_settings(self._spark, {**run_setting(self._start, self._run_id), **self._drain}):
            yield

    def _prepared(self, checkpoint: Checkpoint) -> Checkpoint:
        """Check the checkpoint, note the programs, and add missing log entries. Returns the updated checkpoint."""
        start, programs = self._start, self._programs
        check_logs(self._spark, checkpoint)
        if any(program.parallelism for program in programs):
            checkpoint.check_state_format()
        self._layouts = self._layouts_in(checkpoint)
        if not start.passes_settings:
            check_compiled(checkpoint, programs, self._layouts)
        self._look_at_notes(checkpoint)
        self._drain = drain_setting(checkpoint)
        complete_sink_log(start, checkpoint)
        if not self._drain:
            begin_batch_without_input(start, checkpoint, programs)
        return checkpoint

    def _layouts_in(self, checkpoint: Checkpoint) -> list[Layout]:
        compiled = [program.layout for program in self._programs]
        try:
            noted = checkpoint.layouts(compiled, lambda: _layouts_in_state(self._spark, checkpoint, self._programs))
        except Exception as error:  # tasks will detect a difference
            if _refusing.get() and isinstance(error, CheckpointMismatchError):
                raise
            _log.warning("checkpoint %s: its subtasks cannot be determined: %s", checkpoint, describe(error))
            return [layout._replace(codes=CODES) for layout in compiled]
        # A max parallelism that the user has set takes precedence.
        return [
            layout
            if layout.subtasks == program.layout.subtasks or not program.sets_max_parallelism
            else own._replace(codes=CODES)
            for program, own, layout in zip(self._programs, compiled, noted)
        ]

    def _look_at_notes(self, checkpoint: Checkpoint) -> None:
        programs = self._programs
        stateful = [layout.subtasks for program, layout in zip(programs, self._layouts) if program.parallelism]
        if _refusing.get() and stateful:
            checkpoint.check_parallelism(wanted_parallelism(programs), min(stateful))
        described = [program.summary.description for program in programs]
        if _refusing.get():
            checkpoint.check(described, self._layouts)
            return
        try:
            checkpoint.follow(described, self._layouts)
        except Exception as error:
            _log.warning(
                "checkpoint %s: the program's description could not be written: %s", checkpoint, describe(error)
            )


def _layouts_in_state(
    spark: SparkSession, checkpoint: Checkpoint, planned: Sequence[RegisteredProgram]
) -> list[Layout | None]:
    heads = CheckpointState(spark, str(checkpoint)).all_heads()
    layouts: list[Layout | None] = []
    for program in planned:
        own = [head for head in heads if head.operator in program.summary.description.uids]
        if not own:
            layouts.append(None)
            continue
        numbers = max(head.parallelism for head in own), max(head.max_parallelism for head in own)
        layouts.append(Layout(*numbers, CODES))
    return layouts


def run_setting(start: WriterStart, run_id: str) -> dict[str, str]:
    # Without ``passes_settings``, only epochs during the start might see the run's id, and these could be another
    # query's. Homes are then identified by their plan's secret alone.
    return {RUN: run_id} if start.passes_settings else {}


def check_compiled(checkpoint: Checkpoint, planned: Sequence[RegisteredProgram], layouts: Sequence[Layout]) -> None:
    """Raise if the checkpoint's layout differs from the program's. Called if tasks cannot receive another layout."""
    for program, layout in zip(planned, layouts):
        if program.parallelism and layout != program.layout._replace(codes=CODES):
            what, how = "has another layout than the program", ""
            if layout.subtasks != program.layout.subtasks:
                what = f"has max parallelism {layout.subtasks}, but the program has {program.layout.subtasks}"
                how = f"call env.set_max_parallelism({layout.subtasks}), or "
            raise CheckpointMismatchError(
                f"checkpoint {checkpoint} {what}. Under Spark Connect, tasks of foreachBatch and for_each_batch cannot"
                f" detect that: {how}start the query in a classic session"
            )


def _notify_defaults(spark: SparkSession, planned: Sequence[RegisteredProgram]) -> None:
    """Notify the user of default parallelisms, which the checkpoint makes permanent."""
    stateful = [program for program in planned if program.parallelism]
    if stateful and wanted_parallelism(stateful) is None:
        notify(
            f"the query begins with parallelism {max(program.parallelism for program in stateful)},"
            f" {default_parallelism(spark)[1]}: set another one with env.set_parallelism(), or change it later with"
            " 'pillarbox rescale', up to the max parallelism"
        )
    fixed = {program.layout.subtasks for program in stateful if not program.sets_max_parallelism}
    if fixed:
        notify(
            f"the query begins with max parallelism {' and '.join(map(str, sorted(fixed)))}, which is now fixed: to"
            " change it, call env.set_max_parallelism() and use a new checkpoint directory, which can start from a"
            " savepoint of this one"
        )
