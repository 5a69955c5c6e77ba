"""Completes micro-batches that a ``foreachBatch`` function reads only in part. For classic sessions.

A partition's state is committed only if a task computes all rows of the partition. So Spark fails a query whose
function reads only some rows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pillarbox._runtime.spark.session.queries import QueryStateCommits, with_short_interruptions
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
    from pillarbox._runtime.spark.session.writer import WriterStart

_log = logging.getLogger("pillarbox")


class WholeBatches:
    """Replaces a query's ``foreachBatch`` function for one run, to compute batches completely.

    The first batch that the function reads only in part is computed again; later batches are persisted.
    """

    def __init__(self, function: Callable[[DataFrame, int], Any], interrupted: int | None) -> None:
        self._function = function
        self._interrupted = interrupted
        self._persists = False
        self._commits: QueryStateCommits | None = None
        self._started = threading.Event()

    def set_query(self, query: StreamingQuery) -> None:
        self._commits = QueryStateCommits(query)
        self._started.set()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        if self._persists or batch_id == self._interrupted:
            self._call_persisted(batch, batch_id)
            return
        self._function(batch, batch_id)
        self._started.wait()
        assert self._commits is not None
        if self._commits.are_complete(batch_id):
            return
        self._persists = True
        name = getattr(self._function, "__name__", type(self._function).__name__)
        _log.warning(
            "the foreachBatch function %s() read only a part of batch %d, so the batch is computed again, and the"
            " query persists all later batches. To avoid both, use env.for_each_batch(), which always computes each"
            " batch once",
            *(name, batch_id),
        )
        _compute(batch)

    def _call_persisted(self, batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        try:
            # The function may unpersist its own DataFrame.
            self._function(batch.select("*"), batch_id)
            _compute(batch)
        finally:
            batch.unpersist()


def _compute(batch: DataFrame) -> None:
    batch.write.format("noop").mode("overwrite").save()


@contextmanager
def whole_batches(start: WriterStart, checkpoint: Checkpoint | None) -> Iterator[Callable[[StreamingQuery], None]]:
    """Compute all rows of each batch within the block, even if the query's function reads only some of them.

    Start the query in the block, and pass it to the yielded function.
    """
    function = start.batch_function
    if function is None or not session_of(start.spark).has_jvm:
        yield _ignore
        return
    complete, set_query = function, _ignore
    if not start.function_reads_all:
        is_interrupted = checkpoint is not None and checkpoint.is_interrupted
        batches = WholeBatches(function, checkpoint.last_committed + 1 if checkpoint and is_interrupted else None)
        complete, set_query = batches, batches.set_query
    start.writer.foreachBatch(with_short_interruptions(complete))
    try:
        yield set_query
    finally:
        start.writer.foreachBatch(function)


def _ignore(query: StreamingQuery) -> None: ...
