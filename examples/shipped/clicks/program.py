"""Measures how long visitors stay, with sessions by column aggregates and the same sessions by Python functions."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pillarbox import (
    AggregateFunction,
    EventTimeSessionWindows,
    ProcessWindowFunction,
    Row,
    StreamExecutionEnvironment,
    TimeWindow,
    WatermarkStrategy,
    count_,
    local_session,
)

GAP = timedelta(minutes=30)
Session = tuple[str, datetime, datetime, int]


class Count(AggregateFunction[Row, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Row, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class WithWindow(ProcessWindowFunction[int, Session, str, TimeWindow]):
    def process(self, key: str, context: Any, elements: Iterable[int]) -> Iterator[Session]:
        start, end = (datetime.fromtimestamp(at / 1000, timezone.utc) for at in context.window())
        for n in elements:
            yield key, start, end, n


def sessions(clicks: DataFrame, *, by_columns: bool) -> DataFrame:
    times = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("at")
    stream = StreamExecutionEnvironment.get_execution_environment(spark).from_dataframe(clicks)
    windows = (
        stream.assign_timestamps_and_watermarks(times).key_by("visitor").window(EventTimeSessionWindows.with_gap(GAP))
    )
    if by_columns:
        return windows.aggregate(n=count_()).uid("by-columns").to_dataframe()
    columns = "visitor STRING, window_start TIMESTAMP, window_end TIMESTAMP, n LONG"
    return windows.aggregate(Count(), WithWindow()).uid("by-functions").to_dataframe(columns)


spark = local_session()
log = str(Path(__file__).parent / "clicks.csv")
clicks = spark.read.csv(log, header=True, schema="at TIMESTAMP, visitor STRING, page STRING").cache()
columns, functions = (sorted(sessions(clicks, by_columns=choice).collect()) for choice in (True, False))
assert columns == functions
print(f"{clicks.count()} clicks are {len(columns)} sessions, by columns and by functions")

bars = Counter(min((session.window_end - session.window_start - GAP) // timedelta(minutes=5), 6) for session in columns)
for bar in range(7):
    minutes = f"{5 * bar:2} to {5 * bar + 5:2}" if bar < 6 else "30 or more"
    print(f"{minutes:>10} minutes {bars[bar]:5} {'#' * (bars[bar] // 25)}")

copies = clicks.withColumn("copy", F.explode(F.sequence(F.lit(1), F.lit(50))))
more = copies.select("at", F.concat_ws("-", "visitor", "copy").alias("visitor"), "page").cache()
rows = more.count()
for name, choice in ("columns", True), ("functions", False):
    began = time.perf_counter()
    sessions(more, by_columns=choice).count()
    print(f"50 times as many clicks, by {name}: {rows / (time.perf_counter() - began):,.0f} rows/s")
