"""A query that starts from a savepoint.

While the file HOME/wait exists, the tasks write HOME/reached and wait in the middle of the restore.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pillarbox import (
    KeyedProcessFunction,
    ListStateDescriptor,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)


class Count(KeyedProcessFunction):
    """Counts a key's records. A timer in the far future emits the records' times."""

    def __init__(self, home: Path | None = None) -> None:
        self._home = home

    def open(self, runtime_context):
        if self._home is not None:
            while (self._home / "wait").exists():
                (self._home / "reached").touch()
                time.sleep(0.05)
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))
        self.times = runtime_context.get_list_state(ListStateDescriptor("times"))

    def process_element(self, value, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        self.times.add(value.at)
        ctx.timer_service().register_event_time_timer(value.at + 1_000)
        yield f"{value.key} the {self.seen.value()}th", value.at

    def on_timer(self, timestamp, ctx):
        yield f"{ctx.get_current_key()} at {list(self.times)}", timestamp


def counted(rows: Any, home: Path | None = None, uid: str = "count") -> Any:
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    return rows.assign_timestamps_and_watermarks(at).key_by("key").process(Count(home)).uid(uid)


def writer(spark: Any, home: Path, *, start: str | None = "savepoint", parallelism: int = 3, uid: str = "count") -> Any:
    env = (
        StreamExecutionEnvironment.get_execution_environment(spark)
        .set_parallelism(parallelism)
        .set_max_parallelism(parallelism)
    )
    if start is not None:
        env.from_savepoint(home / start)
    read = spark.readStream.schema("key LONG, at LONG").json(str(home / "in"))
    rows = counted(env.from_dataframe(read), home, uid).to_dataframe("what STRING, at LONG")
    return (
        rows.writeStream.format("json")
        .option("path", str(home / "out"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
    )
