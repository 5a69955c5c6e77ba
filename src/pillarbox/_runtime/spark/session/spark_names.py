"""Spark's settings and local properties that pillarbox uses: purpose, and effect if Spark drops the name.

All supported versions have them, unless a version is named.
"""

from __future__ import annotations

STATE_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"
"""The number of state partitions, independent of the query's other shuffles. Checked: it would be ignored."""

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
"""The user's parallelism. The offset log always stores the number of state partitions under this name. Without it, a
checkpoint seems to have no parallelism.
"""

PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
"""The kind of the state store. Checked: a query would use the session's kind."""

PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The state store that `transformWithState` needs. Without it, Spark refuses to start a query."""

CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
"""An epoch writes changes of the state store, not its files. Without it, epochs with much state take long."""

STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
"""In format 1, attempts overwrite each other's state files, so the last attempt's state counts. Without it, state has
Spark's default format.
"""

CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
"""Spark writes each checkpoint file's size and checksum into a second file, which pillarbox turns off. Without it, each
partition and epoch sends more requests to a store.
"""

SHUFFLE_CHECKSUMS = "spark.sql.shuffle.orderIndependentChecksum.enabled"
"""Spark compares checksums of a task's output if the task runs again; since 4.2 by default. Without it, Spark's default
applies.
"""

SHUFFLE_RETRY = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
"""If these checksums differ, Spark reruns all tasks that may have read the lost output, or fails; since 4.2 by default.
Without it, Spark's default applies.
"""

COMMITS_CHECKED = "spark.sql.streaming.stateStore.commitValidation.enabled"
"""Spark records which partitions of a batch have committed their state, for ``foreachBatch``. Without it, Spark's
default applies.
"""

BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""Limits the rows of Arrow batches. Without it, Spark chooses."""

BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
"""Limits the bytes of Arrow batches. Without it, Spark chooses."""

WILDCARDS = "__globPaths__"
"""Makes Spark's readers take paths literally. Without it, a checkpoint whose path has one of ``[ ] { } * ?`` seems to
be a new one.
"""

# Local properties of tasks.

QUERY_ID = "sql.streaming.queryId"
"""The query's id. Checked: homes of the query's earlier runs would stay."""

BATCH_ID = "streaming.sql.batchId"
"""The number of the micro-batch. Checked: no query would ever be drained, and homes would stay."""

JOB_GROUP = "spark.jobGroup.id"
"""The id of a query's run if pillarbox could not set its own. Without it, such runs share homes."""
