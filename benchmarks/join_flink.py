# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="import-not-found, misc"
"""PyFlink's side of ``bench_join.py``; runs in a virtual environment of its own, without pillarbox and Spark.

PyFlink has no interval join in its DataStream API: what is measured is a ``KeyedCoProcessFunction`` that does what
Flink's own operator does in Java: rows of each side in a map state by time, and a timer for each row that removes it
when its last partner has passed. (A join in Flink's SQL runs in the JVM alone, with no Python to compare.) As in
``keyed_flink.py`` files, timestamps and watermarks are the JVM's affair, bundles are large, the state cache of the
Python workers holds all keys, metrics are off, objects are reused, the state is on the JVM's heap, and there are no
checkpoints. States have declared types, so that they are not pickled.

The time of a job goes from the first row to the last row or timer, so the start-up of a job and of its Python workers
does not count.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyflink.common import Row, Types
from pyflink.datastream.functions import KeyedCoProcessFunction
from pyflink.datastream.state import MapStateDescriptor

from benchmarks.async_work import Stopwatch
from benchmarks.flink_job import environment, serve, write

SOURCE = """
    CREATE TEMPORARY TABLE source_{side} (
        `key` INT, `ts` BIGINT, `amount` BIGINT,
        `at` AS TO_TIMESTAMP_LTZ(`ts`, 3), WATERMARK FOR `at` AS `at` - INTERVAL '{delay}' SECOND
    ) WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')
"""


class Join(KeyedCoProcessFunction):
    """Pairs of rows that are near enough."""

    def __init__(self, times: str, bound: int) -> None:
        self.times = times
        self.bound = bound

    def open(self, runtime_context):
        self.watch = Stopwatch(self.times)
        amounts = Types.LIST(Types.LONG())
        self.left = runtime_context.get_map_state(MapStateDescriptor("left", Types.LONG(), amounts))
        self.right = runtime_context.get_map_state(MapStateDescriptor("right", Types.LONG(), amounts))

    def process_element1(self, value, ctx):
        self.watch.begin()
        key, ts, amount = value[0], value[1], value[2]
        first, last = ts - self.bound, ts + self.bound
        for time, amounts in self.right.items():
            if first <= time <= last:
                for other in amounts:
                    yield Row(key, ts, time, amount + other)
        self.keep(self.left, ts, amount, ctx)

    def process_element2(self, value, ctx):
        self.watch.begin()
        key, ts, amount = value[0], value[1], value[2]
        first, last = ts - self.bound, ts + self.bound
        for time, amounts in self.left.items():
            if first <= time <= last:
                for other in amounts:
                    yield Row(key, time, ts, amount + other)
        self.keep(self.right, ts, amount, ctx)

    def keep(self, state, ts, amount, ctx):
        there = state.get(ts)
        state.put(ts, [amount] if there is None else [*there, amount])
        ctx.timer_service().register_event_time_timer(ts + self.bound + 1)
        self.watch.end()

    def on_timer(self, timestamp, ctx):
        time = timestamp - self.bound - 1
        self.left.remove(time)
        self.right.remove(time)
        self.watch.end()
        return []


def run(spec: dict[str, Any], source: str, target: str, arguments: argparse.Namespace) -> dict[str, Any]:
    env, tables = environment(arguments)
    streams = []
    for side, path in enumerate(source.split(",")):
        tables.execute_sql(SOURCE.format(side=side, path=Path(path).as_uri(), delay=spec["delay"] // 1000))
        stream = tables.to_data_stream(tables.from_path(f"source_{side}"))
        streams.append(stream.key_by(lambda row: row[0], Types.INT()))
    with tempfile.TemporaryDirectory(prefix="bench-join-flink-") as times:
        row = Types.ROW([Types.INT(), Types.LONG(), Types.LONG(), Types.LONG()])
        result = streams[0].connect(streams[1]).process(Join(times, spec["bound"]), row)
        write(result, target)
        env.execute()
        return {"seconds": Stopwatch.read_all(times)}


if __name__ == "__main__":
    serve((__doc__ or "").partition("\n")[0], run)
