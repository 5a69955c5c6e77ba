"""The fault tests' program, with its input, sink and faults.

It has two keyed levels: ``Ledger`` has every kind of keyed state and event-time timers; ``Region`` sums the ledgers'
output. Every output row contains the key's whole state, and at the end of the stream, each remaining key emits a last
row. The output is therefore right only if the state is right.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pillarbox import (
    AggregateFunction,
    AggregatingStateDescriptor,
    DataStream,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox._state.log import limits
from pillarbox._time import system_clock
from tests.faults.clock import SetClock
from tests.faults.programs.tally import Tally, open_faults

MINUTE = 60_000
OUT_OF_ORDER = 5_000
END = 10_000 * MINUTE  # where every key that is left shows its state
TOO_BUSY = "Python worker failed to connect back"  # within Spark's ten seconds: the machine has other things to do
FAR = 20_000 * MINUTE  # the heartbeat that ends the stream
HEARTBEAT = -1
REGIONS = 5
SCHEMA = "id LONG, key LONG, ts LONG"


# -- faults --


class InjectedError(Exception): ...


@dataclass(frozen=True)
class Fault:
    """A failure to inject at a fault point of the program.

    Attributes:
        place: the fault point, which is ``source``, ``element`` (before state changes), ``changed`` (after), ``timer``,
            ``snapshot`` (a state value is pickled), ``restored`` (a state value is unpickled), ``second`` (an element
            of the second level), ``second timer``, or a fault point of an additional operator, such as ``window``. at:
            the record's id, a timer's key and timestamp, or a window's key and start. action: ``kill`` or ``raise``.
            times: number of times that the fault occurs.
    """

    place: str
    at: Any
    action: str
    times: int = 1


class Faults:
    """The faults of a run. Files count how often each fault has occurred in all processes."""

    def __init__(self, directory: Path | str, faults: Sequence[Fault] = ()) -> None:
        self.directory = str(directory)
        self._faults = {(fault.place, fault.at): fault for fault in faults}

    def pass_by(self, point: str, at: Any) -> None:
        fault = self._faults.get((point, at))
        if fault is not None:
            self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        for number in range(fault.times):
            name = f"{fault.action} {fault.place} {fault.at} {number}"
            try:
                with open(os.path.join(self.directory, name), "x") as file:
                    file.write(str(os.getpid()))
            except FileExistsError:
                continue
            if fault.action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
            raise InjectedError(f"injected: {name}")

    def happened(self) -> list[str]:
        return sorted(os.listdir(self.directory))

    def expected(self) -> list[str]:
        return sorted(
            f"{fault.action} {fault.place} {fault.at} {number}"
            for fault in self._faults.values()
            for number in range(fault.times)
        )


NO_FAULTS = Faults("/nowhere")

if os.environ.get("PILLARBOX_FAULT_SMALL_LOG"):
    # Chunks are cleaned within a few epochs.
    limits.CHUNK_ROWS = 4
    limits.SLACK_BYTES = 200
    limits.SPARE_CHUNKS = 4

if clock := os.environ.get("PILLARBOX_FAULT_CLOCK"):
    # Tasks see a processing time that is ahead of the machine's by the file's offset.
    vars(system_clock)["time"] = SetClock(clock)

# -- the program --


class Gate(MapFunction):
    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def map(self, value: Any) -> Any:
        self.faults.pass_by("source", value.id)
        return value


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return [0, 0]

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator[0] += 1
        accumulator[1] += value
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[1] / accumulator[0]


def add(a: int, b: int) -> int:
    return a + b


class Out(NamedTuple):
    """An output row of an operator or side output, whose name is ``part``."""

    part: str
    key: int
    ts: int
    state: str
    pid: int
    subtask: int


class Ledger(KeyedProcessFunction):
    """The first level: every kind of keyed state, and event-time timers."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def open(self, runtime_context: RuntimeContext) -> None:
        open_faults[self.faults.directory] = self.faults
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.tally = runtime_context.get_state(ValueStateDescriptor("tally"))
        self.recent = runtime_context.get_list_state(ListStateDescriptor("recent"))
        self.minutes = runtime_context.get_map_state(MapStateDescriptor("minutes"))
        self.total = runtime_context.get_reducing_state(ReducingStateDescriptor("total", add))
        self.mean = runtime_context.get_aggregating_state(AggregatingStateDescriptor("mean", Mean()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        self.faults.pass_by("element", value.id)
        tally = self.tally.value() or Tally(self.faults.directory)
        tally.add(value.id)
        self.tally.update(tally)
        self.recent.add(value.id)
        minute = value.ts // MINUTE
        self.minutes.put(minute, (self.minutes.get(minute) or 0) + 1)
        self.total.add(value.id)
        self.mean.add(value.id)
        timers = ctx.timer_service()
        timers.register_event_time_timer((minute + 1) * MINUTE)
        if tally.n % 4 == 0:
            # The timer of this minute moves to a later one.
            timers.delete_event_time_timer((minute + 1) * MINUTE)
            timers.register_event_time_timer((minute + 3) * MINUTE)
        timers.register_event_time_timer(END)
        self.faults.pass_by("changed", value.id)
        return [self._out(ctx, value.ts)] if tally.n % 3 == 0 else None

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        self.faults.pass_by("timer", (ctx.get_current_key(), timestamp))
        out = self._out(ctx, timestamp)
        tally = self.tally.value()
        assert tally is not None
        for minute in [minute for minute, _ in self.minutes.items() if (minute + 1) * MINUTE <= timestamp]:
            self.minutes.remove(minute)
        if tally.n % 2 == 0:
            self.recent.update(list(self.recent.get())[-2:])
        if tally.n % 5 == 0:
            # Nothing is left of the key.
            for state in (self.tally, self.recent, self.minutes, self.total, self.mean):
                state.clear()
            for time_left in range(timestamp, timestamp + 20 * MINUTE, MINUTE):
                ctx.timer_service().delete_event_time_timer(time_left)
            ctx.timer_service().delete_event_time_timer(END)
        return [out]

    def _out(self, ctx: KeyedProcessFunction.Context, timestamp: int) -> Any:
        tally = self.tally.value()
        assert tally is not None
        state = {
            "n": tally.n,
            "recent": list(self.recent.get()),
            "minutes": sorted(self.minutes.items()),
            "total": self.total.get(),
            "mean": self.mean.get(),
        }
        return self.row(ctx.get_current_key(), timestamp, state)

    def row(self, key: int, timestamp: int, state: dict[str, Any]) -> Any:
        return Out("ledger", key, timestamp, json.dumps(state), os.getpid(), self.subtask)


class Region(KeyedProcessFunction):
    """The second level, which sums the first level's output."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.n = runtime_context.get_state(ValueStateDescriptor("n"))
        self.by_key = runtime_context.get_map_state(MapStateDescriptor("by key"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        self.n.update((self.n.value() or 0) + json.loads(value.state)["n"])
        self.by_key.put(value.key, (self.by_key.get(value.key) or 0) + 1)
        timestamp = ctx.timestamp()
        assert timestamp is not None
        ctx.timer_service().register_event_time_timer((timestamp // (2 * MINUTE) + 1) * 2 * MINUTE)
        self.faults.pass_by("second", (value.key, value.ts))
        return None

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        self.faults.pass_by("second timer", (ctx.get_current_key(), timestamp))
        state = {"n": self.n.value(), "by_key": sorted(self.by_key.items())}
        if len(list(self.by_key.keys())) > 4:
            self.by_key.clear()
        return [Out("region", ctx.get_current_key(), timestamp, json.dumps(state), os.getpid(), self.subtask)]


class Silent(KeyedProcessFunction):
    """Has state and emits nothing."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        self.seen.update(True)
        return None


def region_of(value: Out) -> int:
    return value.key % REGIONS


def program(
    events: DataStream,
    faults: Faults = NO_FAULTS,
    *,
    ledger: KeyedProcessFunction | None = None,
    uid: str = "ledger",
    branch: bool = False,
    further: Callable[[DataStream, Faults], list[DataStream]] | None = None,
) -> DataStream:
    """Return the program's output as a stream.

    Args:
        further: creates additional output streams from the events, such as the operators in ``tests/faults/parts``.
        branch: whether to add a stateful operator that emits nothing.
    """
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{OUT_OF_ORDER} ms")
    stamped = (
        events.map(Gate(faults))
        .assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("ts"))
        .filter(lambda event: event.key != HEARTBEAT)
    )
    ledgers = stamped.key_by("key").process(ledger or Ledger(faults)).uid(uid)
    regions = ledgers.key_by(region_of).process(Region(faults)).uid("region")
    streams = [regions]
    if branch:
        streams.append(stamped.key_by("key").process(Silent()).uid("silent"))
    if further is not None:
        streams += further(stamped, faults)
    return ledgers.union(*streams)


def build(
    events: DataFrame,
    faults: Faults = NO_FAULTS,
    *,
    parallelism: int = 2,
    max_parallelism: int | None = None,
    savepoint: str | None = None,
    **options: Any,
) -> DataFrame:
    env = StreamExecutionEnvironment.get_execution_environment(events.sparkSession)
    env.set_parallelism(parallelism)
    if max_parallelism is not None:
        env.set_max_parallelism(max_parallelism)
    if savepoint is not None:
        env.from_savepoint(savepoint)
    return program(env.from_dataframe(events), faults, **options).to_dataframe(Out)


# -- input --


class Event(NamedTuple):
    id: int
    key: int
    ts: int


Epoch = list[list[Event]]


def make_events(
    seed: int, *, epochs: int = 10, keys: int = 40, records: int = 120, one_sided: float = 0.0, grain: int = 1
) -> list[Epoch]:
    """Return epochs with two partitions each. Some epochs have an empty partition or few keys.

    All records of a key in an epoch are in one partition, so that their order is defined.

    Args:
        one_sided: probability that an epoch's ids are all even or all odd, so that a join has records on only one side.
        grain: all timestamps are multiples of this number (ms). With a large grain, many timestamps are equal.
    """
    rng = random.Random(seed)
    result: list[Epoch] = []
    number = 0
    for epoch in range(epochs):
        parts: Epoch = [[], []]
        target = rng.choice([records, records, records // 4])
        swap = rng.random() < 0.5
        step = 2 if one_sided and rng.random() < one_sided else 1
        number += step - 1 and rng.randrange(2)
        for _ in range(target):
            key = int(rng.triangular(0, keys, 3))
            stamp = epoch * 40_000 + rng.randrange(60_000) // grain * grain
            parts[(key + swap) % 2].append(Event(number, key, stamp))
            number += step
        result.append(parts)
    result.append([[Event(number, HEARTBEAT, FAR)], []])
    return result


def write_events(epochs: Sequence[Epoch], directory: Path, first: int = 0) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([("id", pa.int64()), ("key", pa.int64()), ("ts", pa.int64())])
    for number, parts in enumerate(epochs, first):
        for part, events in enumerate(parts):
            columns = [[event[i] for event in events] for i in range(3)]
            table = pa.table([pa.array(column, pa.int64()) for column in columns], schema=schema)
            path = directory / f"{number:04d}-{part}.parquet"
            hidden = directory / f"_{path.name}"
            pq.write_table(table, hidden)
            stamp = 1_700_000_000 + 10 * number + part
            os.utime(hidden, (stamp, stamp))
            hidden.rename(path)


def read_events(spark: SparkSession, directory: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).parquet(str(directory))


ROWS = 120  # the most that an epoch of `read_fixed_epochs` has in a partition


def write_fixed_epochs(epochs: Sequence[Epoch], path: Path) -> None:
    rows = [
        (epoch * 2 * ROWS + 2 * position + part, *event)
        for epoch, parts in enumerate(epochs)
        for part, events in enumerate(parts)
        for position, event in enumerate(events)
    ]
    columns = dict(zip(("value", "id", "key", "ts"), map(pa.array, zip(*rows))))
    pq.write_table(pa.table(columns), path)


def read_fixed_epochs(spark: SparkSession, path: Path) -> DataFrame:
    """Read an endless stream whose epochs stay the same after the driver has died.

    Spark's file source is unsuitable, because it logs a batch's files before Spark logs the batch. After a crash in
    between, the next batch would contain the files of both batches.
    """
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2 * ROWS).option("numPartitions", 2)
    events = spark.read.parquet(str(path))
    return numbers.load().join(events.hint("broadcast"), "value").select("id", "key", "ts")


# -- output --

Row = tuple[str, int, int, str]


class FileSink:
    """A sink for ``foreachBatch``. Writes one file per batch, renames complete files, and keeps earlier attempts.

    Args:
        shift: number to add to batch numbers. Not 0 if the query began on another checkpoint, or if some batches are
            not the program's.
    """

    def __init__(self, directory: Path, before: Callable[[DataFrame, int], None] | None = None, shift: int = 0) -> None:
        self.directory = directory
        self.shift = shift
        self.directory.mkdir(parents=True, exist_ok=True)
        self._before = before

    def __call__(self, df: DataFrame, batch: int) -> None:
        if self._before is not None:
            self._before(df, batch)
        batch += self.shift
        rows = [tuple(row) for row in df.collect()]
        part = self.directory / f"_{batch}-{os.getpid()}"
        part.write_text(json.dumps(rows))
        path = self.directory / f"{batch:04d}.json"
        earlier = len(list(self.directory.glob(f"earlier-{batch:04d}-*")))
        with suppress(FileNotFoundError):  # also where another driver is at the same batch
            path.rename(self.directory / f"earlier-{batch:04d}-{earlier}-{os.getpid()}.json")
        part.rename(path)

    def batches(self) -> list[int]:
        return sorted(int(path.stem) for path in self.directory.glob("[0-9]*.json"))

    def raw(self) -> dict[int, list[Out]]:
        return {
            int(path.stem): [Out(*row) for row in json.loads(path.read_text())]
            for path in self.directory.glob("[0-9]*.json")
        }

    def output(self) -> dict[int, list[Row]]:
        return {batch: sorted(row[:4] for row in rows) for batch, rows in self.raw().items()}

    def earlier(self) -> Iterator[tuple[int, list[Row]]]:
        for path in self.directory.glob("earlier-*.json"):
            rows = [Out(*row) for row in json.loads(path.read_text())]
            yield int(path.stem.split("-")[1]), sorted(row[:4] for row in rows)


def to_its_end(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    for attempt in range(4):
        query = start()
        try:
            query.awaitTermination()
            break
        except StreamingQueryException as error:
            if TOO_BUSY not in str(error) or attempt == 3:
                raise
    return query
