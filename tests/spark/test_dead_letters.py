"""Dead letters on a real local Spark: their columns, the metrics, and the state that is undone."""

from __future__ import annotations

from collections import Counter
from typing import Any

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
UNKEYED = OutputTag[DeadLetter]("unkeyed")
RECORDS = 120


class Counts(KeyedProcessFunction):
    """Keeps a list, which it changes in place before it raises."""

    def open(self, runtime_context):
        self.kept = runtime_context.get_state(ValueStateDescriptor("kept"))

    def process_element(self, row, ctx):
        kept = self.kept.value() or []
        kept.append(row.id)
        self.kept.update(kept)
        yield row.key, len(kept)
        if row.id % 7 == 3:
            raise ValueError(f"not {row.id}")


def key_of(row):
    if row.id % 11 == 5:
        raise LookupError(f"no key: {row.id}")
    return row.key


def test_dead_letters_of_a_streaming_query(spark, tmp_path):
    df = spark.range(RECORDS).select("id", (F.col("id") % 3).alias("key"))
    df.repartition(2, "id").write.parquet(str(tmp_path / "in"))
    source = spark.readStream.schema(df.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    rows: dict[str, list[Any]] = {"counts": [], "bad": [], "unkeyed": []}

    def take(frames, number):
        for name, frame in frames.items():
            rows[name] += map(tuple, frame.collect())

    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
    keyed = env.from_dataframe(source).key_by(key_of, on_error=UNKEYED)
    counts = keyed.process(Counts(), on_error=BAD).uid("counts")
    outputs: dict[str, Any] = {"counts": (counts, "key LONG, n LONG")}
    for stream, tag in ((counts, BAD), (keyed, UNKEYED)):
        letters = stream.get_side_output(tag).map(DeadLetter.as_text, DeadLetter.COLUMNS)
        outputs[tag.tag_id] = letters, DeadLetter.COLUMNS
    writer = env.for_each_batch(take, outputs).trigger(availableNow=True)
    query = start(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    query.awaitTermination()

    unkeyed = [number for number in range(RECORDS) if number % 11 == 5]
    assert sorted((row[0], row[1], row[4]) for row in rows["unkeyed"]) == sorted(
        (f"Row(id={n}, key={n % 3})", None, f"LookupError: no key: {n}") for n in unkeyed
    )
    failed = [number for number in range(RECORDS) if number % 7 == 3 and number not in unkeyed]
    good = Counter(number % 3 for number in range(RECORDS) if number % 7 != 3 and number not in unkeyed)
    assert Counter(rows["counts"]) == Counter((key, n) for key, count in good.items() for n in range(1, count + 1))
    tracebacks = [row[5] for row in rows["bad"]]
    assert sorted(row[:5] + row[6:] for row in rows["bad"]) == sorted(
        (f"Row(id={n}, key={n % 3})", str(n % 3), None, "process: Counts", f"ValueError: not {n}", None) for n in failed
    )
    assert all("in process_element" in text and "pillarbox/operators" not in text for text in tracebacks)
    reports = [task for progress in query.recentProgress for task in metrics(progress)]
    assert sum(task.counters.get("counts.dead_letters", 0) for task in reports) == len(failed)
