"""A query is operated from outside: inspection, rescaling, and the command line."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from click.testing import CliRunner

import pillarbox
from pillarbox import (
    CheckpointMismatchError,
    KeyedProcessFunction,
    ProgramError,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    WindowFunction,
    read_state,
)
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.starting.rescale import rescale
from pillarbox_tools.cli import commands

pytestmark = pytest.mark.spark

SUBTASKS = 4
KEYS = 12


class Remember(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.LONG()))

    def process_element(self, value, ctx):
        if self.seen.value() is None:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 25_000)
        self.seen.update((self.seen.value() or 0) + 1)

    def on_timer(self, timestamp, ctx):
        yield f"{ctx.get_current_key()} at {timestamp}", self.seen.value()
        self.seen.clear()


class Count(WindowFunction):
    def apply(self, key, window, inputs):
        yield f"{key} in {window.start}", len(list(inputs))


class Home:
    """A folder with a source and a checkpoint. Each run adds ten seconds of records to the source."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.checkpoint = str(folder / "checkpoint")
        self.records: list[tuple[int, int]] = []
        self.parts = 0
        self.function: KeyedProcessFunction = Remember()

    def program(self, parallelism: int, *, automatic: bool = False) -> Any:
        read = (
            self.spark.readStream.schema("key LONG, at LONG")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.folder / "in"))
        )
        env = StreamExecutionEnvironment.get_execution_environment(self.spark)
        env.set_parallelism(parallelism).set_max_parallelism(SUBTASKS).set_auto_rescale(automatic)
        times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        rows = env.from_dataframe(read).assign_timestamps_and_watermarks(times).key_by("key")
        remembered = rows.process(self.function).uid("remember")
        counted = rows.window(TumblingEventTimeWindows.of("15 seconds")).apply(Count()).uid("windows")
        return remembered.union(counted).to_dataframe("what STRING, n LONG")

    def add(self) -> None:
        rows = [(key, 10_000 * self.parts + 700 * key + n) for key in range(KEYS) for n in range(self.parts + 1)]
        self.spark.createDataFrame(rows, "key LONG, at LONG").coalesce(1).write.mode("append").parquet(
            str(self.folder / "in")
        )
        self.records += rows
        self.parts += 1

    def run(self, parallelism: int = 2, *, automatic: bool = False, add: bool = True) -> list[Any]:
        if add:
            self.add()
        seen: dict[int, list[Any]] = {}
        writer = (
            self.program(parallelism, automatic=automatic)
            .writeStream.foreachBatch(lambda batch, number: seen.update({number: list(map(tuple, batch.collect()))}))
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
        )
        pillarbox.start(writer).awaitTermination()
        return sorted(row for rows in seen.values() for row in rows)

    @property
    def parallelism(self) -> int | None:
        return Checkpoint(self.spark, self.checkpoint).parallelism


@pytest.fixture
def home(spark, tmp_path):
    return Home(spark, tmp_path)


@pytest.fixture
def command(spark, monkeypatch):
    @contextmanager
    def session(master, settings, *, verbose):
        yield spark

    monkeypatch.setattr(commands, "session", session)
    return lambda *arguments: CliRunner().invoke(commands.pillarbox, arguments)


def as_table(home: Home, uid: str, **options: Any) -> Any:
    return read_state(home.spark, home.checkpoint, uid, **options)


def undisturbed(home: Home) -> list[Any]:
    watermark = max(at for _, at in home.records) - 1
    windows = Counter((key, at // 15_000 * 15_000) for key, at in home.records)
    ended = {(f"{key} in {start}", n) for (key, start), n in windows.items() if start + 15_000 - 1 <= watermark}
    # A timer of each key's first record; it sees the state of all three runs.
    due = {(f"{key} at {700 * key + 25_000}", 6) for key in range(KEYS) if 700 * key + 25_000 <= watermark}
    assert ended and due
    return sorted(ended | due)


def look_inside(home: Home, command: Any) -> None:
    settings = home.spark.conf.getAll
    state = as_table(home, "remember")
    assert home.spark.conf.getAll == settings
    assert [(f.name, f.dataType.simpleString()) for f in state.schema] == [
        ("key", "bigint"),
        ("namespace", "variant"),
        ("seen", "bigint"),
        ("timers", "array<struct<service:string,domain:string,timestamp:bigint>>"),
        ("subtask", "int"),
    ]
    rows = state.selectExpr("key", "seen", "timers[0].timestamp - 25000", "size(timers)").collect()
    assert sorted(map(tuple, rows)) == [(key, 3, 700 * key, 1) for key in range(KEYS)]
    # Windows keep their records, which are pickled: of no type that is known. One of before is as it was then.
    starts = as_table(home, "windows", epoch=0).selectExpr("variant_get(namespace, '$[0]', 'long') AS at", "subtask")
    assert {(row.at, row.subtask in range(SUBTASKS)) for row in starts.where("at IS NOT NULL").collect()} == {(0, True)}
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        (
            {"uid": "no such"},
            CheckpointMismatchError,
            "no operator with state has the uid 'no such'; it has state of",
        ),
        ({"epoch": 99}, CheckpointMismatchError, "its last epoch is 2, so epoch 99 does not exist yet"),
        ({"epoch": "1"}, ProgramError, r"an epoch must be a micro-batch number \(0 or more\), not '1'"),
        ({"checkpoint": str(home.folder)}, CheckpointMismatchError, "is not a checkpoint of a query, or has no"),
    ]
    for changes, error, words in refused:
        with pytest.raises(error, match=words):
            read_state(home.spark, **{"checkpoint": home.checkpoint, "uid": "remember", **changes})
    result = command("inspect", home.checkpoint, "--json", "--against", home.checkpoint)
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert (rows["epoch"], rows["oldest_epoch"], rows["unfinished_epoch"], rows["parallelism"]) == (2, 0, None, 4)
    assert rows["changes"] == {"refused": [], "doubtful": [], "carried_out": []}
    remember, windows = rows["operators"]
    assert (remember["uid"], remember["kind"], remember["keys"], remember["timers"]) == (
        "remember",
        "process",
        KEYS,
        {"event": KEYS},
    )
    assert (remember["states"], remember["is_plain"]) == ({"seen": "value LONG"}, True)
    assert windows["uid"] == "windows" and windows["namespaces"] and not windows["is_plain"]
    # The largest possible watermark: of the run's last millisecond.
    assert remember["watermark"] == 10_000 + 700 * (KEYS - 1) + 1 - 1
    result = command("state", home.checkpoint, "remember", "--where", "key = 3", "--json")
    assert (json.loads(result.stdout)["seen"], result.exit_code) == (3, 0)


@pytest.mark.skipif(
    tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2), reason="Spark repartitions state from 4.2 on"
)
def test_another_parallelism_and_a_look_inside(home, command, monkeypatch):
    spark, checkpoint = home.spark, home.checkpoint
    out = home.run(2)
    assert rescale(spark, checkpoint, 2) is False
    with pytest.raises(
        CheckpointMismatchError, match=r"parallelism 5 is above its max parallelism 4, which was set by the first start"
    ):
        rescale(spark, checkpoint, 5)
    commits = home.folder / "checkpoint" / "commits"

    def uncommit(batch: int) -> None:
        for path in (commits / str(batch), commits / f".{batch}.crc"):
            path.unlink()

    assert rescale(spark, checkpoint, 4)
    uncommit(1)
    words = r"from 2 to 4 was interrupted: complete it with 'pillarbox rescale .*/checkpoint --parallelism 4'"
    with pytest.raises(CheckpointMismatchError, match=words):
        rescale(spark, checkpoint, 3)
    with pytest.raises(CheckpointMismatchError, match=words):
        home.run(4, add=False)
    result = command("rescale", checkpoint, "--parallelism", "4", "--json")
    assert json.loads(result.stdout)["changed"] and home.parallelism == 4
    out += home.run(4)
    look_inside(home, command)
    uncommit(2)
    result = command("rescale", checkpoint, "--parallelism", "1")
    assert result.exit_code == 1 and "epoch 2 began, but was not committed: start the query" in result.stderr
    again = home.run(1, automatic=True)
    assert home.parallelism == 1
    # The repeated epoch had the same output.
    assert sorted({*out, *again}) == undisturbed(home)


@pytest.mark.long("another rescaling with another sink")
@pytest.mark.skipif(
    tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2), reason="Spark repartitions state from 4.2 on"
)
def test_a_file_sink_goes_on_where_state_went_to_other_partitions(home):
    """The sink's log must have an entry for each batch, even after Spark has compacted the log."""
    spark, out = home.spark, str(home.folder / "out")
    compacted_every = "spark.sql.streaming.fileSink.log.compactInterval"

    def run(partitions: int) -> list[Any]:
        home.add()
        writer = home.program(partitions).writeStream.option("checkpointLocation", home.checkpoint)
        pillarbox.start(writer.trigger(availableNow=True), out).awaitTermination()
        return sorted(map(tuple, spark.read.schema("what STRING, n LONG").parquet(out).collect()))

    spark.conf.set(compacted_every, "3")
    try:
        run(1)
        assert rescale(spark, home.checkpoint, 2)
        run(2)  # batch 2, which repeats an earlier one
        for partitions in (1, 3, 4):  # batch 5 does, and is not the query's
            assert rescale(spark, home.checkpoint, partitions)
        assert run(4) == undisturbed(home)
    finally:
        spark.conf.unset(compacted_every)
    names = [path.name for path in (home.folder / "out" / "_spark_metadata").glob("[0-9]*")]
    assert {"2.compact", "3", "4", "5.compact", "6"} <= set(names)
