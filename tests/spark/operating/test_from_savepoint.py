"""A query that goes on from a savepoint, at another parallelism, on a new checkpoint; and then in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import pillarbox
from pillarbox import (
    CheckpointMismatchError,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    WindowFunction,
)
from pillarbox.testing import ProgramTestHarness, row

pytestmark = pytest.mark.spark

LIMITS = MapStateDescriptor("limits")
COLUMNS = "what STRING, card STRING, at LONG, n LONG, bound LONG"


class Over(KeyedBroadcastProcessFunction):
    """How often a card paid, and the least limit there has been; and a timer when it was silent for five seconds."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, payment, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(payment.at + 5_000)
        yield "paid", payment.card, payment.at, self.seen.value(), ctx.get_broadcast_state(LIMITS).get("least")

    def process_broadcast_element(self, limit, ctx):
        least = ctx.get_broadcast_state(LIMITS)
        if least.get("least") is None:
            least.put("least", limit.value)

    def on_timer(self, timestamp, ctx):
        yield "silent", ctx.get_current_key(), timestamp, self.seen.value(), None


class Total(WindowFunction):
    def apply(self, key, window, inputs):
        yield "window", key, window.start, len(list(inputs)), None


class Ask:
    """Answers once a file is there."""

    def __init__(self, answering: Path) -> None:
        self._answering = answering

    async def __call__(self, value: Any) -> Any:
        while not self._answering.exists():
            await asyncio.sleep(0.005)
        return value


def program(answering: Path) -> Any:
    def build(env, payments, limits):
        times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        timed = payments.assign_timestamps_and_watermarks(times)
        over = timed.key_by("card").connect(limits.broadcast(LIMITS)).process(Over()).uid("over")
        windows = timed.key_by("card").window(TumblingEventTimeWindows.of("4 seconds")).apply(Total()).uid("windows")
        asked = over.rebalance().map_async(Ask(answering), on_barrier="carry", capacity=1000, timeout="1 hour")
        return asked.uid("ask").union(windows)

    return build


def payments(part: int) -> list[tuple[str, int]]:
    return [(f"card {number % 11}", 3_000 * part + 100 * number) for number in range(30)]


class Home:
    """A folder with the source of payments, and all that comes out by checkpoint."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.answering = folder / "answering"
        # Names that mean something in paths with wildcards.
        self.input = folder / "in [1], {a}"
        self.input.mkdir()
        self.parts = 0

    def add(self) -> None:
        """Add a file of payments."""
        rows = "".join(f'{{"card": "{card}", "at": {at}}}\n' for card, at in payments(self.parts))
        # A file's name begins with its number, as Spark reads the oldest first, and times are coarse.
        path = self.folder / "new"
        path.write_text(rows)
        path.rename(self.input / f"{self.parts} *{{x,y}}? #%20.json")
        self.parts += 1

    def writer(
        self,
        checkpoint: str,
        seen: list[Any],
        *,
        parallelism: int,
        start: Any = None,
        change: Any = None,
        **trigger: Any,
    ) -> Any:
        read = self.spark.readStream.schema("card STRING, at LONG").json(str(self.input).translate(_ANY))
        limits = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        env = (
            StreamExecutionEnvironment.get_execution_environment(self.spark)
            .set_parallelism(parallelism)
            .set_max_parallelism(parallelism)
        )
        if start is not None:
            env.from_savepoint(start, allow_non_restored_state=False)
        sources = env.from_dataframe(read, "payments"), env.from_dataframe(limits, "limits")
        rows = program(self.answering)(env, *sources).to_dataframe(COLUMNS)
        if change is not None:
            rows = change(rows, limits)
        return (
            rows.writeStream.foreachBatch(lambda batch, number: seen.extend(map(tuple, batch.collect())))
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(**trigger)
        )

    def run(self, checkpoint: str, **options: Any) -> list[Any]:
        """Run the program to the end of its input; return what came out."""
        seen: list[Any] = []
        pillarbox.start(self.writer(checkpoint, seen, availableNow=True, **options)).awaitTermination()
        return seen


_ANY = str.maketrans("[]{}", "????")


def deduplicated(rows, limits):
    """The program's rows with those of another source, each card once."""
    others = limits.selectExpr("'' AS what", "'' AS card", "0L AS at", "value AS n", "0L AS bound")
    return rows.unionAll(others).dropDuplicates(["card"])


@pytest.fixture
def home(spark, tmp_path):
    return Home(spark, tmp_path)


def expected(answering: Path, parts: int) -> Any:
    """A harness of the program that never stopped."""
    harness = ProgramTestHarness(program(answering), parallelism=2)
    for part in range(parts):
        harness.push_all("payments", [row(card=card, at=at) for card, at in payments(part)])
        harness.push("limits", row(timestamp=None, value=part))
        harness.run_epoch()
    # Requests are carried over the end of an epoch: all are to have been answered.
    while sum(what == "paid" for what, *_ in harness.get_output()) < sum(len(payments(part)) for part in range(parts)):
        harness.run_epoch()
    return harness


@pytest.mark.long("tests/faults/test_from_savepoint.py starts from savepoints as well")
def test_from_a_savepoint_at_another_parallelism_and_on(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    spark, savepoint = home.spark, str(home.folder / "savepoint")
    home.add()
    before: list[Any] = []
    # One batch: nobody answers, so requests are carried.
    home.writer("first", before, parallelism=2, once=True).start().awaitTermination()
    assert {value[0] for value in before} <= {"window"}
    pillarbox.savepoint(spark, str(home.folder / "first"), savepoint)
    home.answering.touch()
    home.add()
    after = home.run("second", parallelism=3, start=savepoint)
    moved = str(home.folder / "moved")
    with pytest.raises(CheckpointMismatchError, match=r"was begun from the savepoint .*savepoint, not from .*moved"):
        home.run("second", parallelism=3, start=moved)
    with pytest.raises(CheckpointMismatchError, match="was begun without a savepoint"):
        home.run("first", parallelism=2, start=moved)
    with pytest.raises(CheckpointMismatchError) as caught:
        home.run("third", parallelism=3, start=savepoint, change=deduplicated)
    assert str(caught.value).splitlines()[1:] == [
        "  - the query reads 3 streaming sources, and the program 2 of them: give the others to the program, too, or"
        " read them in a query of their own",
        "  - the query has stateful steps of Spark's besides the program (Deduplicate), of which a savepoint has no"
        " state: leave them out, or do that in the program",
        "  - it has positions of 2 sources, and the program reads 3 (FileSource["
        + str(home.input).translate(_ANY)
        + "],"
        ' rate-micro-batch, rate-micro-batch): say where they begin: positions="none", or a position for each',
    ]
    # Once more, into this process.
    again = str(home.folder / "again")
    pillarbox.savepoint(spark, str(home.folder / "second"), again)

    def build(env, payments, limits):
        env.from_savepoint(again)
        return program(home.answering)(env, payments, limits)

    with expected(home.answering, 2) as whole, ProgramTestHarness(build, parallelism=2) as local:
        assert sorted(map(repr, before + after)) == sorted(map(repr, whole.get_output()))
        whole.clear_output()
        assert sorted(map(repr, local.end_input()["output"])) == sorted(map(repr, whole.end_input()["output"]))
