"""Starting queries: the settings that a program needs are on the user's session while its query starts, and only then.

A stateful query takes the number of its partitions, its state store and its batch bounds from the session when it
starts: Spark then clones the session for the query, and notes partitions and state store in the offset log, from which
a restart takes them. So a program runs in the user's own session, and nothing of this reaches any other query.
"""

from __future__ import annotations

import functools
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pillarbox._errors import CheckpointMismatchError, ProgramError, describe
from pillarbox._graph import CODES, Layout
from pillarbox._runtime.spark.checkpoint.checkpoint_files import CheckpointFiles
from pillarbox._runtime.spark.checkpoint.description import Description
from pillarbox._runtime.spark.facts import CHECKSUMS, STATE_FORMAT, is_classic
from pillarbox._runtime.spark.homes.settings import settings_of
from pillarbox._runtime.spark.plan.other_python import runs_other_python
from pillarbox._runtime.spark.plan.registry import (
    PlannedProgram,
    free_metrics_names,
    is_one_unstarted,
    programs_of,
    wanted_parallelism,
)
from pillarbox._runtime.spark.rows.buffer_rows import batch_settings
from pillarbox._runtime.spark.settings.session import reason_for_default, session_settings
from pillarbox._runtime.spark.settings.state_settings import PROVIDER, PROVIDER_KEY, alone, spark_version
from pillarbox._runtime.spark.settings.writer import (
    checkpoint_of,
    note_batch_function,
    runs_every_plan,
    session_of,
    tasks_are_told,
)
from pillarbox._runtime.spark.starting.closing import close_ended_queries
from pillarbox._runtime.spark.starting.interrupted_batch import finish_batch_in_sink, interrupted_batch_is_read
from pillarbox._runtime.spark.starting.last_epoch import drain_setting
from pillarbox._runtime.spark.starting.sink_log import complete_sink_log
from pillarbox._runtime.spark.starting.started import StartedQuery, remember
from pillarbox._runtime.spark.starting.waking import begin_batch_without_input
from pillarbox._runtime.spark.tasks.layouts import RUN, STATE_PARTITIONS, check_compiled, layout_setting
from pillarbox._runtime.spark.telling import tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["changes_refused", "program_settings", "watch_starts"]

# From this version on a checkpoint keeps the format with which it was begun: before, one of format 1 does not start
# with format 2 set, and in 4.1 the first query of a driver sets the format of all.
_FORMAT_KEPT_SINCE = (4, 3)

# How Spark is to write state files, by whether the sink runs the plan of every batch. In format 2 no attempt can write
# over the files of another one, but Spark cannot commit a batch whose plan did not run. The log of the state proves
# itself, so checksums beside the files, 22 requests for each partition and epoch, would find nothing more.
_STATE_FILES = {True: {STATE_FORMAT: "2", CHECKSUMS: "false"}, False: {STATE_FORMAT: "1", CHECKSUMS: "false"}}

_wrapping = threading.Lock()  # guards the methods of writers

_log = logging.getLogger("pillarbox")

_WRAPPED = "_pillarbox_wrapped"

_refusing: ContextVar[bool] = ContextVar("pillarbox_refusing", default=False)


def _needed(programs: Sequence[PlannedProgram], layouts: Sequence[Layout]) -> dict[str, str]:
    if not any(program.parallelism for program in programs):
        return {}
    parallelism = wanted_parallelism(programs) or max(program.parallelism for program in programs)
    return {
        **dict(layout_setting(program.id, layout) for program, layout in zip(programs, layouts)),
        STATE_PARTITIONS: str(parallelism),
        PROVIDER_KEY: PROVIDER,
        # An epoch writes the changes of the state store, not its files.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }


@contextmanager
def program_settings(
    spark: SparkSession,
    programs: Sequence[PlannedProgram],
    layouts: Sequence[Layout] = (),
    *,
    runs_every_plan: bool,
    other_python: bool = False,
) -> Iterator[None]:
    """Set the settings that ``programs`` need on the session meanwhile; no other query starts in this time.

    Args:
        layouts: those of the programs in the query's checkpoint; none: it is a new one that Spark finds a place for.
        runs_every_plan: whether the query's sink reads the rows of each batch, also of one that it has already.
        other_python: whether the query may hand rows to other Python functions, too.

    Raises:
        ProgramError: they cannot run in one query.
        ConfigurationError: another query has been starting for ten minutes.
    """
    needed = _needed(programs, layouts)
    with alone():
        if not needed:
            yield
            return
        are_narrow = all(one.facts is not None and one.facts.has_narrow_rows for one in programs)
        needed |= batch_settings(spark, are_narrow=are_narrow and not other_python)
        # What the user has set holds.
        for key, value in _STATE_FILES[runs_every_plan].items():
            if key not in spark.conf.getAll and (key != STATE_FORMAT or spark_version(spark) >= _FORMAT_KEPT_SINCE):
                needed[key] = value
        with session_settings(spark, needed):
            yield


@contextmanager
def changes_refused() -> Iterator[None]:
    """Let starts in this thread refuse programs that cannot go on with the checkpoint, as far as its notes tell."""
    token = _refusing.set(True)
    try:
        yield
    finally:
        _refusing.reset(token)


def _layouts_in(spark: SparkSession, description: Description, planned: Sequence[PlannedProgram]) -> list[Layout]:
    """Return how the programs of a query are laid out in its checkpoint."""
    compiled = [one.layout for one in planned]
    try:
        found = description.layouts(compiled, lambda: _layouts_in_state(spark, description, planned))
    except Exception as error:  # if they are others, the tasks will notice
        if _refusing.get() and isinstance(error, CheckpointMismatchError):
            raise
        _log.warning("checkpoint %s: the subtasks in it are not known: %s", description, describe(error))
        return [each._replace(codes=CODES) for each in compiled]
    # One that the user has set holds; if it is another one, it is refused.
    return [
        one.layout._replace(codes=CODES) if one.sets_max_parallelism and one.layout.subtasks != each.subtasks else each
        for one, each in zip(planned, found)
    ]


def _layouts_in_state(
    spark: SparkSession, description: Description, planned: Sequence[PlannedProgram]
) -> list[Layout | None]:
    """Return the layout of each program, from the heads of the logs; None: it has none, or nobody knows which."""
    heads = CheckpointFiles(spark, str(description)).every_head()
    found: list[Layout | None] = []
    for one in planned:
        uids = None if one.facts is None else one.facts.description.uids
        own = [head for head in heads if (len(planned) == 1 if uids is None else head.operator in uids)]
        if not own:
            found.append(None)
            continue
        numbers = max(head.parallelism for head in own), max(head.max_parallelism for head in own)
        found.append(Layout(*numbers, CODES))
    return found


def _look_at_checkpoint(description: Description, planned: Sequence[PlannedProgram], layouts: Sequence[Layout]) -> None:
    stateful = [(one, layout) for one, layout in zip(planned, layouts) if one.parallelism]
    if _refusing.get() and stateful:
        description.check_parallelism(wanted_parallelism(planned), min(layout.subtasks for _, layout in stateful))
    programs = [one.facts.description for one in planned if one.facts is not None]
    if len(programs) < len(planned):
        return
    if _refusing.get():
        description.check(programs, layouts)
        return
    try:
        description.follow(programs, layouts)
    except Exception as error:  # the query can do without
        _log.warning("checkpoint %s: its program could not be noted: %s", description, describe(error))


def _tell_defaults(spark: SparkSession, planned: Sequence[PlannedProgram]) -> None:
    """Tell the numbers that the user has not set, as a checkpoint keeps them."""
    stateful = [one for one in planned if one.parallelism]
    if stateful and wanted_parallelism(stateful) is None:
        tell(
            f"the query begins with parallelism {max(one.parallelism for one in stateful)},"
            f" {reason_for_default(spark)}: env.set_parallelism() sets another one, and 'pillarbox rescale' changes it,"
            " up to the max parallelism"
        )
    fixed = {one.layout.subtasks for one in stateful if not one.sets_max_parallelism}
    if fixed:
        tell(
            f"the query begins with max parallelism {' and '.join(map(str, sorted(fixed)))},"
            " which is now fixed: env.set_max_parallelism() sets another one for a new checkpoint, which may begin"
            " with a savepoint of this one"
        )


def watch_starts(spark: SparkSession) -> None:
    """Let the queries of this kind of session (classic or Spark Connect) start through :func:`program_settings`."""
    writer: type[Any]
    if is_classic(spark):
        from pyspark.sql.streaming.readwriter import DataStreamWriter as writer
    else:
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as writer
    with _wrapping:
        for method in ("start", "toTable"):
            start = getattr(writer, method)
            if not hasattr(start, _WRAPPED):
                setattr(writer, method, _with_settings(start))
        if not hasattr(writer.foreachBatch, _WRAPPED):
            writer.foreachBatch = _noting_function(writer.foreachBatch)


def _noting_function(for_each_batch: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(for_each_batch)
    def wrapper(writer: Any, func: Callable[..., Any]) -> Any:
        note_batch_function(writer, func)
        return for_each_batch(writer, func)

    setattr(wrapper, _WRAPPED, True)
    return wrapper


def _programs_to_start(writer: Any, spark: SparkSession) -> list[PlannedProgram]:
    """Return the programs of a query that starts: none, if its plan cannot be read, and no program is to be started."""
    try:
        return programs_of(writer)
    except ProgramError:
        raise
    except Exception as error:
        if is_one_unstarted(spark):
            raise  # one may be in this query, and would run without its settings
        _log.warning(
            "whether a query has programs of pillarbox is not known, so it starts as it is: %s", describe(error)
        )
        return []


def _with_settings(start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def wrapper(writer: Any, *args: Any, **options: Any) -> Any:
        spark = session_of(writer)
        programs = _programs_to_start(writer, spark)
        layouts: list[Layout] = []
        checkpoint: str | None = None
        settings: dict[str, str] = {}
        is_new = True
        description: Description | None = None
        reads, other_python = True, False
        if programs:
            from pillarbox._runtime.spark.starting.first_epoch import begin_from_savepoint

            settings_of(lambda name: spark.conf.get(name, None))  # before anything runs
            run = {RUN: uuid.uuid4().hex}
            settings = dict(run)
            # Also if it is refused: programs that come now take the place of these.
            free_metrics_names(spark, programs)
            checkpoint = checkpoint_of(writer, start.__get__(writer), *args, **options)
            reads = runs_every_plan(writer, start.__get__(writer), *args, **options)
            other_python = runs_other_python(writer)
            begin_from_savepoint(writer, programs, checkpoint, start.__get__(writer), *args, **options)
            if checkpoint is not None:
                description = Description(spark, checkpoint)
                layouts = _layouts_in(spark, description, programs)
                if not tasks_are_told(writer):
                    check_compiled(description, programs, layouts)
                _look_at_checkpoint(description, programs, layouts)
                settings |= drain_setting(description)

                def finish() -> Any:
                    with (
                        program_settings(spark, programs, layouts, runs_every_plan=False, other_python=other_python),
                        session_settings(spark, settings),
                    ):
                        return type(writer).start.__wrapped__(writer, checkpointLocation=checkpoint)

                if finish_batch_in_sink(writer, description, finish, start.__get__(writer), *args, **options):
                    description = Description(spark, checkpoint)
                    settings = run | drain_setting(description)
                complete_sink_log(writer, description, start.__get__(writer), *args, **options)
                is_new = description.is_new
                if settings == run:
                    begin_batch_without_input(writer, description, programs)
            if is_new:
                _tell_defaults(spark, programs)
        with (
            interrupted_batch_is_read(writer, description),
            program_settings(spark, programs, layouts, runs_every_plan=reads, other_python=other_python),
            session_settings(spark, settings),
        ):
            query = start(writer, *args, **options)
        if programs:
            again = functools.partial(getattr(writer, start.__name__), *args, **options)
            started = StartedQuery(query, writer, again, checkpoint, programs, run[RUN])
            # Nobody looks after a query that was started by its writer alone: its end is noticed now.
            close_ended_queries(spark, remember(started))
        return query

    setattr(wrapper, _WRAPPED, True)
    return wrapper
