"""Accesses a classic session's Java objects, such as its DataFrames and file systems.

No function of this module starts a Spark job.
"""

from __future__ import annotations

from typing import Any


def jvm(spark: Any) -> Any:
    return spark.sparkContext._jvm


def java_class(spark: Any, name: str) -> Any:
    """Return a Java class by its full name, with a single call to Java instead of a call for each package."""
    return getattr(jvm(spark), name)


def java_session(spark: Any) -> Any:
    """Return a session's private Java object. A session without it counts as a Spark Connect session."""
    return spark._jsparkSession


def path_class(spark: Any) -> Any:
    return java_class(spark, "org.apache.hadoop.fs.Path")


def path_array(spark: Any, paths: list[str]) -> Any:
    kind = path_class(spark)
    array = spark.sparkContext._gateway.new_array(kind, len(paths))
    for index, path in enumerate(paths):
        array[index] = kind(path)
    return array


def file_system(spark: Any, path: Any) -> Any:
    return path.getFileSystem(java_session(spark).sessionState().newHadoopConf())


def repartition(spark: Any, checkpoint: str, partitions: int) -> None:
    """Repartition a checkpoint's state. Needs Spark 4.2."""
    spark._streamingCheckpointManager.repartition(checkpoint, partitions)


def sink_log(spark: Any, folder: str, version: int) -> tuple[Any, Any]:
    """Open a file sink's log, creating its folder. Returns (log, empty Java array of log entries). Needs Spark 4.1."""
    sinks = jvm(spark).org.apache.spark.sql.execution.streaming.sinks
    log = sinks.FileStreamSinkLog(version, java_session(spark), folder, jvm(spark).scala.Option.empty())
    return log, spark.sparkContext._gateway.new_array(sinks.SinkFileStatus, 0)


def analyzed_plan(df: Any) -> Any:
    return df._jdf.queryExecution().analyzed()


def plan_steps(df: Any) -> list[Any]:
    steps: list[Any] = []
    pending: list[Any] = [analyzed_plan(df)]
    while pending:
        step = pending.pop()
        steps.append(step)
        children = step.children()
        pending += [children.apply(index) for index in reversed(range(children.size()))]
    return steps


def python_pattern(spark: Any) -> Any:
    """Return Spark's marker of Python functions in plans. Without it, every query seems to have Python functions."""
    return java_class(spark, "org.apache.spark.sql.catalyst.trees.TreePattern").PYTHON_UDF()


WRITER_FIELDS = ("source", "trigger", "extraOptions", "outputMode")


def writer_field(writer: Any, name: str) -> Any:
    assert name in WRITER_FIELDS
    field = writer._jwrite.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(writer._jwrite)


_TASKS_WITH_HOSTS = 8


def hosts_of_running_tasks(spark: Any, stage: int, attempt: int) -> list[str]:
    from py4j.protocol import Py4JError

    try:
        v1 = spark.sparkContext._jvm.org.apache.spark.status.api.v1
        running = java_class(spark, "java.util.List").of(v1.TaskStatus.RUNNING)
        store = spark.sparkContext._jsc.sc().statusStore()
        tasks = store.taskList(stage, attempt, 0, _TASKS_WITH_HOSTS, v1.TaskSorting.ID, running)
        return sorted({str(tasks.apply(index).host()) for index in range(tasks.size())})
    except Py4JError:  # Spark no longer retains the stage
        return []
