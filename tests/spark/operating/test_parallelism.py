from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import pillarbox
from pillarbox import CheckpointMismatchError, StreamExecutionEnvironment, WatermarkStrategy
from pillarbox._graph.layout import Layout
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.session.spark_names import PROVIDER

pytestmark = pytest.mark.spark

HERE = Path(__file__).resolve().parent
SUBTASKS = 8
KEYS = 40


class Home:
    def __init__(self, spark, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.parts = 0
        self.rows: list[Any] = []

    def run(
        self,
        parallelism: int | None = 2,
        most: int | None = None,
        start: Any = None,
        savepoint: str | None = None,
    ) -> list[Any]:
        part = self.parts
        self.parts += 1
        frame = self.spark.createDataFrame([(key, part) for key in range(KEYS)], "key LONG, at LONG").coalesce(1)
        frame.write.mode("append").parquet(str(self.folder / "in"))
        read = self.spark.readStream.schema("key LONG, at LONG").parquet(str(self.folder / "in"))
        env = StreamExecutionEnvironment.get_execution_environment(self.spark)
        if parallelism is not None:
            env.set_parallelism(parallelism)
        if most is not None:
            env.set_max_parallelism(most)
        if savepoint is not None:
            env.from_savepoint(savepoint)
        times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        counts = (
            env.from_dataframe(read)
            .assign_timestamps_and_watermarks(times)
            .map(lambda row: (row.key, 1))
            .key_by(lambda pair: pair[0])
            .reduce(lambda total, other: (total[0], total[1] + other[1]))
            .uid("count")
            .to_dataframe("key LONG, n LONG")
        )
        seen: list[Any] = []
        writer = (
            counts.writeStream.foreachBatch(lambda batch, number: seen.extend(map(tuple, batch.collect())))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
        )
        query = writer.start() if start is None else start(writer)
        query.awaitTermination()
        return sorted(seen)

    def repartition(self, partitions: int) -> None:
        settings = {
            "spark.sql.streaming.stateStore.providerClass": PROVIDER,
            "spark.sql.streaming.stateStore.checkpointFormatVersion": _format_of(self.checkpoint),
        }
        before = self.spark.conf.getAll
        try:
            for name, value in settings.items():
                self.spark.conf.set(name, value)
            self.spark._streamingCheckpointManager.repartition(str(self.checkpoint), partitions)
        finally:
            for name in settings:
                if name in before:
                    self.spark.conf.set(name, before[name])
                else:
                    self.spark.conf.unset(name)

    @property
    def partitions(self) -> set[str]:
        return {path.name for path in (self.checkpoint / "state" / "0").glob("[0-9]*")}


@pytest.fixture
def home(spark, tmp_path):
    return Home(spark, tmp_path)


def _format_of(checkpoint: Path) -> str:
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    return newest.read_text().splitlines()[0].removeprefix("v")


def counts(n: int) -> list[tuple[int, int]]:
    return [(key, n) for key in range(KEYS)]


def layouts(home: Home) -> list[Layout]:
    return Checkpoint(home.spark, str(home.checkpoint)).layouts([Layout(1, 1)], list)


@pytest.mark.long("test_operate.py rescales a query, and homes/ has several subtasks of a partition")
def test_eight_subtasks_in_two_partitions(home, caplog):
    with caplog.at_level("INFO", "pillarbox"):
        assert home.run(2, most=SUBTASKS) == counts(1)
    assert home.partitions == {"0", "1"} and layouts(home) == [Layout(8, 8, 2)]
    assert "max parallelism" not in caplog.text
    assert home.run(2, start=pillarbox.start) == counts(2)
    with pytest.raises(CheckpointMismatchError, match="max_parallelism was 8, and is now 9, but a checkpoint's"):
        home.run(2, most=9, start=pillarbox.start)
    if not hasattr(home.spark, "_streamingCheckpointManager"):  # Spark before 4.2
        return
    home.repartition(3)
    # It takes both numbers from the checkpoint: its own first start would have another number.
    assert home.run(None) == sorted(counts(3) + counts(4))
    assert home.partitions == {"0", "1", "2"} and layouts(home) == [Layout(8, 8, 2)]
    with caplog.at_level("WARNING", "pillarbox"):
        assert home.run(9, start=pillarbox.start) == counts(5)
    assert "its first start fixed the max parallelism at 8, so the query cannot have parallelism 9" in caplog.text


@pytest.mark.long("three queries for a line of the log")
def test_the_default_parallelism_is_logged_once(home, capsys):
    notices = (
        "pillarbox: the query begins with parallelism 2, as set by spark.sql.shuffle.partitions: set another one"
        " with env.set_parallelism(), or change it later with 'pillarbox rescale', up to the max parallelism\n"
    )
    fixed = (
        "pillarbox: the query begins with max parallelism 4, which is now fixed: to change it, call"
        " env.set_max_parallelism() and use a new checkpoint directory, which can start from a savepoint of this one\n"
    )

    def log_text() -> str:
        lines = capsys.readouterr().err.splitlines(True)
        return "".join(line for line in lines if "pillarbox: the query begins" in line)

    assert home.run(None) == counts(1) and log_text() == notices + fixed
    assert home.run(None) == counts(2) and log_text() == ""
    savepoint = str(home.folder / "savepoint")
    pillarbox.savepoint(home.spark, str(home.checkpoint), savepoint)
    home.checkpoint = home.folder / "from a savepoint"
    assert home.run(None, savepoint=savepoint) == counts(3) and log_text() == notices + fixed
    assert home.run(None, savepoint=savepoint) == counts(4) and log_text() == ""
    home.checkpoint = home.folder / "another"
    home.run(2)
    assert log_text() == fixed


@pytest.mark.long("runtime/changes/test_layouts_of_checkpoints.py has notes and logs without Spark")
def test_a_checkpoint_that_lost_its_note_goes_by_its_logs(home, caplog, capsys):
    with caplog.at_level("INFO", "pillarbox"):
        assert home.run(None) == counts(1)
    assert (
        "begins with parallelism 2, as set by spark.sql.shuffle.partitions: set another one with env.set_parallelism()"
        in caplog.text
    )
    assert "begins with max parallelism 4, which is now fixed: to change it, call env.set_max_p" in caplog.text
    assert "parallelism" not in capsys.readouterr().err  # it is in the log
    shutil.rmtree(home.checkpoint / "pillarbox")
    assert home.run() == counts(2)
