"""Budgets on Spark: tasks in other processes book times at the driver, and ceilings' charges survive a restart."""

from __future__ import annotations

from typing import Any

import pytest

import pillarbox
from pillarbox import Budget, StreamExecutionEnvironment
from pillarbox._runtime.spark.budgets import server
from pillarbox._runtime.spark.budgets.spent import charges_in, charges_of

SPEND = Budget("spend", requests=10_000, ceiling=("20 USD", "1 day"), when_exceeded="fail")


async def ask(row: Any) -> tuple[int]:
    return (row.id,)


@pytest.fixture
def run(spark, tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()

    def run(first: int, last: int, checkpoint: str, savepoint: str | None = None) -> list[int]:
        monkeypatch.setattr(server, "_servers", {})
        spark.range(first, last).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
        if savepoint is not None:
            env.from_savepoint(savepoint)
        source = env.from_dataframe(spark.readStream.schema("id LONG").parquet(str(tmp_path / "in")), "ids")
        asked = source.key_by("id").map_async(ask, "id LONG", budgets=[SPEND], on_failure="drop").uid("ask")
        answered: list[int] = []
        writer = asked.to_dataframe().writeStream.foreachBatch(
            lambda batch, number: answered.extend(row.id for row in batch.collect())
        )
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True)
        pillarbox.start(writer).awaitTermination()
        return sorted(answered)

    return run


def test_a_ceiling_survives_a_restart(spark, run, tmp_path):
    assert run(0, 15, "first") == list(range(15))
    # The first driver may have written up to two requests that it did not use.
    assert 3 <= len(run(15, 30, "first")) <= 5
    charges = charges_of(charges_in(spark, str(tmp_path / "first")))
    assert [(name, period.spent) for name, period in charges] == [("spend", 20.0)]


@pytest.mark.long("a restart from the checkpoint reads the same files")
def test_a_ceiling_survives_a_savepoint(spark, run, tmp_path):
    assert run(0, 30, "first") != list(range(30))
    pillarbox.savepoint(spark, str(tmp_path / "first"), str(tmp_path / "savepoint"))
    assert run(30, 35, "second", str(tmp_path / "savepoint")) == []
