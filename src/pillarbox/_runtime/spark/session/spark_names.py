"""Spark's settings and local properties that pillarbox uses, each with its purpose and what happens without it.

All versions that pillarbox supports have them, unless a version is named.
"""

from __future__ import annotations

# -- settings --

STATE_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"
"""For: the number of state partitions, apart from the query's other shuffles. Checked: it would be ignored."""

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
"""For: the parallelism that users set. By this name the offset log notes the number of state partitions, whatever the
session's setting of this name; if it gets another one, a checkpoint seems to say nothing of its parallelism."""

PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
"""For: the kind of the state store. Checked: a query would have the one of the session."""

PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The state store that `transformWithState` needs. If it gets another name, Spark refuses to start a query."""

CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
"""For: an epoch writes the changes of the state store, not its files. If it goes, epochs with much state take long."""

STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
"""For: in format 1, attempts write over each other's state files, so the state of the last attempt of a task counts. If
it goes, state has Spark's default format."""

CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
"""For: Spark writes the size and checksum of each checkpoint file into another file next to it, which pillarbox turns
off. If it goes, each partition and epoch costs more requests to a store."""

SHUFFLE_CHECKSUMS = "spark.sql.shuffle.orderIndependentChecksum.enabled"
"""For: Spark computes checksums of what tasks send, and compares them if a task runs again; since 4.2 by default. If it
goes, Spark does what it does by default."""

SHUFFLE_RETRY = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
"""For: if these checksums differ, Spark runs all tasks again that may have read the lost output, or fails; since 4.2 by
default. If it goes, Spark does what it does by default."""

COMMITS_CHECKED = "spark.sql.streaming.stateStore.commitValidation.enabled"
"""For: Spark notes which partitions of a batch have committed their state, if the sink is ``foreachBatch``. If it goes,
Spark does what it does by default."""

BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""For: a bound of Arrow batches. If it goes, batches are as large as Spark has them."""

BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
"""For: a bound of Arrow batches. If it goes, batches are as large as Spark has them."""

WILDCARDS = "__globPaths__"
"""For: an option by which Spark's readers look at a path that they were given and at no other. If it goes, a checkpoint
whose path has one of ``[ ] { } * ?`` seems to be a new one."""

# -- local properties of tasks --

QUERY_ID = "sql.streaming.queryId"
"""For: the query's id. Checked: homes of a former run of the query would stay."""

BATCH_ID = "streaming.sql.batchId"
"""For: the number of the micro-batch. Checked: no query would ever be drained, and homes would stay."""

JOB_GROUP = "spark.jobGroup.id"
"""For: the id of a query's run, where pillarbox could not set its own. If it goes, such runs share homes."""
