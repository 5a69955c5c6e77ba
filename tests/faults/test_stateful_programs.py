"""Processes that run Spark's stateful programs on pillarbox are killed. No row is lost or duplicated."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pillarbox
from tests.spark.stateful_programs.interpreter import OUTPUT, SCHEMA, draw_rows, write_rows

pytestmark = pytest.mark.fault
KILLS, BATCHES = 50, 10


class Killed(StatefulProcessor):
    """Counts rows and sets timers. Its process may be killed at fault points.

    Args:
        kills: a folder with a file for each kill. A file's name begins with a fault point. A process that removes the
            file there is killed.
    """

    def __init__(self, kills: Path) -> None:
        self.kills = kills

    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", "n LONG")
        self.rows = handle.getListState("rows", "n INT")
        self.die("init")

    def handleInputRows(self, key, rows, timerValues):
        n = (self.count.get() or (0,))[0]
        for row in rows:
            n += 1
            self.rows.appendValue((row.n,))
            self.handle.registerTimer(int(row.t.timestamp() * 1000) + 6_000)
            self.die("row")
        self.count.update((n,))
        yield Row(k=key[0], said=f"rows {n} {list(self.rows.get())} {timerValues.getCurrentWatermarkInMs()}")

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        self.die("timer")
        yield Row(k=key[0], said=f"timer {self.count.get()} {expiredTimerInfo.getExpiryTimeInMs()}")

    def close(self):
        self.die("close")

    def die(self, point: str) -> None:
        if TaskContext.get() is None:
            return  # the driver calls init(), too
        for path in self.kills.glob(f"{point}-*") if random.random() < 0.1 else ():
            try:
                path.unlink()
            except FileNotFoundError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)


def results(spark: SparkSession, folder: Path, kills: Path, checkpoint: Path) -> dict[int, list[tuple[Any, ...]]]:
    collected: dict[int, list[tuple[Any, ...]]] = {}

    def take(batch: DataFrame, number: int) -> None:
        collected[number] = sorted(map(tuple, batch.collect()), key=repr)

    df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
    grouped = pillarbox.group_by(df.withWatermark("t", "2 seconds"), "k")
    counts = grouped.transformWithState(Killed(kills), OUTPUT, "append", "EventTime")
    writer = counts.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    for _ in range(KILLS):
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:  # a task that was killed four times: the query is started again
            assert "its home process" in str(error), error
        else:
            break
    return collected


@pytest.mark.long("a query that is killed fifty times")
def test_a_processor_whose_process_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    write_rows(draw_rows(5, 30, BATCHES, timers=True), tmp_path / "rows")
    kills = tmp_path / "kills"
    kills.mkdir()
    expected = results(spark, tmp_path / "rows", kills, tmp_path / "undisturbed")
    places = ["init", "row", "row", "timer", "close"]
    for number in range(KILLS):
        (kills / f"{places[number % len(places)]}-{number}").touch()
    result = results(spark, tmp_path / "rows", kills, tmp_path / "killed")
    left = len(list(kills.iterdir()))
    assert result == expected
    assert sum(map(len, expected.values())) > 30 * BATCHES
    assert left < KILLS, "no process was killed"
    print(f"{KILLS - left} kills")
