"""A program with everything that a checkpoint can contain.

It consists of the program in ``job.py``, all operators in ``tests/operators_table``, state with a time-to-live,
processing-time timers, and carried requests. Timers and requests wait for a file, so they are pending if a query stops
before the file exists. The total output does not depend on the parallelism.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import pillarbox
from pillarbox import (
    DataStream,
    KeyedProcessFunction,
    ListStateDescriptor,
    RuntimeContext,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from tests.faults.oracles.oracle import answer
from tests.faults.parts.part import Model, OutputRow, Part, streams_of
from tests.faults.parts.windows import id_of
from tests.faults.programs.job import (
    NO_FAULTS,
    Epoch,
    Event,
    Faults,
    FileSink,
    Out,
    Row,
    program,
    read_events,
    to_its_end,
    write_events,
)
from tests.operators_table.table import chaos_parts

__all__ = ["ROWS", "SUBTASKS", "UIDS", "Operated", "build", "expected", "stream"]

SUBTASKS = 8
EPOCHS = 10  # and one that ends the stream


def is_asked(event: Any) -> bool:
    return bool(event.id % 5 == 0)


class Later(KeyedProcessFunction):
    """Stores records until a file exists. Processing-time timers check for the file."""

    MILLISECONDS = 500

    def __init__(self, released: str) -> None:
        self.released = released

    def open(self, runtime_context: RuntimeContext) -> None:
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.waiting.add((value.ts, value.id))
        self._look_later(ctx)

    def _look_later(self, ctx: KeyedProcessFunction.Context) -> None:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + self.MILLISECONDS)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        if not os.path.exists(self.released):
            self._look_later(ctx)
            return None
        results = list(self.waiting.get())
        self.waiting.clear()
        return [OutputRow(ctx.get_current_key(), at, number) for at, number in results]


class LaterModel(Model):
    def record(self, event: Event) -> None:
        self.say(*id_of(event))


class Counts(KeyedProcessFunction):
    """Counts a key's records in two states: one for all epochs, and one that expires at the end of each epoch."""

    def open(self, runtime_context: RuntimeContext) -> None:
        lasting, fresh = (ValueStateDescriptor(name, int, default=0) for name in ("kept", "fresh"))
        lasting.enable_time_to_live(StateTtlConfig("1000 days"))
        fresh.enable_time_to_live(StateTtlConfig("1 ms"))
        self.kept = runtime_context.get_state(lasting)
        self.fresh = runtime_context.get_state(fresh)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        for state in (self.kept, self.fresh):
            state.update((state.value() or 0) + 1)
        yield OutputRow(ctx.get_current_key(), value.ts, [value.id, self.kept.value(), self.fresh.value()])


class CountsModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self._kept: Counter[int] = Counter()
        self._fresh: Counter[int] = Counter()

    def record(self, event: Event) -> None:
        for counts in (self._kept, self._fresh):
            counts[event.key] += 1
        self.say(event.key, event.ts, [event.id, self._kept[event.key], self._fresh[event.key]])

    def end_of_input(self) -> None:
        self._fresh.clear()


class Ask:
    """Waits until a file exists, and then returns the square of a record's id."""

    def __init__(self, released: str) -> None:
        self.released = released

    async def __call__(self, event: Any) -> OutputRow:
        while not os.path.exists(self.released):
            await asyncio.sleep(0.05)
        return OutputRow(event.key, event.ts, event.id**2)


def asked(events: DataStream[Any], released: Any) -> DataStream[Any]:
    asking = events.filter(is_asked).key_by("key")
    return asking.map_async(Ask(released), capacity=1000, timeout="1 hour", on_barrier="carry")


class AskedModel(Model):
    def record(self, event: Event) -> None:
        if is_asked(event):
            self.say(event.key, event.ts, event.id**2)


# They look at the clock, so chaos, which sets it, has others. Instead of faults they get the file that they wait for.
BY_THE_CLOCK = (
    Part("counts", lambda events, released: events.key_by("key").process(Counts()), CountsModel),
    Part("later", lambda events, released: events.key_by("key").process(Later(str(released))), LaterModel),
    Part("asked", asked, AskedModel),
)
PARTS = (*chaos_parts(), *BY_THE_CLOCK)
ROWS = {"ledger", "region", *(name for part in PARTS for name in part.rows)}
UIDS = ("ledger", "region", *(part.name for part in PARTS if part.has_state))


def expected(epochs: Sequence[Epoch]) -> Counter[Row]:
    return Counter(row for batch in answer(epochs, PARTS).output.values() for row in batch)


def stream(events: DataStream[Any], released: Path) -> DataStream[Any]:
    def further(stamped: DataStream[Any], faults: Faults) -> list[DataStream[Any]]:
        return streams_of(chaos_parts())(stamped, faults) + streams_of(BY_THE_CLOCK)(stamped, str(released))

    return program(events, NO_FAULTS, further=further)


def build(events: DataFrame, released: Path, parallelism: int, subtasks: int = SUBTASKS) -> DataFrame:
    env = StreamExecutionEnvironment.get_execution_environment(events.sparkSession)
    env.set_parallelism(parallelism).set_max_parallelism(subtasks)
    return stream(env.from_dataframe(events), released).to_dataframe(Out)


class Operated:
    """A folder with the program's input, checkpoint and output.

    Args:
        subtasks: as in :func:`build`.
    """

    def __init__(self, spark: SparkSession, home: Path, epochs: list[Epoch], *, subtasks: int = SUBTASKS) -> None:
        self.spark = spark
        self.home = home
        self.epochs = epochs
        self.subtasks = subtasks
        self.checkpoint = str(home / "checkpoint")
        self.released = home / "released"
        self.sink = FileSink(home / "out")

    def writer(self, parallelism: int) -> Any:
        events = read_events(self.spark, self.home / "in")
        df = build(events, self.released, parallelism, self.subtasks)
        return df.writeStream.foreachBatch(self.sink).option("checkpointLocation", self.checkpoint)

    def run(self, parallelism: int) -> None:
        number = self.arrive()
        to_its_end(lambda: pillarbox.start(self.writer(parallelism).trigger(once=True)))
        assert len(self.sink.batches()) == number + 1

    def arrive(self) -> int:
        number = len(self.sink.batches())
        write_events(self.epochs[number : number + 1], self.home / "in", first=number)
        return number

    def finish(self, parallelism: int, count: int) -> None:
        assert not list(self.sink.earlier()), "an epoch came out twice"
        self.released.touch()
        assert self.arrive() == len(self.epochs) - 1
        for _ in range(5):
            to_its_end(lambda: pillarbox.start(self.writer(parallelism).trigger(availableNow=True)))
            # A timer may have looked for the file just before the end; an epoch may have been stopped in the middle.
            if self.found().total() >= count:
                break

    def found(self) -> Counter[Row]:
        return Counter(row for rows in self.sink.output().values() for row in rows)
