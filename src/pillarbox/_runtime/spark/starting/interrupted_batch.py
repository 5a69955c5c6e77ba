"""A micro-batch that was interrupted between the sink's commit and Spark's: its plan has to run again.

State files of format 2 are named by the tasks that wrote them, and Spark asks the tasks of a batch for these names when
it commits the batch. A sink that skips a batch which it has already runs no task, so Spark could never commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pillarbox._runtime.spark.checkpoint.description import Description
from pillarbox._runtime.spark.facts import is_classic
from pillarbox._runtime.spark.settings.writer import batch_function, files_of, one_batch, session_of, without_sink
from pillarbox._runtime.spark.starting.sink_log import SinkLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["finish_batch_in_sink", "interrupted_batch_is_read"]

_log = logging.getLogger("pillarbox")


@contextmanager
def interrupted_batch_is_read(writer: Any, description: Description | None) -> Iterator[None]:
    """Let a query that is started meanwhile read all rows of an interrupted batch, whatever its function reads of it.

    A function of ``foreachBatch`` may return early for a batch that it has written before. The rows are computed once,
    however often the function reads them.
    """
    function = batch_function(writer) if description is not None and is_classic(session_of(writer)) else None
    if function is None or description is None or not description.is_interrupted:
        yield
        return
    interrupted = description.last_committed + 1

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

    writer.foreachBatch(call)
    try:
        yield
    finally:
        writer.foreachBatch(function)


def finish_batch_in_sink(
    writer: Any, description: Description, run: Callable[[], Any], start: Callable[..., Any], *args: Any, **options: Any
) -> bool:
    """Run an interrupted batch without the sink, if state files have format 2 and a file sink has the batch already.

    Args:
        run: starts the query, with the settings that it needs.
        start: ``start`` or ``toTable`` of the writer, about to be called with the arguments after it.

    Returns:
        whether it was necessary; the batch is committed then.
    """
    spark: Any = session_of(writer)
    if not description.is_interrupted or not is_classic(spark) or description.state_format != "2":
        return False
    folder = files_of(writer, start, *args, **options)
    interrupted = description.last_committed + 1
    if folder is None or not SinkLog(spark, folder).has(interrupted):
        return False
    _log.warning(
        "checkpoint %s: the query was interrupted after its file sink %s had committed epoch %d: the epoch runs again"
        " without the sink",
        *(description, folder, interrupted),
    )
    with without_sink(writer), one_batch(writer):
        run().awaitTermination()
    return True
