"""Spark's settings and local properties that pillarbox uses.

Names with "Checked" are checked at a query's start. The effect of a missing name follows.
"""

from __future__ import annotations

STATE_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"
"""The number of state partitions, independent of the query's other shuffles. Checked: Spark would ignore the setting.
"""

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
"""The user's parallelism. The offset log always stores the number of state partitions under this name."""

PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
"""The kind of the state store. Checked: a query would use the session's kind."""

PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The state store that `transformWithState` needs."""

CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
"""An epoch writes changes of the state store, not its files."""

STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
"""In format 1, attempts overwrite each other's state files, so the last attempt's state counts."""

CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
"""Spark writes each checkpoint file's checksum into a second file, which pillarbox turns off: fewer requests to a
store.
"""

SHUFFLE_CHECKSUMS = "spark.sql.shuffle.orderIndependentChecksum.enabled"
"""Spark compares checksums of a task's output if the task runs again; since 4.2 by default."""

SHUFFLE_RETRY = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
"""If these checksums differ, Spark reruns all tasks that may have read the lost output, or fails; since 4.2 by default.
"""

COMMITS_CHECKED = "spark.sql.streaming.stateStore.commitValidation.enabled"
"""Spark records which partitions of a batch have committed their state, for ``foreachBatch``."""

BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""Limits the rows of Arrow batches."""

BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
"""Limits the bytes of Arrow batches."""

WILDCARDS = "__globPaths__"
"""Makes Spark's readers take paths literally. Without it, a checkpoint path with one of ``[ ] { } * ?`` seems new."""

# Local properties of tasks.

QUERY_ID = "sql.streaming.queryId"
"""The query's id. Checked: homes of the query's earlier runs would stay."""

BATCH_ID = "streaming.sql.batchId"
"""The number of the micro-batch. Checked: no query would be drained, and homes would stay."""

JOB_GROUP = "spark.jobGroup.id"
"""The id of a query's run if pillarbox could not set its own."""
