"""The settings that are on a session while a query starts: what its programs need, and what its tasks are told."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pillarbox._errors import describe
from pillarbox._graph.layout import Layout
from pillarbox._runtime.spark.facts import CHANGELOG, CHECKSUMS, PROVIDER, PROVIDER_KEY, STATE_FORMAT, STATE_PARTITIONS
from pillarbox._runtime.spark.plan.registry import PlannedProgram, wanted_parallelism
from pillarbox._runtime.spark.rows.buffer_rows import batch_settings
from pillarbox._runtime.spark.settings.session_settings import alone, session_settings, spark_version
from pillarbox._runtime.spark.tasks.task_facts import DRAIN, layout_setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint

_log = logging.getLogger("pillarbox")

# From this version on a checkpoint keeps the format with which it was begun: before, one of format 1 does not start
# with format 2 set, and in 4.1 the first query of a driver sets the format of all.
_FORMAT_KEPT_SINCE = (4, 3)

# How Spark is to write state files, by whether the sink runs the plan of every batch. In format 2 no attempt can write
# over the files of another one, but Spark cannot commit a batch whose plan did not run. The log of the state proves
# itself, so checksums next to the files, 22 requests for each partition and epoch, would find nothing more.
_STATE_FILES = {True: {STATE_FORMAT: "2", CHECKSUMS: "false"}, False: {STATE_FORMAT: "1", CHECKSUMS: "false"}}

_last_epoch: ContextVar[int | None] = ContextVar("pillarbox_last_epoch", default=None)


def _needed(programs: Sequence[PlannedProgram], layouts: Sequence[Layout]) -> dict[str, str]:
    if not any(program.parallelism for program in programs):
        return {}
    parallelism = wanted_parallelism(programs) or max(program.parallelism for program in programs)
    return {
        **dict(layout_setting(program.id, layout) for program, layout in zip(programs, layouts)),
        STATE_PARTITIONS: str(parallelism),
        PROVIDER_KEY: PROVIDER,
        # An epoch writes the changes of the state store, not its files.
        CHANGELOG: "true",
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
        layouts: the layouts of the programs in the query's checkpoint; none: it is a new one that Spark finds.
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
        present = spark.conf.getAll
        needed |= batch_settings(spark, present, are_narrow=are_narrow and not other_python)
        # Settings of the user take precedence.
        for key, value in _STATE_FILES[runs_every_plan].items():
            if key not in present and (key != STATE_FORMAT or spark_version(spark) >= _FORMAT_KEPT_SINCE):
                needed[key] = value
        with session_settings(spark, needed, present):
            yield


@contextmanager
def last_epoch(number: int) -> Iterator[None]:
    """Let event time end in a micro-batch of the queries that this thread starts meanwhile."""
    token = _last_epoch.set(number)
    try:
        yield
    finally:
        _last_epoch.reset(token)


def drain_setting(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the setting that says which micro-batch is the last one, if one is, or is to be run again as such."""
    number = _last_epoch.get()
    try:
        if number is None and checkpoint.last_epoch_begun is None:
            checkpoint.forget_last_epoch()
            if checkpoint.is_drained():
                _log.warning(
                    "checkpoint %s was drained: event time has ended in it, so all further records are late;"
                    " start from a new checkpoint",
                    checkpoint,
                )
            return {}
        number = checkpoint.last_epoch_begun if number is None else number
    except Exception as error:
        _log.warning("checkpoint %s: whether it was drained is not known: %s", checkpoint, describe(error))
    return {} if number is None else {DRAIN: str(number)}
