"""The error of a ``foreachBatch`` function that ``query.stop()`` has interrupted."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from pillarbox._runtime.spark.session.queries import with_short_interruptions


@pytest.fixture
def recognizes(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    executions = jvm.org.apache.spark.sql.execution.streaming.runtime.StreamExecution
    context = spark.sparkContext._jsc.sc()
    return lambda text: executions.isInterruptionException(jvm.py4j.Py4JException(text), context)


def error_of(function: Any) -> Exception:
    with pytest.raises(Exception) as raised:
        with_short_interruptions(function)(None, 0)
    return raised.value


def test_an_interrupted_call_of_java_has_a_short_error_that_spark_recognizes(
    spark: SparkSession, recognizes: Any
) -> None:
    thread: Any = spark._jvm.java.lang.Thread  # type: ignore[union-attr]

    def wait(batch: Any, batch_id: int) -> None:
        try:
            thread.currentThread().interrupt()
            thread.sleep(60_000)
        except Exception as error:
            raise ValueError("of the user") from error

    error = error_of(wait)
    assert len(str(error).splitlines()) == 2
    assert recognizes(str(error))


def test_a_cancelled_job_has_a_short_error_that_spark_recognizes(spark: SparkSession, recognizes: Any) -> None:
    spark.sparkContext.setJobGroup("group 7", "cancelled")
    text = "\n".join(
        [
            "py4j.protocol.Py4JJavaError: An error occurred while calling o42.save.",
            ": org.apache.spark.SparkException: Job 3 cancelled part of cancelled job group group 7",
            *["\tat org.apache.spark.scheduler.DAGScheduler.run(DAGScheduler.scala:1)"] * 1000,
        ]
    )

    def write(batch: Any, batch_id: int) -> None:
        raise ValueError(text)

    try:
        error = error_of(write)
        assert len(str(error).splitlines()) == 2
        assert recognizes(str(error))
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def test_other_errors_are_raised_unchanged(spark: SparkSession) -> None:
    def fail(batch: Any, batch_id: int) -> None:
        spark._jvm.java.lang.Integer.parseInt("x")  # type: ignore[union-attr]

    assert type(error_of(fail)).__name__ == "NumberFormatException"
