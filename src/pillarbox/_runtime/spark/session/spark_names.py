"""Names of Spark settings and local properties that pillarbox uses.

"If missing" describes the effect if Spark lacks the name.
"""

from __future__ import annotations

STATE_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"
"""The number of state partitions, independent of the query's other shuffles. If missing, Spark ignores the setting."""

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
"""The user's parallelism. The offset log stores the number of state partitions under this name."""

PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
"""The class of the state store. If missing, a query uses the session's class."""

PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The state store that `transformWithState` needs."""

CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
"""Makes an epoch write the changes of the state store instead of its files."""

STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
"""In format 1, attempts overwrite each other's state files, so that the last attempt's state is read."""

CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
"""Makes Spark write the checksum of each checkpoint file into a second file. pillarbox turns it off, to send fewer
requests to the store.
"""

SHUFFLE_CHECKSUMS = "spark.sql.shuffle.orderIndependentChecksum.enabled"
"""Makes Spark compare checksums of a task's output if the task runs again. On by default since Spark 4.2."""

SHUFFLE_RETRY = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
"""If these checksums differ, Spark reruns all tasks that may have read the lost output, or fails. On by default since
4.2.
"""

SIMPLIFIED_TRACEBACK = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
"""Makes Spark start separate workers for state, because only the other workers' environments contain this setting."""

COMMITS_CHECKED = "spark.sql.streaming.stateStore.commitValidation.enabled"
"""Makes Spark record which partitions of a batch have committed their state, for ``foreachBatch``."""

BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""Limits the rows of Arrow batches."""

BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
"""Limits the bytes of Arrow batches."""

WILDCARDS = "__globPaths__"
"""Makes Spark's readers take paths literally. If missing, a checkpoint path with one of ``[ ] { } * ?`` seems new."""

# Local properties of tasks.

QUERY_ID = "sql.streaming.queryId"
"""The query's id. If missing, homes of the query's earlier runs are not ended."""

BATCH_ID = "streaming.sql.batchId"
"""The number of the micro-batch. If missing, no query can be drained, and homes are not ended."""

JOB_GROUP = "spark.jobGroup.id"
"""The id of a query's run, which is used if pillarbox could not set its own."""
