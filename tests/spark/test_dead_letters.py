from __future__ import annotations

import logging
import os
import re
from collections import Counter
from pathlib import Path
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
    """Stores a list, and changes it in place before raising an error. Also reports metrics and writes log lines."""

    def __init__(self, logged: Path) -> None:
        self.logged = logged

    def open(self, runtime_context):
        self.kept = runtime_context.get_state(ValueStateDescriptor("kept"))
        metrics = runtime_context.get_metrics_group().add_group("rows")
        self.seen, self.ids, self.rate = metrics.counter("seen"), metrics.distribution("ids"), metrics.meter("rate")
        self.largest = 0
        metrics.gauge("largest", lambda: self.largest)
        self.log = runtime_context.get_logger("tests.spark.dead_letters")
        handler = logging.FileHandler(self.logged / f"{os.getpid()}.log")
        handler.setFormatter(logging.Formatter("%(message)s %(operator)s %(subtask)d %(epoch)d"))
        self.log.logger.handlers = [handler]

    def process_element(self, row, ctx):
        self.seen.inc()
        self.ids.update(row.id)
        self.rate.mark_event(2)
        self.largest = max(row.id, self.largest)
        if row.id < 3:
            self.log.warning("got %d", row.id)
        ids = self.kept.value() or []
        ids.append(row.id)
        self.kept.update(ids)
        yield row.key, len(ids)
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
    counts = keyed.process(Counts(tmp_path), on_error=BAD).uid("counts")
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
    frames = [[line.split()[-1] for line in text.splitlines() if line.startswith("  File ")] for text in tracebacks]
    assert frames == [["process_element"]] * len(failed)
    reports = [task for progress in query.recentProgress for task in metrics(progress)]
    assert sum(task.counters.get("counts.dead_letters", 0) for task in reports) == len(failed)

    tasks = [task for task in reports if task.uid == "counts"]
    seen = sorted(set(range(RECORDS)) - set(unkeyed))
    for name, times in (("seen", 1), ("rate", 2), ("ids.count", 1)):
        assert sum(task.counters[f"counts.rows.{name}"] for task in tasks) == times * len(seen)
    assert sum(task.gauges.get("counts.rows.ids.sum", 0) for task in tasks) == sum(seen)
    assert max(task.gauges["counts.rows.largest"] for task in tasks) == max(seen)
    assert any(task.gauges["counts.rows.rate.rate"] > 0 for task in tasks)
    lines = [line for path in tmp_path.glob("*.log") for line in path.read_text().splitlines()]
    form = r"got (\d) \(operator 'process: Counts', subtask (\d), epoch (\d)\) process: Counts (\d) (\d)"
    match = [re.fullmatch(form, line) for line in lines]
    assert all(match), lines
    parts = [tuple(map(int, parsed.groups())) for parsed in match if parsed is not None]
    assert sorted(number for number, *_ in parts) == [0, 1, 2]
    assert all((subtask, epoch) == (its, again) for _, subtask, epoch, its, again in parts)
