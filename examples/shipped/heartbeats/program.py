"""Detects devices that no longer send heartbeats, with processing-time timers."""

import threading
from collections.abc import Iterator
from datetime import datetime
from tempfile import mkdtemp
from typing import Any

from pyspark.sql import DataFrame

import pillarbox
from pillarbox import (
    KeyedProcessFunction,
    Row,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    local_session,
)

PATIENCE = 3_000  # milliseconds
BREAKS_AFTER = {1: 2, 3: 4}  # how many heartbeats a device sends before it breaks; the others do not break


class Silence(KeyedProcessFunction[int, Row, tuple[Any, ...]]):
    """Postpones a timer at each heartbeat. Because the query may be late once, only a second firing means silence."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.last_seen = runtime_context.get_state(ValueStateDescriptor("last_seen", datetime))
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))
        self.due = runtime_context.get_state(ValueStateDescriptor("due", int))
        self.overdue = runtime_context.get_state(ValueStateDescriptor("overdue", bool, default=False))

    def process_element(self, heartbeat: Row, ctx: Any) -> None:
        self.last_seen.update(heartbeat.timestamp)
        self.count.update((self.count.value() or 0) + 1)
        self.overdue.clear()
        ctx.timer_service().delete_processing_time_timer(self.due.value() or 0)
        self.set_timer(ctx)

    def on_timer(self, now: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        if self.overdue.value():
            yield ctx.get_current_key(), self.count.value(), self.last_seen.value()
        else:
            self.overdue.update(True)
            self.set_timer(ctx)

    def set_timer(self, ctx: Any) -> None:
        due = ctx.timer_service().current_processing_time() + PATIENCE
        ctx.timer_service().register_processing_time_timer(due)
        self.due.update(due)


spark = local_session()
beats = spark.readStream.format("rate").option("rowsPerSecond", 10).load()  # timestamp TIMESTAMP, value LONG
env = StreamExecutionEnvironment.get_execution_environment(spark)
silent = (
    env.from_dataframe(beats)
    .filter(lambda heartbeat: heartbeat.value // 5 < BREAKS_AFTER.get(heartbeat.value % 5, 1_000_000))
    .key_by(lambda heartbeat: heartbeat.value % 5)
    .process(Silence(), "device LONG, heartbeats LONG, last_seen TIMESTAMP")
    .uid("silence")
)
alarmed: set[int] = set()
all_found = threading.Event()


def show(alarms: DataFrame, epoch: int) -> None:
    for alarm in sorted(alarms.collect()):
        print(f"device {alarm.device}: {alarm.heartbeats} heartbeats, last seen {alarm.last_seen:%H:%M:%S}, SILENT")
        alarmed.add(alarm.device)
    if alarmed >= BREAKS_AFTER.keys():
        all_found.set()


writer = silent.to_dataframe().writeStream.foreachBatch(show).trigger(processingTime="200 milliseconds")
query = pillarbox.start(writer.option("checkpointLocation", mkdtemp()))
all_found.wait(timeout=120)
query.stop()
print("epochs without rows:", sum(epoch["numInputRows"] == 0 for epoch in query.recentProgress))
