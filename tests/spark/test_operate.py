"""Operating a query from outside: a look into its state, another parallelism, the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark
import pytest

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
from pillarbox.runtime.spark.description import Description
from pillarbox.runtime.spark.rescale import rescale

pytestmark = pytest.mark.spark

SUBTASKS = 8
KEYS = 12


class Remember(KeyedProcessFunction):
    """Counts a key's records; a timer, long after, tells how many they were."""

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
    """A folder with a source and a checkpoint: each run adds ten seconds of records."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.checkpoint = str(folder / "checkpoint")
        self.parts = 0

    def program(self, partitions: int, *, automatic: bool = False) -> Any:
        read = self.spark.readStream.schema("key LONG, at LONG").parquet(str(self.folder / "in"))
        env = StreamExecutionEnvironment.get_execution_environment(self.spark)
        env.set_parallelism(SUBTASKS).set_partitions(partitions).set_auto_rescale(automatic)
        times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        rows = env.from_dataframe(read).assign_timestamps_and_watermarks(times).key_by("key")
        remembered = rows.process(Remember()).uid("remember")
        counted = rows.window(TumblingEventTimeWindows.of("15 seconds")).apply(Count()).uid("windows")
        return remembered.union(counted).to_dataframe("what STRING, n LONG")

    def add(self) -> None:
        rows = [(key, 10_000 * self.parts + 700 * key + n) for key in range(KEYS) for n in range(self.parts + 1)]
        self.spark.createDataFrame(rows, "key LONG, at LONG").coalesce(1).write.mode("append").parquet(
            str(self.folder / "in")
        )
        self.parts += 1

    def run(self, partitions: int = 2, *, automatic: bool = False, add: bool = True) -> list[Any]:
        """Add records, and run the program to their end; return what came out, each batch once."""
        if add:
            self.add()
        seen: dict[int, list[Any]] = {}
        writer = (
            self.program(partitions, automatic=automatic)
            .writeStream.foreachBatch(lambda batch, number: seen.update({number: list(map(tuple, batch.collect()))}))
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
        )
        pillarbox.start(writer).awaitTermination()
        return sorted(row for rows in seen.values() for row in rows)

    @property
    def partitions(self) -> int | None:
        return Description(self.spark, self.checkpoint).partitions


@pytest.fixture
def home(spark, tmp_path):
    return Home(spark, tmp_path)


def test_the_state_of_an_operator_is_a_dataframe(home):
    home.run()
    home.run()
    settings = home.spark.conf.getAll
    state = read_state(home.spark, home.checkpoint, "remember")
    assert home.spark.conf.getAll == settings
    assert [(f.name, f.dataType.simpleString()) for f in state.schema] == [
        ("key", "bigint"),
        ("namespace", "variant"),
        ("seen", "bigint"),
        ("timers", "array<struct<service:string,domain:string,timestamp:bigint>>"),
        ("subtask", "int"),
    ]
    found = state.orderBy("key").selectExpr("key", "seen", "timers[0].timestamp - 25000", "size(timers)").collect()
    assert [tuple(row) for row in found] == [(key, 3, 700 * key, 1) for key in range(KEYS)]
    assert {row.subtask for row in state.collect()} <= set(range(SUBTASKS))
    # One of before, and the same of the newest: what was not touched by then is as it was.
    before = read_state(home.spark, home.checkpoint, "remember", epoch=0)
    assert {(row.key, row.seen) for row in before.collect()} == {(key, 1) for key in range(KEYS)}
    # Windows keep their records, which are pickled: of no type that is known.
    windows = read_state(home.spark, home.checkpoint, "windows")
    starts = (
        windows.selectExpr("variant_get(namespace, '$[0]', 'long') AS start")
        .where("start IS NOT NULL")
        .distinct()
        .collect()
    )
    assert {row.start for row in starts} == {15_000}
    for changes, error, words in (
        (
            {"uid": "no such"},
            CheckpointMismatchError,
            "no state of an operator with the uid 'no such'; it has state of",
        ),
        ({"epoch": 99}, CheckpointMismatchError, "its last epoch is 1; there is no 99 yet"),
        ({"epoch": "1"}, ProgramError, "an epoch is the number of a micro-batch, from 0, not '1'"),
        ({"checkpoint": str(home.folder)}, CheckpointMismatchError, "is no checkpoint of a query, or none of its"),
    ):
        with pytest.raises(error, match=words):
            read_state(home.spark, **{"checkpoint": home.checkpoint, "uid": "remember", **changes})


@pytest.fixture
def undisturbed(spark, tmp_path):
    """What comes out of five runs that never changed."""
    other = Home(spark, tmp_path / "undisturbed")
    return [other.run() for _ in range(4)]


needs_repartition = pytest.mark.skipif(
    tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2), reason="Spark repartitions state from 4.2 on"
)


@needs_repartition
def test_another_parallelism_and_back(home, undisturbed, monkeypatch):
    spark, checkpoint = home.spark, home.checkpoint
    assert home.run(2) == undisturbed[0]
    assert rescale(spark, checkpoint, 2) is False
    with pytest.raises(CheckpointMismatchError, match=r"9 partitions are more than its 8 subtasks, some would stay"):
        rescale(spark, checkpoint, 9)
    # It is interrupted when the state is written, and nothing else will do then.
    manager = type(spark._streamingCheckpointManager)
    whole = manager.repartition
    commits = home.folder / "checkpoint" / "commits"

    def interrupted(self: Any, *args: Any) -> None:
        whole(self, *args)
        for path in (commits / "1", commits / ".1.crc"):  # as if the driver had died just before the commit
            path.unlink()

    monkeypatch.setattr(manager, "repartition", interrupted)
    assert rescale(spark, checkpoint, 4)
    monkeypatch.undo()
    words = r"from 2 to 4 was interrupted: complete it first, with 'pillarbox rescale .*/checkpoint --parallelism 4'"
    with pytest.raises(CheckpointMismatchError, match=words):
        rescale(spark, checkpoint, 3)
    with pytest.raises(CheckpointMismatchError, match=words):
        home.run(4, add=False)
    assert rescale(spark, checkpoint, 4) and home.partitions == 4
    assert home.run(4) == undisturbed[1]
    assert {row.subtask for row in read_state(spark, checkpoint, "remember").collect()} <= set(range(SUBTASKS))
    # The last epoch is not committed: the driver died after the sink had it.
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in (commits / str(newest), commits / f".{newest}.crc"):
        path.unlink()
    with pytest.raises(CheckpointMismatchError, match=rf"epoch {newest} was begun, and is not committed: start the qu"):
        rescale(spark, checkpoint, 1)
    assert [row for row in home.run(1, automatic=True) if row not in undisturbed[1]] == undisturbed[2]
    assert home.partitions == 1
    assert home.run(1) == undisturbed[3]
