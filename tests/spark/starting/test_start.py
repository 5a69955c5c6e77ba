from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pillarbox
from pillarbox import (
    CheckpointMismatchError,
    KeyedProcessFunction,
    MapFunction,
    ProgramError,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from pillarbox._reports.metrics import metrics

LATER = 3_600_000


class Home:
    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark = spark
        self.path = path
        self.checkpoint = str(path / "checkpoint")
        self.files = 0
        self.out: dict[int, list[Any]] = {}
        (path / "in").mkdir()

    def put(self, *rows: dict[str, Any]) -> None:
        file = self.path / f"{self.files}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        file.rename(self.path / "in" / file.name)
        self.files += 1

    def read(self) -> DataFrame:
        stream = self.spark.readStream.schema("card STRING, shop STRING, amount LONG")
        return stream.option("maxFilesPerTrigger", 1).json(str(self.path / "in"))

    def writer(self, df: DataFrame, *, done: Callable[[], None] | None = None, **trigger: Any) -> Any:
        def keep(batch: DataFrame, number: int) -> None:
            self.out[number] = [tuple(row) for row in batch.collect()]
            if done is not None:
                done()

        writer: Any = df.writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint)
        return writer.trigger(**(trigger or {"availableNow": True}))

    @property
    def rows(self) -> list[Any]:
        return sorted(row for rows in list(self.out.values()) for row in rows)  # a list: the query may be running


@pytest.fixture
def home(spark: SparkSession, tmp_path: Path) -> Iterator[Home]:
    yield Home(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        if result := condition():
            return result
        time.sleep(0.05)
    raise AssertionError(f"it did not come: {what}")


class Sum(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.sum.update((self.sum.value() or 0) + value.amount)
        yield ctx.get_current_key(), self.sum.value()


class Soon(Sum):
    """Sets a timer that is due immediately, and a timer that is due in an hour."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield from super().process_element(value, ctx)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 1)
        timers.register_processing_time_timer(timers.current_processing_time() + LATER)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield "timer of " + ctx.get_current_key(), self.sum.value()


def program(home: Home, function: KeyedProcessFunction, key: Any = "card", levels: int = 1) -> DataFrame:
    env = StreamExecutionEnvironment.get_execution_environment(home.spark).set_parallelism(2).set_max_parallelism(2)
    stream = env.from_dataframe(home.read()).key_by(key).process(function).uid("sum")
    if levels == 2:
        stream = stream.map(lambda row: Pair(*row)).key_by(lambda row: row.card).process(Sum()).uid("more")
    return stream.to_dataframe("card STRING, sum LONG")


class Pair:
    def __init__(self, card: str, amount: int) -> None:
        self.card = card
        self.amount = amount


def run(writer: Any) -> StreamingQuery:
    query: StreamingQuery = pillarbox.start(writer)
    assert query.awaitTermination(400), "it does not end"
    assert query.exception() is None
    return query


@pytest.mark.long(
    "runtime/changes has each of them; the test of a description that is half written refuses one on Spark"
)
@pytest.mark.usefixtures("one_attempt")
def test_changed_programs(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    home.put({"card": "a", "shop": "s", "amount": 1})
    run(home.writer(program(home, Sum())))
    for changed, says in (
        (program(home, Sum(), key="shop"), "the key was the column card STRING, and is the column shop STRING"),
        (program(home, Sum(), key="amount"), "the key was the column card STRING, and is the column amount BIGINT"),
        (
            program(home, Soon()),
            "it did not use processing time (timers, idleness or carried requests), but now does",
        ),
        (program(home, Sum(), levels=2), "there was 1 shuffle, and now there are 2 ('more' added)"),
    ):
        with pytest.raises(CheckpointMismatchError) as caught:
            pillarbox.start(home.writer(changed))
        assert says in str(caught.value)
        assert home.checkpoint in str(caught.value)
    assert not home.spark.streams.active
    # Spark's own start() knows of the key, too, when the state is read.
    home.put({"card": "a", "shop": "s", "amount": 2})
    query = home.writer(program(home, Sum(), key="shop")).start()
    with pytest.raises(Exception, match="the key was the column card STRING"):
        query.awaitTermination()
    # A possibly different key is accepted with a warning.
    run(home.writer(program(home, Sum(), key=lambda row: row.card)))
    (warning,) = [record for record in caplog.records if "the key was the column card" in record.getMessage()]
    assert warning.levelname == "WARNING"
    assert home.rows == [("a", 1), ("a", 3)]


@pytest.mark.long("four queries; runtime/changes refuses changed programs")
@pytest.mark.usefixtures("one_attempt")
def test_a_failed_start_on_a_used_checkpoint_binds_nothing(home: Home) -> None:
    home.put({"card": "a", "shop": "s", "amount": 1})
    query = home.writer(program(home, Sum())).start()
    query.awaitTermination()
    home.put({"card": "a", "shop": "s", "amount": 2})
    query = pillarbox.start(home.writer(program(home, Sum(), levels=2)))
    with pytest.raises(Exception, match="STREAMING_STATEFUL_OPERATOR_NOT_MATCH"):
        query.awaitTermination()
    run(home.writer(program(home, Sum())))
    with pytest.raises(CheckpointMismatchError, match="there was 1 shuffle"):
        pillarbox.start(home.writer(program(home, Sum(), levels=2)))
    assert home.rows == [("a", 1), ("a", 3)]


@pytest.mark.long("four queries; the first test refuses changed programs on Spark, runtime/changes has all")
@pytest.mark.usefixtures("one_attempt")
def test_batches_of_a_plain_start_are_those_of_its_program(home: Home) -> None:
    home.put({"card": "a", "shop": "s", "amount": 1})
    query = pillarbox.start(home.writer(program(home, Sum(), key=lambda row: 1 // 0)))
    with pytest.raises(Exception, match="ZeroDivisionError"):
        query.awaitTermination()
    home.writer(program(home, Sum())).start().awaitTermination()
    home.put({"card": "a", "shop": "s", "amount": 2})
    run(home.writer(program(home, Sum())))
    with pytest.raises(CheckpointMismatchError, match="the key was the column card"):
        pillarbox.start(home.writer(program(home, Sum(), key="shop")))
    assert home.rows == [("a", 1), ("a", 3)]


def test_a_description_that_is_half_written_is_none(home: Home) -> None:
    home.put({"card": "a", "shop": "s", "amount": 1})
    run(home.writer(program(home, Sum())))
    folder = Path(home.checkpoint, "pillarbox")
    (whole,) = (text for path in folder.glob("*.txt") if "programs" in (text := path.read_text()))
    later = whole.replace('"number": 1', '"number": 2').replace("card", "shop")
    for file in (folder / "_temporary" / "0" / "part-0.txt", folder / "part-0.txt", folder / f".{'0' * 32}.txt.tmp"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(later[: len(later) // 2])
    with pytest.raises(CheckpointMismatchError, match="the key was the column card"):
        pillarbox.start(home.writer(program(home, Sum(), key="shop")))
    home.put({"card": "a", "shop": "s", "amount": 2})
    run(home.writer(program(home, Sum())))
    assert home.rows == [("a", 1), ("a", 3)]


def test_available_now_ends_with_timers_that_are_due(home: Home) -> None:
    home.put({"card": "a", "amount": 1}, {"card": "b", "amount": 2})
    home.put({"card": "a", "amount": 3})
    query = run(home.writer(program(home, Soon())))
    # The files are read in either order.
    sums = [row for row in home.rows if "timer" not in row[0]]
    assert len(sums) == 3 and {("a", 4), ("b", 2)} < set(sums)
    assert {("timer of a", 4), ("timer of b", 2)} <= set(home.rows)
    waiting = {
        report.subtask: report for progress in query.recentProgress for report in metrics(progress) if report.uid
    }
    assert sum(report.processing_time_timers or 0 for report in waiting.values()) == 3
    home.put({"card": "b", "amount": 5})
    home.out.clear()
    run(home.writer(program(home, Soon())))
    assert home.rows == [("b", 7), ("timer of b", 7)]


class Closed(MapFunction):
    def __init__(self, log: Path) -> None:
        self.log = log

    def open(self, runtime_context: RuntimeContext) -> None:
        self._note("open")

    def map(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        # And not when Spark lets an idle worker go, after a minute.
        asked = any(frame.name in ("close_ended", "live") for frame in traceback.extract_stack())
        self._note("close" if asked else "left")

    def _note(self, what: str) -> None:
        with open(self.log, "a") as file:
            file.write(f"{what} {os.getpid()}\n")


@pytest.mark.parametrize(
    "end", [pytest.param("availableNow", marks=pytest.mark.long("spark/test_homes.py looks at it")), "stop"]
)
def test_functions_are_closed_when_the_query_has_ended(home: Home, end: str) -> None:
    source, keyed = home.path / "source.log", home.path / "keyed.log"
    home.put({"card": "a", "amount": 1}, {"card": "b", "amount": 2})
    env = StreamExecutionEnvironment.get_execution_environment(home.spark).set_parallelism(2).set_max_parallelism(2)
    stream = env.from_dataframe(home.read()).map(Closed(source)).key_by("card").process(Sum()).map(Closed(keyed))
    df = stream.to_dataframe("card STRING, sum LONG")
    query = pillarbox.start(
        home.writer(df, **({"availableNow": True} if end != "stop" else {"processingTime": "0 seconds"}))
    )
    if end == "stop":
        wait_for(lambda: home.rows, "output")
        query.stop()
    query.awaitTermination()

    def even(log: Path) -> bool:
        lines = log.read_text().split("\n")[:-1]
        return sorted(line.removeprefix("open ") for line in lines if line.startswith("open")) == sorted(
            line.removeprefix("close ") for line in lines if line.startswith("close")
        )

    wait_for(lambda: even(keyed), "close() of the keyed operator")
    wait_for(lambda: even(source), "close() of the source's operator")


def test_a_query_without_a_program(home: Home) -> None:
    with pytest.raises(ProgramError, match="start\\(\\) takes the writer of a program"):
        pillarbox.start(home.writer(home.read()))
