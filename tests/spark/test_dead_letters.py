"""Dead letters on a real local Spark: columns, metrics, and a restart behind a batch that failed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.sql import functions as F

from pillarbox import (
    DeadLetter,
    KeyedProcessFunction,
    OutputTag,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    metrics,
    start,
)

BAD = OutputTag[DeadLetter]("bad")
RECORDS = 120


class Sums(KeyedProcessFunction):
    """Keeps a list, which it changes in place before it raises."""

    def open(self, runtime_context):
        self.kept = runtime_context.get_state(ValueStateDescriptor("kept"))

    def process_element(self, row, ctx):
        kept = self.kept.value() or []
        kept.append(row.id)
        self.kept.update(kept)
        yield row.key, sum(kept)
        if row.id % 7 == 3:
            raise ValueError(f"not {row.id}")


def good() -> Counter[Any]:
    """What the function says of the records at which it does not raise."""
    said: Counter[Any] = Counter()
    sums: Counter[int] = Counter()
    for number in range(RECORDS):
        if number % 7 != 3:
            sums[number % 3] += number
            said[number % 3, sums[number % 3]] += 1
    return said


def test_dead_letters_of_a_streaming_query(spark, tmp_path):
    df = spark.range(RECORDS).select("id", (F.col("id") % 3).alias("key"))
    df.repartitionByRange(3, "id").sortWithinPartitions("id").write.parquet(str(tmp_path / "in"))
    source = spark.readStream.schema(df.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    rows: dict[str, list[Any]] = {"sums": [], "bad": []}
    counted = 0

    def run(fails_at: int | None) -> None:
        nonlocal counted
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
        sums = env.from_dataframe(source).key_by("key").process(Sums(), on_error=BAD).uid("sums")
        letters = sums.get_side_output(BAD).map(DeadLetter.as_text, DeadLetter.COLUMNS)

        def take(frames, number):
            found = {name: [tuple(row) for row in frame.collect()] for name, frame in frames.items()}
            if number == fails_at:
                raise RuntimeError("enough")
            for name, some in found.items():
                rows[name] += some

        writer = env.for_each_batch(take, {"sums": (sums, "key LONG, sum LONG"), "bad": (letters, DeadLetter.COLUMNS)})
        query = start(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True))
        if fails_at is None:
            query.awaitTermination()
        else:
            with pytest.raises(Exception, match="enough"):
                query.awaitTermination()
        reports = [task for progress in query.recentProgress for task in metrics(progress)]
        counted += sum(task.counters.get("sums.dead_letters", 0) for task in reports)

    run(fails_at=1)
    run(fails_at=None)
    assert Counter(rows["sums"]) == good()
    failed = [number for number in range(RECORDS) if number % 7 == 3]
    assert sorted(rows["bad"]) == sorted(
        (f"Row(id={n}, key={n % 3})", str(n % 3), None, "process: Sums", f"ValueError: not {n}", trace, None)
        for n, trace in zip(failed, [row[5] for row in sorted(rows["bad"], key=lambda row: int(row[4].split()[-1]))])
    )
    assert all("in process_element" in row[5] and "pillarbox/operators" not in row[5] for row in rows["bad"])
    # The batch that failed was counted again when it was run again.
    assert counted >= len(failed)
