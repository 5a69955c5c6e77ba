"""All that pillarbox knows of Spark beyond its API: private names of settings, classes, fields and files.

Each has its name here and nowhere else: what it is for, in which versions Spark has it (all that pillarbox supports,
where nothing is said), and what happens if it goes. Without the facts in :func:`check_facts` a query would start with a
wrong setting and say nothing, or none would start: so they are looked at before the first one.

What PySpark keeps in a worker (broadcast variables, accumulators, the task's context, shipped files) is in
``homes/surroundings.py``, and the columns of a batch on their way to Arrow in ``rows/arrow_frame.py``. If it goes,
tasks fail in homes, or values are converted twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox._errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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

# -- sessions --


def is_classic(spark: Any) -> bool:
    """Return whether a session is a classic one, whose driver runs in this process's JVM; else it is Spark Connect."""
    return hasattr(spark, "_jsparkSession")


def jvm(spark: Any) -> Any:
    """Return the JVM of a classic session. If it goes, no program runs in a classic session."""
    return spark.sparkContext._jvm


def java_class(spark: Any, name: str) -> Any:
    """Return a class of Java in a classic session. By its whole name Java looks once, and not for each package of it.

    If it goes, no program runs in a classic session.
    """
    return getattr(jvm(spark), name)


def java_session(spark: Any) -> Any:
    """Return a classic session as Java has it. If it goes, every session seems to be one of Spark Connect."""
    return spark._jsparkSession


def path_class(spark: Any) -> Any:
    """Return the class of Hadoop's paths, in a classic session. If it goes, no checkpoint can be read."""
    return java_class(spark, "org.apache.hadoop.fs.Path")


def path_array(spark: Any, paths: list[str]) -> Any:
    """Return an array of Hadoop's paths, in a classic session. If it goes, no epoch of a store can be copied."""
    kind = path_class(spark)
    found = spark.sparkContext._gateway.new_array(kind, len(paths))
    for place, path in enumerate(paths):
        found[place] = kind(path)
    return found


def file_system(spark: Any, path: Any) -> Any:
    """Return the file system of a path with a classic session's settings. If it goes, no checkpoint can be read."""
    return path.getFileSystem(java_session(spark).sessionState().newHadoopConf())


def repartition(spark: Any, checkpoint: str, partitions: int) -> None:
    """Spread the state of a checkpoint over partitions. Since 4.2; if it goes, ``pillarbox.rescale`` fails."""
    spark._streamingCheckpointManager.repartition(checkpoint, partitions)


# -- writers and queries --


def session_of(writer: Any) -> SparkSession:
    """Return the session of a writer, classic or of Spark Connect. If it goes, no query starts."""
    return writer._spark if hasattr(writer, "_spark") else writer._session  # type: ignore[no-any-return]


def message_of(writer: Any) -> Any:
    """Return the message that a writer of Spark Connect sends; None: it is a classic one. If it goes, all are these."""
    return getattr(writer, "_write_proto", None)


_FIELDS = ("source", "trigger", "extraOptions")


def writer_field(writer: Any, name: str) -> Any:
    """Return a private field of a classic writer, one of three. Checked: no query would start."""
    assert name in _FIELDS
    field = writer._jwrite.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(writer._jwrite)


def change_writer(writer: Any, method: str, value: Any) -> None:
    """Call a method of a classic writer of Java's. If it goes, a query cannot be started for one micro-batch."""
    writer._jwrite = getattr(writer._jwrite, method)(value)


def frame_of(query: Any) -> DataFrame:
    """Return the DataFrame that a writer writes, classic or of Spark Connect. If it goes, no query starts."""
    if message_of(query) is None:
        return query._df  # type: ignore[no-any-return]
    from pyspark.sql.connect.dataframe import DataFrame

    return DataFrame(query._write_stream._child, query._session)


def is_classic_query(query: Any) -> bool:
    """Return whether a query is a classic one. If it goes, all seem to be of Spark Connect."""
    return hasattr(query, "_jsq")


def execution_of(query: Any) -> Any:
    """Return a classic query as Spark runs it. If it goes, queries end by ``stop()``, in the middle of an epoch."""
    return query._jsq.streamingQuery()


_NOT_COMMITTED = "STATE_STORE_COMMIT_VALIDATION_FAILED"


class StateCommits:
    """Whether the partitions of a classic query with ``foreachBatch`` have committed their state.

    Spark checks that after a batch, and not a second time: this takes the place of its check. If it goes, a query
    ends if its function reads only a part of a batch. The Java objects live as long as the run: each batch makes three
    calls to Java.
    """

    def __init__(self, query: Any) -> None:
        from py4j.protocol import Py4JError

        execution = execution_of(query)
        self._unchecked: Any = None
        try:
            states = execution.sparkSession().streams().stateStoreCoordinator()
            self._validate, self._run = states.validateStateStoreCommitForBatch, execution.runId()
            self._unchecked = execution.progressReporter().shouldValidateStateStoreCommit()
        except Py4JError:
            pass

    def are_complete(self, batch: int) -> bool:
        """Return whether each partition of a batch has committed."""
        if self._unchecked is None or not self._unchecked.get():  # it has no state
            return True
        self._unchecked.set(False)
        try:
            self._validate(self._run, batch)
        except Exception as error:
            if _NOT_COMMITTED not in str(error):
                raise  # the query is being stopped, for instance
            return False
        return True


def running_jobs(spark: Any, group: str) -> list[int]:
    """Return the jobs of a group that run, in a classic session. If it goes, nobody sees the stages of a query.

    Spark keeps a thousand jobs of a group that have ended. So their numbers come as one text: each number of an array
    would be a call to Java.
    """
    tracker = spark.sparkContext.statusTracker()
    running = set(tracker.getActiveJobsIds())
    if not running:
        return []
    numbers = java_class(spark, "java.util.Arrays").toString(tracker._jtracker.getJobIdsForGroup(group))
    return sorted(running.intersection(json.loads(numbers)))


# So many running tasks are asked for their hosts.
_TASKS_WITH_HOSTS = 8


def hosts_of_running_tasks(spark: Any, stage: int, attempt: int) -> list[str]:
    """Return some hosts on which tasks of a stage run. If it goes, the line for a hung epoch names no hosts."""
    from py4j.protocol import Py4JError

    try:
        v1 = spark.sparkContext._jvm.org.apache.spark.status.api.v1
        running = java_class(spark, "java.util.List").of(v1.TaskStatus.RUNNING)
        store = spark.sparkContext._jsc.sc().statusStore()
        tasks = store.taskList(stage, attempt, 0, _TASKS_WITH_HOSTS, v1.TaskSorting.ID, running)
        return sorted({str(tasks.apply(index).host()) for index in range(tasks.size())})
    except Py4JError:  # also if Spark has forgotten the stage
        return []


class ProgressMark(NamedTuple):
    """Which progress report of a query it is: reports that there was no input have the numbers of others."""

    batch: int
    timestamp: str

    @staticmethod
    def of(progress: Any) -> ProgressMark:
        """Return the mark of a report, as a dictionary of its JSON."""
        return ProgressMark(progress["batchId"], progress["timestamp"])


def new_progress(query: Any, seen: ProgressMark | None) -> list[Any]:
    """Return the progress reports of a query after one, the oldest first; None: all that Spark has kept.

    In a classic session only these are fetched: Spark keeps a hundred, which all become JSON with ``recentProgress``.
    """
    if is_classic_query(query):
        kept = query._jsq.recentProgress()
        found: list[Any] = []
        for index in range(len(kept) - 1, -1, -1):
            if seen is not None and ProgressMark(kept[index].batchId(), kept[index].timestamp()) <= seen:
                break
            # (JSON leaves out what is empty.)
            found.append({"observedMetrics": {}, **json.loads(kept[index].json())})
        return found[::-1]
    last = query.lastProgress
    if last is None or ProgressMark.of(last) == seen:
        return []
    return [each for each in query.recentProgress if seen is None or ProgressMark.of(each) > seen]


def pinned_jvm() -> Any:
    """Return the JVM, in which each thread of this process has one of its own, so that it can hold locks there.

    If it goes, queries end by ``stop()``, in the middle of an epoch.

    Raises:
        RuntimeError: the user has set that threads there are shared.
    """
    from py4j.clientserver import ClientServer
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if not isinstance(gateway, ClientServer):
        raise RuntimeError("PYSPARK_PIN_THREAD is false")
    return gateway.jvm


def sink_log(spark: Any, folder: str, version: int) -> tuple[Any, Any]:
    """Return the log of a file sink, which makes its folder, and an empty array of its entries.

    Spark has these classes since 4.1. Checked: no query with such a sink would start.
    """
    sinks = jvm(spark).org.apache.spark.sql.execution.streaming.sinks
    log = sinks.FileStreamSinkLog(version, java_session(spark), folder, jvm(spark).scala.Option.empty())
    return log, spark.sparkContext._gateway.new_array(sinks.SinkFileStatus, 0)


# -- plans --


def analyzed_plan(df: Any) -> Any:
    """Return the analyzed plan of a classic DataFrame, as Java has it. Checked: no program would be seen in a query."""
    return df._jdf.queryExecution().analyzed()


def analyzed_text(df: Any) -> str:
    """Return the same of a DataFrame of Spark Connect, as text. If it goes, no program is seen in a query.

    Nobody can check that: settings of the session say how much is shown of a plan.
    """
    plans = str(df._explain_string(mode="extended"))
    return plans.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]


def python_pattern(spark: Any) -> Any:
    """Return what marks Python functions in a plan. If it goes, every query seems to have some of the user's."""
    return java_class(spark, "org.apache.spark.sql.catalyst.trees.TreePattern").PYTHON_UDF()


# -- the check --


class _Needed(NamedTuple):
    """What no program should run without.

    Attributes:
        name: what it is.
        classic: whether only classic sessions need it.
        is_there: tells whether a session has it; to raise is to have it not.
    """

    name: str
    classic: bool
    is_there: Callable[[Any], bool]


def _has_setting(name: str) -> _Needed:
    return _Needed(f"the setting {name}", False, lambda spark: bool(spark.conf.isModifiable(name)))


def _has_class(name: str, *fields: str) -> _Needed:
    def is_there(spark: Any) -> bool:
        found = java_session(spark).getClass().getClassLoader().loadClass(name)
        return all(found.getDeclaredField(field) is not None for field in fields)

    return _Needed(f"the class {name}" + (f" with {', '.join(fields)}" if fields else ""), True, is_there)


def _has_property(name: str, of: str, constant: str) -> _Needed:
    def is_there(spark: Any) -> bool:
        package = jvm(spark).org.apache.spark.sql.execution.streaming.runtime
        return bool(getattr(getattr(package, of), constant)() == name)

    return _Needed(f"the local property {name}", True, is_there)


def _shows_aliases(spark: Any) -> bool:
    plan = analyzed_plan(spark.range(0).alias("pillarbox"))
    return str(plan.simpleString(1)).startswith("SubqueryAlias pillarbox")


_NEEDED = (
    _has_setting(STATE_PARTITIONS),
    _has_setting(PROVIDER_KEY),
    _has_property(QUERY_ID, "StreamExecution", "QUERY_ID_KEY"),
    _has_property(BATCH_ID, "MicroBatchExecution", "BATCH_ID_KEY"),
    _has_class("org.apache.spark.sql.classic.DataStreamWriter", *_FIELDS),
    _has_class("org.apache.spark.sql.execution.streaming.sinks.FileStreamSinkLog"),
    _has_class("org.apache.spark.sql.execution.streaming.sinks.SinkFileStatus"),
    _Needed("aliases in plans", True, _shows_aliases),
)


def check_facts(spark: Any) -> None:
    """Check that Spark has all without which programs would run wrongly or not at all. No job is run.

    Raises:
        ConfigurationError: it does not.
    """
    missing = [each.name for each in _NEEDED if not _is_there(each, spark)]
    if missing:
        raise ConfigurationError(
            f"Spark {spark.version} is not one that this version of pillarbox knows: it does not have"
            f" {'; '.join(missing)}. Use another version of Spark, or a newer pillarbox"
        )


def _is_there(needed: _Needed, spark: Any) -> bool:
    if needed.classic and not is_classic(spark):
        return True
    try:
        return needed.is_there(spark)
    except Exception:
        return False
