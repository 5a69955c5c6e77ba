# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="import-not-found, misc"
"""PyFlink's side of the keyed benchmarks; runs in a virtual environment of its own, without pillarbox and Spark.

A job reads rows from CSV files and writes what its function emits into others. It is made so that only two hops go
through Python, which cannot be avoided: the key selector and the keyed function. Files, timestamps and watermarks are
the JVM's affair (a table's; a timestamp assigner in Python would be a third hop). Bundles are large, the state cache of
the Python workers holds all keys, metrics are off, objects are reused, the state is on the JVM's heap, and there are
no checkpoints.

The time of a job goes from the first record that the keyed function sees to the last one, or the last timer, so the
start-up of a job and of its Python workers does not count.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction
from pyflink.datastream.state import ListStateDescriptor, ValueStateDescriptor

from benchmarks.flink_job import environment, serve, write

MINUTE = 60_000
GAP = 30_000
SOURCE = """
    CREATE TEMPORARY TABLE source (
        `key` INT, `ts` BIGINT, `at` AS TO_TIMESTAMP_LTZ(`ts`, 3), WATERMARK FOR `at` AS `at` - INTERVAL '5' SECOND
    ) WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')
"""


class Timed(KeyedProcessFunction):
    """Writes down when it saw its first record, and when it did something last."""

    def __init__(self, times: str) -> None:
        self.times = times
        self.first = self.last = 0.0
        self.rows = 0

    def seen(self) -> None:
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.rows += 1

    def close(self):
        Path(self.times, f"{os.getpid()}-{id(self)}").write_text(f"{self.first} {self.last} {self.rows}")


class Count(Timed):
    """Counts the rows of a key; emits the count at the end of each minute that had one."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", Types.LONG()))

    def process_element(self, row, ctx):
        self.seen()
        self.n.update((self.n.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(row[1] // MINUTE * MINUTE + MINUTE)

    def on_timer(self, timestamp, ctx):
        yield Row(ctx.get_current_key(), timestamp, self.n.value())
        self.last = time.monotonic()


class Sessions(Timed):
    """Gathers the rows of a key until none has come for a while; then emits first, last and number."""

    def open(self, ctx):
        self.list = ctx.get_list_state(ListStateDescriptor("times", Types.LONG()))
        self.end = ctx.get_state(ValueStateDescriptor("end", Types.LONG()))

    def process_element(self, row, ctx):
        self.seen()
        ts = row[1]
        end = self.end.value()
        if end is not None:
            ctx.timer_service().delete_event_time_timer(end)
            if ts >= end:
                yield self.session(ctx)
                self.list.clear()
        self.list.add(ts)
        self.end.update(ts + GAP)
        ctx.timer_service().register_event_time_timer(ts + GAP)

    def on_timer(self, timestamp, ctx):
        yield self.session(ctx)
        self.list.clear()
        self.end.clear()
        self.last = time.monotonic()

    def session(self, ctx):
        times = list(self.list.get())
        return Row(ctx.get_current_key(), times[0], times[-1], len(times))


# The functions, and how many numbers follow the key in what they emit.
FUNCTIONS = {"keyed": (Count, 2), "sessions": (Sessions, 3)}


def run(work: str, source: str, target: str, arguments: argparse.Namespace) -> dict[str, Any]:
    env, tables = environment(arguments)
    tables.execute_sql(SOURCE.format(path=Path(source).as_uri()))
    with tempfile.TemporaryDirectory(prefix="bench-keyed-flink-") as times:
        function, numbers = FUNCTIONS[work]
        stream = tables.to_data_stream(tables.from_path("source")).key_by(lambda row: row[0], Types.INT())
        result = stream.process(function(times), Types.ROW([Types.INT(), *[Types.LONG()] * numbers]))
        write(result, target)
        env.execute()
        spans = [[float(word) for word in path.read_text().split()] for path in Path(times).iterdir()]
    spans = [span for span in spans if span[2]]
    return {
        "seconds": max(last for _, last, _ in spans) - min(first for first, _, _ in spans),
        "rows": int(sum(rows for _, _, rows in spans)),
    }


if __name__ == "__main__":
    serve((__doc__ or "").partition("\n")[0], run)
