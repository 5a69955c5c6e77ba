# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="import-not-found, misc"
"""PyFlink's side of ``bench_windows.py``; runs in a virtual environment of its own, without pillarbox and Spark.

What is measured are windows of the DataStream API with an ``AggregateFunction`` and a ``WindowFunction`` in Python: the
same functions that pillarbox's Python side has. (A query in Flink's SQL with windows runs in the JVM alone, with no
Python to compare.) As in ``keyed_flink.py`` files, timestamps and watermarks are the JVM's affair, bundles are large,
the state cache of the Python workers holds all windows, metrics are off (in thread mode), objects are reused, the state
is on the JVM's heap, and there are no checkpoints. Accumulators have a declared type, so that they are not pickled.

In thread mode sums of sessions are wrong (PyFlink 2.3.0): where a record joins two of them, ``merge_namespaces`` of its
``AggregatingStateImpl`` writes the accumulator of one over that of the other. The functions here do not change their
accumulators, and in process mode the sums are right.

The time of a job goes from the first record that is added to the last window that fires, so the start-up of a job and
of its Python workers does not count.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyflink.common import Row, Time, Types
from pyflink.datastream.functions import AggregateFunction, WindowFunction
from pyflink.datastream.window import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows

from benchmarks.async_work import Stopwatch
from benchmarks.flink_job import environment, serve, write

SOURCE = """
    CREATE TEMPORARY TABLE source (
        `key` INT, `ts` BIGINT, `amount` BIGINT,
        `at` AS TO_TIMESTAMP_LTZ(`ts`, 3), WATERMARK FOR `at` AS `at` - INTERVAL '{delay}' SECOND
    ) WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')
"""


class Totals(AggregateFunction):
    """Count and sum."""

    def __init__(self, times: str) -> None:
        self.times = times
        self.watch: Stopwatch | None = None

    def create_accumulator(self):
        # There is no ``open`` for it.
        if self.watch is None:
            self.watch = Stopwatch(self.times)
            self.watch.begin()
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + 1, accumulator[1] + value[2]

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class WithWindow(WindowFunction):
    """Puts key and window to the one result of ``Totals``."""

    def __init__(self, times: str) -> None:
        self.times = times

    def open(self, runtime_context):
        self.watch = Stopwatch(self.times)

    def apply(self, key, window, inputs):
        ((n, total),) = inputs
        yield Row(key, window.start, n, total)
        self.watch.end()


def assigner(spec: dict[str, Any]) -> Any:
    size = Time.milliseconds(spec["size"])
    if spec["session"]:
        return EventTimeSessionWindows.with_gap(size)
    if spec["slide"]:
        return SlidingEventTimeWindows.of(size, Time.milliseconds(spec["slide"]))
    return TumblingEventTimeWindows.of(size)


def run(spec: dict[str, Any], source: str, target: str, arguments: argparse.Namespace) -> dict[str, Any]:
    # Without metrics PyFlink's window operator fails in process mode.
    env, tables = environment(arguments, metrics=arguments.mode == "process")
    tables.execute_sql(SOURCE.format(path=Path(source).as_uri(), delay=spec["delay"] // 1000))
    with tempfile.TemporaryDirectory(prefix="bench-windows-flink-") as times:
        numbers = Types.TUPLE([Types.LONG(), Types.LONG()])
        row = Types.ROW([Types.INT(), Types.LONG(), Types.LONG(), Types.LONG()])
        stream = tables.to_data_stream(tables.from_path("source")).key_by(lambda row: row[0], Types.INT())
        result = stream.window(assigner(spec)).aggregate(Totals(times), WithWindow(times), numbers, row)
        write(result, target)
        env.execute()
        return {"seconds": Stopwatch.read_all(times)}


if __name__ == "__main__":
    serve((__doc__ or "").partition("\n")[0], run)
