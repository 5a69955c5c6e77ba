from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.functions import udf

import pillarbox
from pillarbox import StreamExecutionEnvironment
from pillarbox._runtime.spark.plan.other_python import runs_other_python
from pillarbox._runtime.spark.session.spark_names import BATCH_BYTES
from pillarbox._runtime.spark.session.writer import WriterStart

pytestmark = pytest.mark.spark


def passed(frames: Any) -> Any:
    yield from frames


@pytest.fixture
def rows(spark, tmp_path):
    spark.range(6).write.parquet(str(tmp_path / "in"))
    return spark.readStream.schema("id LONG").parquet(str(tmp_path / "in"))


def is_other(writer: Any) -> bool:
    return runs_other_python(WriterStart(writer, "start"))


def program(rows: Any) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment(rows.sparkSession).set_parallelism(2)
    return env.from_dataframe(rows).key_by("id").reduce(max).rebalance().map(lambda row: row, "id LONG")


def test_python_of_the_users_is_found_in_a_plan(spark, rows):
    double = udf(lambda number: 2 * number, "LONG")
    result = program(rows).to_dataframe()
    static = spark.range(3).mapInPandas(passed, "id LONG")
    theirs = {
        "after the program": result.mapInPandas(passed, "id LONG"),
        "in an expression": result.withColumn("doubled", double("id")),
        "before the program": program(rows.mapInArrow(passed, "id LONG")).to_dataframe(),
        "in an expression before it": program(rows.select(double("id").alias("id"))).to_dataframe(),
        "beside it": result.join(static, "id"),
    }
    assert {name: is_other(frame.writeStream) for name, frame in theirs.items()} == dict.fromkeys(theirs, True)
    ours = {
        "alone": result,
        "with spark's": result.where("id > 1").withColumn("n", result["id"] + 1).join(spark.range(3), "id"),
        "two": result.unionAll(program(rows).to_dataframe()),
    }
    assert {name: is_other(frame.writeStream) for name, frame in ours.items()} == dict.fromkeys(ours, False)
    assert is_other(result.writeStream.foreachBatch(lambda batch, number: None))


def test_a_function_for_each_batch_has_its_rows_bounded(rows, tmp_path):
    seen: list[dict[str, str]] = []
    env = StreamExecutionEnvironment.get_execution_environment(rows.sparkSession).set_parallelism(2)
    stream = env.from_dataframe(rows).key_by("id").reduce(max).map(lambda row: row, "id LONG")

    def write(frames: Any, number: int) -> None:
        frames["rows"].mapInPandas(passed, "id LONG").collect()
        seen.append(frames["rows"].sparkSession.conf.getAll)

    writer = env.for_each_batch(write, {"rows": stream})
    assert not is_other(writer)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    pillarbox.start(writer).awaitTermination()
    assert len(seen) == 1 and BATCH_BYTES not in seen[0]
