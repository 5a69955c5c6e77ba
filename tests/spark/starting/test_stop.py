from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pillarbox
from pillarbox import (
    KeyedProcessFunction,
    ProgramError,
    SavepointError,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    WindowFunction,
    stop_with_savepoint,
)
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.running import query as query_module
from pillarbox._runtime.spark.running import stop as stop_module
from pillarbox._runtime.spark.running.query_command import request_savepoint
from pillarbox._runtime.spark.savepoint.savepoint import open_savepoint

KEYS = 7


class Count(WindowFunction):
    def apply(self, key, window, inputs):
        yield f"{key} in {window.start}", len(list(inputs))


class Later(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value.at + 3_600_000)

    def on_timer(self, timestamp, ctx):
        yield f"{ctx.get_current_key()} at {timestamp - 3_600_000}", 1


class Home:
    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.checkpoint = str(folder / "checkpoint")
        self.out: dict[int, list[Any]] = {}
        self.records: list[tuple[int, int]] = []

    def start(self) -> Any:
        read = self.spark.readStream.schema("key LONG, at LONG").parquet(str(self.folder / "in"))
        env = StreamExecutionEnvironment.get_execution_environment(self.spark).set_parallelism(2).set_max_parallelism(2)
        times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        rows = env.from_dataframe(read).assign_timestamps_and_watermarks(times).key_by("key")
        counted = rows.window(TumblingEventTimeWindows.of("10 seconds")).apply(Count()).uid("windows")
        out = counted.union(rows.process(Later()).uid("later")).to_dataframe("what STRING, n LONG")
        writer = out.writeStream.foreachBatch(
            lambda batch, number: self.out.update({number: list(map(tuple, batch.collect()))})
        )
        return pillarbox.start(writer.option("checkpointLocation", self.checkpoint))

    def add(self, start: int) -> None:
        rows = [(key, start + 700 * key) for key in range(KEYS)]
        self.spark.createDataFrame(rows, "key LONG, at LONG").coalesce(1).write.mode("append").parquet(
            str(self.folder / "in")
        )
        self.records += rows

    def everything(self) -> Counter[Any]:
        windows = Counter(f"{key} in {at // 10_000 * 10_000}" for key, at in self.records)
        return Counter([*windows.items(), *((f"{key} at {at}", 1) for key, at in self.records)])


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(query_module, "_REQUESTS_EVERY", 0.2)
    monkeypatch.setattr(stop_module, "_TRY_EVERY", 0.1)


def drain(home: Home, directory: str) -> None:
    query = home.start()
    home.add(40_000)
    query.processAllAvailable()
    arguments = {"drain": True, "timeout": 400}
    asked = threading.Thread(target=stop_with_savepoint, args=(query, directory), kwargs=arguments)
    asked.start()
    # `isActive` is False even before the running epoch has ended, which could still read the next file.
    while asked.is_alive() and not Checkpoint(home.spark, home.checkpoint)._last_epochs:
        time.sleep(0.05)
    home.add(60_000)  # for this the last epoch has to wait
    asked.join()


@pytest.mark.usefixtures("quick")
def test_stopped_at_a_request_and_then_drained(spark, tmp_path):
    home = Home(spark, tmp_path)
    home.add(0)
    query = home.start()
    query.processAllAvailable()
    home.add(20_000)  # whether it is read before the query stops or not
    asked = threading.Thread(
        target=request_savepoint,
        args=(spark, home.checkpoint, f"{tmp_path}/first"),
        kwargs={"drain": False, "timeout": 400},
    )
    asked.start()
    query.awaitTermination()
    assert (tmp_path / "first" / "manifest").is_dir(), "the query seems to run until its savepoint is written"
    asked.join()
    description = Checkpoint(spark, home.checkpoint)
    assert description.unfinished is None and not description.is_drained()

    drain(home, f"{tmp_path}/second")
    assert Counter(row for rows in home.out.values() for row in rows) == home.everything()
    description = Checkpoint(spark, home.checkpoint)
    assert description.is_drained() and not description.is_drained(description.last_committed - 1)
    assert description.last_epoch_begun is None


@pytest.mark.long("the test before drains; this one has a drain without time, and one that is done again")
@pytest.mark.usefixtures("quick")
def test_a_last_epoch_that_has_no_input_and_one_that_is_run_again(spark, tmp_path, caplog, monkeypatch):
    home = Home(spark, tmp_path)
    home.add(0)
    query = home.start()
    query.processAllAvailable()
    with monkeypatch.context() as patch:
        patch.setattr(stop_module, "_TRY_EVERY", 1_000)  # it tries once, and has no time to try again
        with pytest.raises(SavepointError, match="no input arrived for the final epoch within the timeout") as caught:
            stop_with_savepoint(query, f"{tmp_path}/second", drain=True, timeout=400)
    assert "The query is stopped, and no savepoint was written" in str(caught.value)
    assert not query.isActive and not (tmp_path / "second").exists()
    assert Checkpoint(spark, home.checkpoint).last_epoch_begun is None

    drain(home, f"{tmp_path}/second")
    description = Checkpoint(spark, home.checkpoint)

    # As if the driver had died just before it noted that the last epoch is done: it is the last one once more.
    last = description.last_committed
    for path in (tmp_path / "checkpoint" / "commits").glob(f"*{last}*"):
        path.unlink()
    fired = home.out.pop(last)
    query = home.start()
    query.processAllAvailable()
    query.stop()
    assert Counter(home.out[last]) == Counter(fired) and fired
    with caplog.at_level(logging.WARNING, "pillarbox"):
        home.start().stop()
    assert "was drained, which sent the final watermark" in caplog.text


@pytest.mark.long("one program is drained in the first test")
@pytest.mark.usefixtures("quick")
def test_several_programs_in_one_query_are_drained_each_at_its_input(spark, tmp_path):
    out: list[Any] = []

    def add(name: str, key: int) -> None:
        rows = spark.createDataFrame([(key, 1000 * key)], "key LONG, at LONG")
        rows.coalesce(1).write.mode("append").parquet(str(tmp_path / name))

    def program(name: str, uid: str) -> Any:
        read = spark.readStream.schema("key LONG, at LONG").parquet(str(tmp_path / name))
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
        later = env.from_dataframe(read).key_by("key").process(Later()).uid(uid)
        return later.to_dataframe("what STRING, n LONG")

    for key, name in enumerate(("left", "right")):
        add(name, key)

    def start(*uids: str) -> Any:
        rows = program("left", uids[0]).unionAll(program("right", uids[1]))
        writer = rows.writeStream.foreachBatch(lambda batch, number: out.extend(map(tuple, batch.collect())))
        writer = writer.option("checkpointLocation", str(tmp_path / "-".join(uids)))
        query = pillarbox.start(writer.trigger(availableNow=True))
        query.awaitTermination()
        return query

    with pytest.raises(ProgramError, match="two programs of the query have an operator 'later', so a later start"):
        start("later", "later")
    directory = str(tmp_path / "savepoint")
    query = start("one", "other")
    assert out == []
    add("left", 2)
    arguments = {"drain": True, "timeout": 400}
    asked = threading.Thread(target=stop_with_savepoint, args=(query, directory), kwargs=arguments)
    asked.start()
    while len(out) < 2 and asked.is_alive():
        time.sleep(0.05)
    assert sorted(out) == [("0 at 0", 1), ("2 at 2000", 1)]
    add("right", 3)
    asked.join()
    assert sorted(out) == [(f"{key} at {1000 * key}", 1) for key in (0, 1, 2, 3)]
    assert open_savepoint(spark, directory).manifest.drained
