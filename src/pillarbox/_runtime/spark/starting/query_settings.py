"""A session's settings while a query starts: its programs' requirements, and parameters for its tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pillarbox._errors import describe
from pillarbox._graph.layout import Layout
from pillarbox._runtime.spark.plan.registry import RegisteredProgram, wanted_parallelism
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
    SIMPLIFIED_TRACEBACK,
    STATE_FORMAT,
    STATE_PARTITIONS,
)
from pillarbox._runtime.spark.tasks.task_info import DRAIN, layout_setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint

_log = logging.getLogger("pillarbox")

_last_epoch: ContextVar[int | None] = ContextVar("pillarbox_last_epoch", default=None)


def _needed(programs: Sequence[RegisteredProgram], layouts: Sequence[Layout]) -> dict[str, str]:
    if not any(program.parallelism for program in programs):
        return {}
    parallelism = wanted_parallelism(programs) or max(program.parallelism for program in programs)
    return {
        **dict(layout_setting(program.id, layout) for program, layout in zip(programs, layouts)),
        STATE_PARTITIONS: str(parallelism),
        PROVIDER_KEY: PROVIDER,
        # Uploads the state store's changes, not its files.
        CHANGELOG: "true",
        # If a level runs again, the next level reads the last attempt's output. Format 1 also commits that attempt's
        # state.
        STATE_FORMAT: "1",
        # Without this setting, Spark 4.1 does not compare a repeated task's output.
        SHUFFLE_CHECKSUMS: "true",
        SHUFFLE_RETRY: "true",
        # Shows whether a foreachBatch function has read its batch.
        COMMITS_CHECKED: "true",
    }


@contextmanager
def program_settings(
    spark: SparkSession,
    programs: Sequence[RegisteredProgram],
    layouts: Sequence[Layout] = (),
    *,
    other_python: bool = False,
) -> Iterator[None]:
    """Apply the programs' settings to the session within the block. Other queries cannot start during the block."""
    needed = _needed(programs, layouts)
    with alone():
        if not needed:
            yield
            return
        are_narrow = all(program.summary.has_narrow_rows for program in programs)
        present = spark.conf.getAll
        needed |= batch_settings(spark, present, are_narrow=are_narrow and not other_python)
        if CHECKSUMS not in present:
            # The state log verifies itself, and checksum files take 22 requests per partition and epoch.
            needed[CHECKSUMS] = "false"
        if SIMPLIFIED_TRACEBACK not in present:
            # One set of Python workers for all stages.
            needed[SIMPLIFIED_TRACEBACK] = "false"
        with session_settings(spark, needed, present):
            yield


@contextmanager
def last_epoch(number: int) -> Iterator[None]:
    """Within the block, make micro-batch ``number`` emit the final watermark in queries that this thread starts."""
    token = _last_epoch.set(number)
    try:
        yield
    finally:
        _last_epoch.reset(token)


def drain_setting(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the setting that ends event time if a query runs or repeats its last micro-batch, otherwise {}."""
    number = _last_epoch.get()
    try:
        if number is None and checkpoint.last_epoch_begun is None:
            checkpoint.forget_last_epoch()
            if checkpoint.is_drained():
                _log.warning(
                    "checkpoint %s was drained, which sent the final watermark, so all further records are late: use a"
                    " new checkpoint directory",
                    checkpoint,
                )
            return {}
        number = checkpoint.last_epoch_begun if number is None else number
    except Exception as error:
        _log.warning("checkpoint %s: cannot determine whether it was drained: %s", checkpoint, describe(error))
    return {} if number is None else {DRAIN: str(number)}
