"""A micro-batch that was interrupted between the sink's commit and Spark's: its plan has to run again.

State files of format 2 are named by the tasks that wrote them, and Spark asks the tasks of a batch for these names when
it commits the batch. A sink that skips a batch which it has already runs no task, so Spark could never commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pillarbox._runtime.spark.facts import is_classic
from pillarbox._runtime.spark.starting.sink_log import SinkLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
    from pillarbox._runtime.spark.settings.writer import Start

__all__ = ["finish_batch_in_sink", "interrupted_batch_is_read"]

_log = logging.getLogger("pillarbox")


@contextmanager
def interrupted_batch_is_read(start: Start, checkpoint: Checkpoint | None) -> Iterator[None]:
    """Let a query that is started meanwhile read all rows of an interrupted batch, whatever its function reads of it.

    A function of ``foreachBatch`` may return early for a batch that it has written before. The rows are computed once,
    however often the function reads them.
    """
    function = start.batch_function if is_classic(start.spark) else None
    if function is None or checkpoint is None or not checkpoint.is_interrupted:
        yield
        return
    interrupted = checkpoint.last_committed + 1

    def call(batch: DataFrame, batch_id: int) -> None:
        if batch_id != interrupted:
            function(batch, batch_id)
            return
        batch.persist()
        try:
            # A DataFrame of its own: the function may let go of its rows, and Spark keeps these here.
            function(batch.select("*"), batch_id)
            batch.write.format("noop").mode("overwrite").save()
        finally:
            batch.unpersist()

    start.writer.foreachBatch(call)
    try:
        yield
    finally:
        start.writer.foreachBatch(function)


def finish_batch_in_sink(start: Start, checkpoint: Checkpoint, run: Callable[[], StreamingQuery]) -> bool:
    """Run an interrupted batch without the sink, if state files have format 2 and a file sink has the batch already.

    Args:
        run: starts the query, with the settings that it needs.

    Returns:
        whether it was necessary; the batch is committed then.
    """
    if not checkpoint.is_interrupted or not is_classic(start.spark) or checkpoint.state_format != "2":
        return False
    folder = start.files
    interrupted = checkpoint.last_committed + 1
    if folder is None or not SinkLog(start.spark, folder).has(interrupted):
        return False
    _log.warning(
        "checkpoint %s: the query was interrupted after its file sink %s had committed epoch %d: the epoch runs again"
        " without the sink",
        *(checkpoint, folder, interrupted),
    )
    with start.without_sink(), start.one_batch():
        run().awaitTermination()
    return True
