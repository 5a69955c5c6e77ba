# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="import-not-found, misc"
"""PyFlink's sides. They run in their own environment, without pillarbox and Spark.

A job reads rows from CSV files and writes its function's output to other files. Only two hops go through Python, which
cannot be avoided: the key selector and the keyed function. Files, timestamps and watermarks are processed in the JVM
(by a table; a timestamp assigner in Python would be a third hop). Bundles are large, the Python workers' state cache
holds all keys and windows, metrics are off, objects are reused, the state is on the JVM's heap, and there are no
checkpoints. States and accumulators have declared types, so that they are not pickled.

A job's time is from the first record that its function receives to the last record or timer, so the start of the job
and its Python workers does not count. Flink's SQL, which runs in the JVM alone, is not included, because it uses no
Python.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Encoder, Row, Time, Types, WatermarkStrategy
from pyflink.datastream import AsyncDataStream, AsyncFunction, KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSink
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.functions import AggregateFunction, KeyedCoProcessFunction, WindowFunction
from pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from pyflink.datastream.window import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from pyflink.table import StreamTableEnvironment

from benchmarks.peers.lookups import Stopwatch, Work

MINUTE = 60_000
GAP = 30_000
SOURCE = """
    CREATE TEMPORARY TABLE {name} (
        `key` INT, `ts` BIGINT, {amount}
        `at` AS TO_TIMESTAMP_LTZ(`ts`, 3), WATERMARK FOR `at` AS `at` - INTERVAL '5' SECOND
    ) WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')
"""


class Jobs(ABC):
    """A side that runs a job for each call.

    Args:
        mode: ``process`` or ``thread``.
        bundle: number of elements in a bundle.
    """

    # How many numbers follow the key in the output, and whether rows have an amount.
    numbers = 3
    amount = True
    # Metrics of the Python operators.
    metrics = False

    def __init__(self, mode: str = "process", parallelism: int = 2, bundle: int = 10_000) -> None:
        self.mode = mode
        self._parallelism = parallelism
        self._bundle = bundle

    def environment(self, **settings: Any) -> Any:
        """Return a PyFlink execution environment."""
        configuration = Configuration()
        for name, value in {
            "python.execution-mode": self.mode,
            "python.fn-execution.bundle.size": self._bundle,
            "python.fn-execution.bundle.time": 10_000,
            "python.state.cache-size": 4_000_000,
            "python.metric.enabled": str(self.metrics).lower(),
            "pipeline.object-reuse": "true",
            **settings,
        }.items():
            configuration.set_string(name, str(value))
        env = StreamExecutionEnvironment.get_execution_environment(configuration)
        env.set_parallelism(self._parallelism)
        env.set_python_executable(sys.executable)
        return env

    def streams(self, env: Any, source: str) -> list[Any]:
        """Return keyed streams of the rows in some files, with timestamps and watermarks."""
        tables = StreamTableEnvironment.create(env)
        streams = []
        for number, path in enumerate(source.split(",")):
            name, amount = f"source_{number}", "`amount` BIGINT," if self.amount else ""
            tables.execute_sql(SOURCE.format(name=name, amount=amount, path=Path(path).as_uri()))
            stream = tables.to_data_stream(tables.from_path(name))
            streams.append(stream.key_by(lambda row: row[0], Types.INT()))
        return streams

    def run(self, source: str, target: str, **spec: Any) -> dict[str, Any]:
        """Run a job. Returns its duration (seconds)."""
        with tempfile.TemporaryDirectory(prefix="bench-flink-") as times:
            env = self.environment()
            row = Types.ROW([Types.INT(), *[Types.LONG()] * self.numbers])
            write(self.result(self.streams(env, source), times, row, **spec), target)
            env.execute()
            return {"seconds": Stopwatch.read_all(times)}

    @abstractmethod
    def result(self, streams: list[Any], times: str, row: Any, **spec: Any) -> Any:
        """Return the output stream.

        Args:
            times: the directory for the stopwatches' files.
            row: the output's type.
            spec: the work.
        """


def write(result: Any, target: str) -> None:
    """Write a stream as lines of text."""
    result.sink_to(FileSink.for_row_format(target, Encoder.simple_string_encoder("UTF-8")).build())


# -- keyed functions --


class Count(KeyedProcessFunction):
    """Counts the rows of a key. Emits the count at the end of each minute with rows."""

    def __init__(self, times: str) -> None:
        self.times = times

    def open(self, ctx):
        self.watch = Stopwatch(self.times)
        self.n = ctx.get_state(ValueStateDescriptor("n", Types.LONG()))

    def process_element(self, row, ctx):
        self.watch.begin()
        self.n.update((self.n.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(row[1] // MINUTE * MINUTE + MINUTE)
        self.watch.end()

    def on_timer(self, timestamp, ctx):
        yield Row(ctx.get_current_key(), timestamp, self.n.value())
        self.watch.end()


class Sessions(KeyedProcessFunction):
    """Collects a key's rows until a gap without rows. Then emits the first time, the last time and the number."""

    def __init__(self, times: str) -> None:
        self.times = times

    def open(self, ctx):
        self.watch = Stopwatch(self.times)
        self.list = ctx.get_list_state(ListStateDescriptor("times", Types.LONG()))
        self.due = ctx.get_state(ValueStateDescriptor("end", Types.LONG()))

    def process_element(self, row, ctx):
        self.watch.begin()
        ts = row[1]
        end = self.due.value()
        if end is not None:
            ctx.timer_service().delete_event_time_timer(end)
            if ts >= end:
                yield self.session(ctx)
                self.list.clear()
        self.list.add(ts)
        self.due.update(ts + GAP)
        ctx.timer_service().register_event_time_timer(ts + GAP)
        self.watch.end()

    def on_timer(self, timestamp, ctx):
        yield self.session(ctx)
        self.list.clear()
        self.due.clear()
        self.watch.end()

    def session(self, ctx):
        times = list(self.list.get())
        return Row(ctx.get_current_key(), times[0], times[-1], len(times))


class KeyedCounts(Jobs):
    """The keyed count with timers."""

    numbers = 2
    amount = False

    def result(self, streams: list[Any], times: str, row: Any, **spec: Any) -> Any:
        return streams[0].process(Count(times), row)


class KeyedSessions(Jobs):
    """The keyed sessions."""

    amount = False

    def result(self, streams: list[Any], times: str, row: Any, **spec: Any) -> Any:
        return streams[0].process(Sessions(times), row)


# -- windows --


class Totals(AggregateFunction):
    """Count and sum."""

    def __init__(self, times: str) -> None:
        self.times = times
        self.watch: Stopwatch | None = None

    def create_accumulator(self):
        # PyFlink does not call ``open`` here.
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
    """Adds key and window to the result of ``Totals``."""

    def __init__(self, times: str) -> None:
        self.times = times

    def open(self, runtime_context):
        self.watch = Stopwatch(self.times)

    def apply(self, key, window, inputs):
        ((n, total),) = inputs
        yield Row(key, window.start, n, total)
        self.watch.end()


class Windows(Jobs):
    """Windows of the DataStream API, with the same functions in Python that pillarbox's Python side has.

    In thread mode, sums of sessions are wrong (PyFlink 2.3.0): if a record joins two sessions, ``merge_namespaces`` of
    its ``AggregatingStateImpl`` writes one accumulator over the other. In process mode, the sums of some
    jobs are wrong, of others right. The functions here do not change their accumulators.
    """

    @property
    def metrics(self) -> bool:  # type: ignore[override]
        """Without metrics PyFlink's window operator fails in process mode."""
        return self.mode == "process"

    def result(self, streams: list[Any], times: str, row: Any, **spec: Any) -> Any:
        size = Time.milliseconds(spec["size"])
        if spec["session"]:
            assigner = EventTimeSessionWindows.with_gap(size)
        elif spec["slide"]:
            assigner = SlidingEventTimeWindows.of(size, Time.milliseconds(spec["slide"]))
        else:
            assigner = TumblingEventTimeWindows.of(size)
        numbers = Types.TUPLE([Types.LONG(), Types.LONG()])
        return streams[0].window(assigner).aggregate(Totals(times), WithWindow(times), numbers, row)


# -- the interval join --


class Pairs(KeyedCoProcessFunction):
    """Joins rows within an interval, like Flink's own Java operator.

    Each side's rows are in a map state by time. A timer removes a row after the end of its interval.
    """

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
        for at, amounts in self.right.items():
            if first <= at <= last:
                for other in amounts:
                    yield Row(key, ts, at, amount + other)
        self.keep(self.left, ts, amount, ctx)

    def process_element2(self, value, ctx):
        self.watch.begin()
        key, ts, amount = value[0], value[1], value[2]
        first, last = ts - self.bound, ts + self.bound
        for at, amounts in self.left.items():
            if first <= at <= last:
                for other in amounts:
                    yield Row(key, at, ts, amount + other)
        self.keep(self.right, ts, amount, ctx)

    def keep(self, state, ts, amount, ctx):
        there = state.get(ts)
        state.put(ts, [amount] if there is None else [*there, amount])
        ctx.timer_service().register_event_time_timer(ts + self.bound + 1)
        self.watch.end()

    def on_timer(self, timestamp, ctx):
        at = timestamp - self.bound - 1
        self.left.remove(at)
        self.right.remove(at)
        self.watch.end()
        return []


class Join(Jobs):
    """The interval join, which PyFlink's DataStream API does not have."""

    def result(self, streams: list[Any], times: str, row: Any, **spec: Any) -> Any:
        return streams[0].connect(streams[1]).process(Pairs(times, spec["bound"]), row)


# -- requests --


class Lookup(AsyncFunction):
    """The lookup, with a stopwatch."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def open(self, runtime_context):
        try:
            import uvloop

            # The loop that PyFlink then creates is uvloop's.
            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        except ImportError:
            pass
        self.watch = Stopwatch(self.work.times)
        self.opening = None

    async def async_invoke(self, value):
        # PyFlink has no hook in the event loop's thread, in which clients must be created.
        if self.opening is None:
            self.watch.begin()
            self.client = self.work.client()
            self.opening = asyncio.ensure_future(self.client.__aenter__())
        look_up = self.opening.result() if self.opening.done() else await self.opening
        score = await look_up(value)
        self.watch.end()
        return [f"{value},{score}"]

    def timeout(self, value):
        raise TimeoutError(f"no answer for {value}")


class Lookups(Jobs):
    """A sequence, ``AsyncDataStream.unordered_wait`` (faster than ``ordered_wait``) and a file sink."""

    def result(self, streams: list[Any], times: str, row: Any, **spec: Any) -> Any:
        lookup = Lookup(Work(**spec["work"], times=times))
        return AsyncDataStream.unordered_wait(
            streams[0], lookup, Time.seconds(30), lookup.work.capacity, Types.STRING()
        )

    def streams(self, env: Any, source: str) -> list[Any]:
        ids = NumberSequenceSource(0, int(source) - 1)
        return [env.from_source(ids, WatermarkStrategy.no_watermarks(), "ids", Types.LONG())]

    def environment(self, **settings: Any) -> Any:
        # The end of a bundle waits for its requests.
        return super().environment(
            **{"python.fn-execution.bundle.time": 60_000, "python.fn-execution.arrow.batch.size": 10_000}
        )

    def look_up(self, work: dict[str, Any], records: int, form: str) -> dict[str, Any]:
        """Run a job over some records. Returns its duration (seconds) and the sums of its results."""
        from benchmarks.peers.lookups import sums

        target = Path(tempfile.mkdtemp(prefix="bench-async-flink-"))
        try:
            begun = time.monotonic()
            report = self.run(str(records), str(target / "out"), work=work)
            files = [path for path in (target / "out").rglob("*") if path.is_file()]
            lines = [line for path in files for line in path.read_text().splitlines()]
            rows = [(int(key), int(score)) for key, _, score in (line.partition(",") for line in lines)]
            return {**report, "whole": time.monotonic() - begun, "results": sums(rows)}
        finally:
            shutil.rmtree(target, ignore_errors=True)
