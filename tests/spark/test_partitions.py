"""Subtasks are apart from Spark's partitions; and checkpoints go on with the codes that they were begun with."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

import pillarbox
from pillarbox import StreamExecutionEnvironment, WatermarkStrategy
from pillarbox.runtime.spark.description import Description
from pillarbox.runtime.spark.start import _PROVIDER

pytestmark = pytest.mark.spark

HERE = Path(__file__).resolve().parent
SUBTASKS = 8
KEYS = 40


class Home:
    """A folder with a source and a checkpoint."""

    def __init__(self, spark, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.parts = 0
        self.rows: list[Any] = []

    def run(self, *, subtasks: int = SUBTASKS, partitions: int | None = None, start: Any = None) -> list[Any]:
        """Give each key one more record, and run the program to the end of them; return what it emitted."""
        part = self.parts
        self.parts += 1
        frame = self.spark.createDataFrame([(key, part) for key in range(KEYS)], "key LONG, at LONG").coalesce(1)
        frame.write.mode("append").parquet(str(self.folder / "in"))
        read = self.spark.readStream.schema("key LONG, at LONG").parquet(str(self.folder / "in"))
        env = StreamExecutionEnvironment.get_execution_environment(self.spark).set_parallelism(subtasks)
        if partitions is not None:
            env.set_partitions(partitions)
        times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        counts = (
            env.from_dataframe(read)
            .assign_timestamps_and_watermarks(times)
            .map(lambda row: (row.key, 1))
            .key_by(lambda pair: pair[0])
            .reduce(lambda one, other: (one[0], one[1] + other[1]))
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
        """Have Spark spread the state of the stopped query over another number of partitions."""
        settings = {
            "spark.sql.streaming.stateStore.providerClass": _PROVIDER,
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
        """The partitions that have state."""
        return {path.name for path in (self.checkpoint / "state" / "0").glob("[0-9]*")}


@pytest.fixture
def home(spark, tmp_path):
    return Home(spark, tmp_path)


def _format_of(checkpoint: Path) -> str:
    """Return the format of the state files, which the commit log notes."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    return newest.read_text().splitlines()[0].removeprefix("v")


def counts(n: int) -> list[tuple[int, int]]:
    return [(key, n) for key in range(KEYS)]


def test_eight_subtasks_in_two_partitions(home):
    assert home.run(partitions=2) == counts(1)
    assert home.partitions == {"0", "1"}
    assert home.run(partitions=2, start=pillarbox.start) == counts(2)
    if not hasattr(home.spark, "_streamingCheckpointManager"):  # Spark before 4.2
        return
    home.repartition(3)
    assert home.run(partitions=3) == counts(3)
    assert home.partitions == {"0", "1", "2"}
    assert home.run(partitions=3) == counts(4)


def test_an_older_checkpoint_goes_on_with_its_codes(home):
    """It was written by the last version that had no other codes: this program's first run, with three subtasks."""
    with zipfile.ZipFile(HERE.parent / "data" / "spark-checkpoint-codes-1.zip") as written:
        written.extractall(home.checkpoint)
    read = home.checkpoint / "sources" / "0" / "0"  # which file there was
    read.write_text(read.read_text().replace("file:///in", (home.folder / "in").as_uri()))
    home.parts = 1
    assert home.run(subtasks=3) == counts(2)
    assert home.run(subtasks=3, start=pillarbox.start) == counts(3)
    assert Description(home.spark, str(home.checkpoint)).codes() == 1


def test_a_checkpoint_that_lost_its_note_is_refused(home):
    """Else its subtasks would be looked for under codes of before, and all but the first would start anew."""
    assert home.run() == counts(1)
    shutil.rmtree(home.checkpoint / "pillarbox")
    with pytest.raises(
        Exception, match=r"finds its subtasks by scheme 2 of codes, .* started with scheme 1: the folder"
    ):
        home.run()
