"""Wrong uses on Spark. In batch, streaming and Connect, the first lines contain the local runtime's message.

``tests/spark/session/test_connect.py`` tests Connect, with its server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pillarbox import DataStream, OperatorError, ProgramError, StreamExecutionEnvironment
from tests.errors.test_wrong_uses import check
from tests.errors.wrong_two_inputs import TWO_INPUT_RUNS
from tests.errors.wrong_uses import RUNS, SPARK_BUILDS, SPARK_RUNS, Build, Run

CASES = {case.name: case for case in (*RUNS, *TWO_INPUT_RUNS, *SPARK_RUNS)}


# The cases of each Spark runtime in `make test`; all cases run on the local runtime.
SHOWN = {
    "batch": {case.name for case in CASES.values() if case.on != "batch"} | {"map, nested", "map, BaseException"},
    "streaming": {"keyed", "keyed, a lock in the state", "key function"},
    "connect": {"keyed"},
}
_OTHERS = pytest.mark.long("the local runtime says it, and other cases show how words come through Spark")


def on(runtime: str) -> list[Any]:
    return [
        pytest.param(case, id=case.name, marks=() if case.name in SHOWN[runtime] or case in SPARK_RUNS else _OTHERS)
        for case in CASES.values()
        if runtime in case.on.split()
    ]


def source(spark: SparkSession) -> DataFrame:
    return spark.range(5).selectExpr("id", "'k' AS key").coalesce(1)


def endless(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).option("numPartitions", 1)
    return reader.load().selectExpr("value AS id", "'k' AS key")


def stream(spark: SparkSession, df: DataFrame) -> DataStream:
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(1).set_max_parallelism(1)
    return env.from_dataframe(df)


def check_all(text: str, case: Run) -> None:
    check(text, case.says)
    if case.frame:
        assert f", in {case.frame}\n" in text


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize("case", on("batch"))
def test_batch(spark: SparkSession, case: Run) -> None:
    with pytest.raises(PythonException) as caught:
        case.program(stream(spark, source(spark))).to_dataframe(case.columns).collect()
    check_all(str(caught.value), case)


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize("case", on("streaming"))
def test_streaming(spark: SparkSession, tmp_path: Path, case: Run) -> None:
    result = case.program(stream(spark, endless(spark))).to_dataframe(case.columns)
    query = result.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    for error in (caught.value, query.exception()):
        check_all(str(error), case)
        assert str(error).splitlines()[-1].startswith("pillarbox.")


def failure_of(spark: SparkSession, name: str) -> tuple[str, str]:
    case = CASES[name]
    try:
        case.program(stream(spark, source(spark))).to_dataframe(case.columns).collect()
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError("there was no error")


def failure_of_query(spark: SparkSession, name: str, folder: str) -> tuple[str, str]:
    case = CASES[name]
    result = case.program(stream(spark, endless(spark))).to_dataframe(case.columns)
    query = result.writeStream.format("noop").option("checkpointLocation", folder).start()
    try:
        query.awaitTermination()
    except Exception as error:
        return str(error), str(query.exception())
    raise AssertionError("there was no error")


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize(("name", "kind"), [("keyed", OperatorError), ("keyed, a state late", ProgramError)])
def test_collecting_raises_pillarboxs_own_classes(spark: SparkSession, name: str, kind: type) -> None:
    case = CASES[name]
    with pytest.raises(kind) as caught:
        case.program(stream(spark, source(spark))).execute_and_collect()
    assert type(caught.value) is kind
    check_all(str(caught.value) + "\n", case)
    assert "SQLSTATE" not in str(caught.value) and "\tat " not in str(caught.value)


@pytest.mark.parametrize("case", SPARK_BUILDS, ids=lambda case: case.name)
def test_refused_while_it_is_built(spark: SparkSession, case: Build) -> None:
    df = spark.sql(
        "SELECT 1L AS id, 'k' AS key, array('a') AS tags, map('a', 1) AS named, struct(array(1) AS list) AS inner,"
        " 'A' COLLATE UTF8_LCASE AS name, struct('A' COLLATE UTF8_LCASE AS name) AS named_by"
    )
    with pytest.raises(ProgramError) as caught:
        case.program(stream(spark, df))  # type: ignore[arg-type]
    check(str(caught.value), case.says)


@pytest.mark.usefixtures("one_attempt")
def test_a_workers_error_hides_nothing_of_other_workers(spark: SparkSession) -> None:
    def fails(batches: Any) -> Any:
        for _ in batches:
            raise LookupError("somebody else's")
        yield from ()

    with pytest.raises(PythonException):
        CASES["map"].program(stream(spark, source(spark))).to_dataframe("x LONG").collect()
    with pytest.raises(PythonException) as caught:
        source(spark).mapInArrow(fails, "id LONG").collect()
    assert ", in fails" in str(caught.value)
