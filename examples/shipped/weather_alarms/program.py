"""Emits an alarm if the mean wind of six hours exceeds a threshold that changes while the program runs."""

import os
import shutil
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from chart import draw
from pyspark.sql import DataFrame

import pillarbox
from pillarbox import (
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    Row,
    RuntimeContext,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    WatermarkStrategy,
    avg_,
    local_session,
)

THRESHOLDS = MapStateDescriptor[int, float]("thresholds")  # miles an hour, by the time since when


class Compare(KeyedBroadcastProcessFunction[str, Row, Row, tuple[Any, ...]]):
    """Holds each window until event time has passed its end, when all thresholds up to then have arrived."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.waiting = runtime_context.get_map_state(MapStateDescriptor("waiting", int, float))

    def process_element(self, window: Row, ctx: Any) -> None:
        self.waiting[ctx.timestamp()] = window.wind
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def process_broadcast_element(self, threshold: Row, ctx: Any) -> None:
        ctx.get_broadcast_state(THRESHOLDS).put(ctx.timestamp(), threshold.mph)

    def on_timer(self, now: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        thresholds = ctx.get_broadcast_state(THRESHOLDS)
        since = max(at for at in thresholds if at <= now)
        yield datetime.fromtimestamp((now + 1) / 1000, timezone.utc), self.waiting[now], thresholds.get(since)
        del self.waiting[now]


def arriving(folder: str, columns: str) -> DataFrame:
    """Read one file per micro-batch, in the order of their names. Reads copies with ascending modification times."""
    target = mkdtemp()
    for second, file in enumerate(sorted((Path(__file__).parent / folder).iterdir())):
        os.utime(shutil.copy(file, target), (1_700_000_000 + second, 1_700_000_000 + second))
    reader = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
    return reader.parquet(target) if folder == "weather" else reader.csv(target, header=True)


spark = local_session()
env = StreamExecutionEnvironment.get_execution_environment(spark)
times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
weather = env.from_dataframe(arriving("weather", "airport STRING, at TIMESTAMP, wind DOUBLE"), "weather")
thresholds = env.from_dataframe(arriving("thresholds", "at TIMESTAMP, mph DOUBLE"), "thresholds")
observed = weather.assign_timestamps_and_watermarks(times).key_by("airport")
means = observed.window(SlidingEventTimeWindows.of("6 hours", "1 hour")).aggregate(wind=avg_("wind")).uid("means")
for_all = thresholds.assign_timestamps_and_watermarks(times).broadcast(THRESHOLDS)
compared = means.key_by("airport").connect(for_all).process(Compare(), "ends TIMESTAMP, wind DOUBLE, threshold DOUBLE")
hours: list[Any] = []


def show(results: DataFrame, epoch: int) -> None:
    new = results.orderBy("ends").collect()
    hours.extend(new)
    print(f"epoch {epoch}: {len(new)} hours, {sum(hour.wind > hour.threshold for hour in new)} with an alarm")


writer = compared.uid("compare").to_dataframe().writeStream.foreachBatch(show).trigger(availableNow=True)
pillarbox.run(pillarbox.start(writer.option("checkpointLocation", mkdtemp())))
if draw(hours, "weather_alarms.svg"):
    print("see weather_alarms.svg")
