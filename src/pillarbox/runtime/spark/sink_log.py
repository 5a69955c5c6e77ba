"""The log of a file sink, which has no gap where the state of its query went to other partitions.

Spark's file sinks (Parquet, JSON and the like) keep a log of their files in ``_spark_metadata`` of their folder, with
an entry for each micro-batch; who reads the folder goes by it. There are batches that no sink hears of: in which Spark
spreads state over other partitions, and the first one of a query that begins from a savepoint. With no entry for one,
reading fails as soon as there is one behind, and so does the sink where it writes the entries of several batches as
one. So the gap is filled before the query goes on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pillarbox.errors import CheckpointMismatchError
from pillarbox.runtime.spark.description import Description
from pillarbox.runtime.spark.writer import files_of, session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["complete_sink_log"]

_log = logging.getLogger("pillarbox")

_METADATA = "_spark_metadata"
_PARTITIONS = "spark.sql.shuffle.partitions"  # by this name the offset log notes those of the state
_VERSION = 1  # of the sink's log
_FAR = 20  # times in a row that somebody may change the partitions


def complete_sink_log(
    writer: Any, description: Description, start: Callable[..., Any], *args: Any, **options: Any
) -> None:
    """Give the log of a file sink an entry for each batch before this start that it did not hear of.

    Args:
        start: ``start`` or ``toTable`` of the writer, about to be called with the arguments behind it.

    Raises:
        CheckpointMismatchError: there is such a batch, and this is Spark Connect, which cannot write an entry.
    """
    spark: Any = session_of(writer)
    folder = files_of(writer, start, *args, **options) if description.last_committed >= 0 else None
    missing = [] if folder is None else _silent(spark, description)
    if not missing:
        return
    if not hasattr(spark, "_jsparkSession"):
        raise CheckpointMismatchError(
            f"checkpoint {description}: epoch {missing[0]} is none of the query's own, and the log of its file sink"
            f" {folder} may not know of it yet: run the next epoch in a classic session, which writes that, and go on"
            " with Spark Connect then"
        )
    jvm = spark.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(folder, _METADATA)
    files = place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if missing[0] > 0 and not files.exists(place):
        return  # it was not the query's sink before
    sinks = jvm.org.apache.spark.sql.execution.streaming.sinks
    log = sinks.FileStreamSinkLog(_VERSION, spark._jsparkSession, place.toString(), jvm.scala.Option.empty())
    last = log.getLatestBatchId()
    for batch in missing:
        if last.isEmpty() or batch > last.get():
            log.add(batch, spark.sparkContext._gateway.new_array(sinks.SinkFileStatus, 0))
            _log.info("file sink %s: its log has an entry now for epoch %d, which is none of its own", folder, batch)


def _silent(spark: SparkSession, description: Description) -> list[int]:
    """Return the last batches, as far as they are those that no sink heard of, in their order."""
    last = description.last_committed
    names = ",".join(map(str, range(max(last - _FAR, 0), last + 1)))
    lines = spark.read.text(f"{description}/offsets/{{{names}}}").select("_metadata.file_name", "value").collect()
    partitions: dict[int, str] = {}
    for name, line in lines:
        settings = json.loads(line).get("conf") if line.startswith("{") else None
        if isinstance(settings, dict) and _PARTITIONS in settings:
            partitions[int(name)] = settings[_PARTITIONS]

    def is_silent(batch: int) -> bool:
        if batch == 0:
            return description.savepoint is not None
        return batch in partitions and partitions.get(batch - 1) not in (None, partitions[batch])

    return [*takewhile(is_silent, range(last, -1, -1))][::-1]
