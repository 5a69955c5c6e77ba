from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pillarbox
from tests.operators.stateful_processor.state_values import CASES

GROUPS: list[Callable[..., Any]] = [DataFrame.groupBy, pillarbox.group_by]
OUTPUT = "number INT, said STRING"


class Values(StatefulProcessor):
    def init(self, handle):
        self.values = [handle.getValueState(f"value {number}", ddl) for number, (ddl, _, _) in enumerate(CASES)]
        self.map = handle.getMapState("map", "k string, n int", "v int, s struct<a:int>")

    def handleInputRows(self, key, rows, timerValues):
        for number, (state, (_, value, _)) in enumerate(zip(self.values, CASES)):
            state.update(value)
            yield Row(number=number, said=repr(state.get()))
        self.map.updateValue(("x", 1), (1, (2,)))
        ((user_key, value),) = self.map.iterator()
        values = [self.map.getValue(("x", 1)), self.map.getValue(("y", 1)), user_key, value, type(value[1]).__name__]
        yield Row(number=len(CASES), said=repr(values))


@pytest.mark.slow("a query on Spark and one on pillarbox")
@pytest.mark.parametrize("group_by", GROUPS, ids=["spark", "pillarbox"])
def test_values_of_state(spark: SparkSession, group_by: Callable[..., Any]) -> None:
    rows = group_by(spark.range(1), "id").transformWithState(Values(), OUTPUT, "append", "None").collect()
    actual = {row.number: row.said for row in rows}
    expected = {number: repr_of for number, (_, _, repr_of) in enumerate(CASES)}
    of_map = "[Row(v=1, s=Row(a=2)), None, ('x', 1), (1, Row(a=2)), 'Row']"
    assert actual == {**expected, len(CASES): of_map}


class Seen(StatefulProcessor):
    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        values = [key, [type(part).__name__ for part in key], *[list(row.asDict(True).items()) for row in rows]]
        for number, text in enumerate(map(repr, values)):
            yield Row(number=number, said=text)


ALL_TYPES = """
  SELECT 1 AS k, TIMESTAMP'2020-07-01 01:02:03' AS ts, CAST(2 AS SHORT) AS sh, CAST(3 AS LONG) AS lo, 1.5f AS fl,
    CAST(NULL AS INT) AS nul, 'x' AS st, true AS bo, TIMESTAMP_NTZ'2020-07-01 01:02:03' AS tn, DATE'2020-07-01' AS da,
    CAST(1.25 AS DECIMAL(10,2)) AS de, BINARY('ab') AS bi, ARRAY(1, 2) AS ar, MAP('a', 1) AS ma,
    STRUCT(1 AS x, 'y' AS y) AS sr, ARRAY(STRUCT(1 AS x)) AS ars, INTERVAL '1' DAY AS iv
"""


@pytest.mark.slow("a query on Spark and one on pillarbox")
def test_rows_and_keys(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Europe/Paris")
    df = session.sql(ALL_TYPES)
    keys = ("k", "ts", "st", "da", "de", "bi", "bo")
    seen = [
        sorted(map(tuple, group_by(df, *keys).transformWithState(Seen(), OUTPUT, "append", "None").collect()))
        for group_by in GROUPS
    ]
    assert seen[0] == seen[1]
    assert len(seen[0]) == 3
