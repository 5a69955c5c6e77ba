"""The settings that are on a session while a query starts: what its programs need, and what its tasks are told."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pillarbox._errors import describe
from pillarbox._graph.layout import Layout
from pillarbox._runtime.spark.plan.registry import PlannedProgram, wanted_parallelism
from pillarbox._runtime.spark.rows.buffer_rows import batch_settings
from pillarbox._runtime.spark.session.session_settings import alone, session_settings
from pillarbox._runtime.spark.session.spark_names import (
    CHANGELOG,
    CHECKSUMS,
    COMMITS_CHECKED,
    PROVIDER,
    PROVIDER_KEY,
    SHUFFLE_CHECKSUMS,
    SHUFFLE_RETRY,
    STATE_FORMAT,
    STATE_PARTITIONS,
)
from pillarbox._runtime.spark.tasks.task_facts import DRAIN, layout_setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint

_log = logging.getLogger("pillarbox")

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
        # If a level of an epoch runs again, Spark commits its state of the last attempt in format 1, and of the first
        # one in format 2, while the next level reads the output of the last attempt.
        STATE_FORMAT: "1",
        # Spark 4.1 compares the output of a task that runs again with the lost one only if it is told to.
        SHUFFLE_CHECKSUMS: "true",
        SHUFFLE_RETRY: "true",
        # Whether a foreachBatch function has read its batch to the end.
        COMMITS_CHECKED: "true",
    }


@contextmanager
def program_settings(
    spark: SparkSession,
    programs: Sequence[PlannedProgram],
    layouts: Sequence[Layout] = (),
    *,
    other_python: bool = False,
) -> Iterator[None]:
    """Set the settings that ``programs`` need on the session meanwhile; no other query starts in this time.

    Args:
        layouts: the layouts of the programs in the query's checkpoint; none: it is a new one that Spark finds.
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
        are_narrow = all(one.facts.has_narrow_rows for one in programs)
        present = spark.conf.getAll
        needed |= batch_settings(spark, present, are_narrow=are_narrow and not other_python)
        if CHECKSUMS not in present:
            # The log of the state proves itself, so checksums next to files of the checkpoint, 22 requests for each
            # partition and epoch, would find nothing more.
            needed[CHECKSUMS] = "false"
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
