"""Golden checkpoints that every later version must read: ``python -m tests.data.make_checkpoint``.

The program has each kind of state and timer, removed keys, a state that was added later, carried requests with a
watermark between them, and input channels with different watermarks. ``checkpoint-format-N.zip`` contains the chunks of
each subtask's log as ``uid/subtask/number``, with ``elements`` for large maps and lists. Golden files are never
rewritten: a new format adds a file.
"""

from __future__ import annotations

import asyncio
import random
import sys
import zipfile
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pillarbox import (
    AggregateFunction,
    AggregatingStateDescriptor,
    AsyncFailure,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ReducingStateDescriptor,
    Row,
    StreamExecutionEnvironment,
    TimeDomain,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox._elements.records import Records
from pillarbox._runtime.local import LocalJob, Savepoint
from pillarbox._state.chunks.head import FORMAT
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.log import large_collections, limits
from pillarbox._time.manual_clock import ManualProcessingTimeService

__all__ = [
    "EPOCHS",
    "HERE",
    "KEYS",
    "KINDS",
    "Everything",
    "Model",
    "epochs",
    "job",
    "key",
    "load",
    "make",
    "push",
    "release",
    "save",
]

HERE = Path(__file__).resolve().parent
CLOCK = 1_700_000_000_000
EPOCHS = 14
KEYS = 40
KINDS = ("", "elements")

# Values of every kind that a state may hold without a class of the user's.
VALUES: list[Any] = [
    0,
    -(2**70),
    1.5,
    True,
    "text \N{SNOWMAN}",
    b"\x00bytes",
    date(2024, 2, 29),
    datetime(2024, 2, 29, 12, 30, tzinfo=timezone.utc),
    Decimal("12.50"),
    (1, ("two", None)),
    [1, [2]],
    {"a": {"b": 3}},
    {1, 2},
    Row.of(card="c1", amount=2.5, items=[Row.of(n=1), Row.of(n=2)]),
    TimeDomain.PROCESSING_TIME,
    OutputTag("late"),
    AsyncFailure(("record", 1), "OSError: no", 3),
]


class Sum(AggregateFunction):
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]


class Everything(KeyedProcessFunction):
    """Changes its state as records request. The record "ask" emits the contents of all states."""

    def __init__(self, later: bool) -> None:
        self.later = later

    def open(self, runtime_context):
        get = runtime_context
        self.value = get.get_state(ValueStateDescriptor("value"))
        self.list = get.get_list_state(ListStateDescriptor("list"))
        self.map = get.get_map_state(MapStateDescriptor("map"))
        self.largest = get.get_reducing_state(ReducingStateDescriptor("largest", max))
        self.mean = get.get_aggregating_state(AggregatingStateDescriptor("mean", Sum()))
        self.more: Any = get.get_state(ValueStateDescriptor("more")) if self.later else None

    def process_element(self, record, ctx):
        _, what, argument, _ = record
        if what == "value":
            self.value.update(argument)
        elif what == "list":
            self.list.add(argument)
        elif what == "map":
            self.map.put(*argument)
        elif what == "unmap":
            self.map.remove(argument)
        elif what == "number":
            self.largest.add(argument)
            self.mean.add(argument)
        elif what == "event":
            ctx.timer_service().register_event_time_timer(argument)
        elif what == "processing":
            ctx.timer_service().register_processing_time_timer(argument)
        elif what == "more":
            self.more.update(argument)
        elif what == "clear":
            for state in (self.value, self.list, self.map, self.largest, self.mean):
                state.clear()
        elif what == "slow":
            yield ("slow", ctx.get_current_key(), argument)
        elif what == "ask":
            states = (self.value.value(), list(self.list.get()), dict(self.map.items()))
            more = None if self.more is None else self.more.value()
            yield ("state", ctx.get_current_key(), (*states, self.largest.get(), self.mean.get(), more))

    def on_timer(self, timestamp, ctx):
        yield ("timer", ctx.get_current_key(), (ctx.time_domain().name, timestamp))


class Model:
    """The program's state as plain dictionaries."""

    def __init__(self) -> None:
        self.states: dict[Any, dict[str, Any]] = {}
        self.timers: set[tuple[Any, str, int]] = set()
        self.slow: list[tuple[Any, Any]] = []

    def apply(self, record: tuple[Any, str, Any, int]) -> None:
        key, what, argument, _ = record
        state = self.states.setdefault(key, {"value": None, "list": [], "map": {}, "numbers": [], "more": None})
        if what in ("value", "more"):
            state[what] = argument
        elif what == "list":
            state["list"].append(argument)
        elif what == "map":
            state["map"][argument[0]] = argument[1]
        elif what == "unmap":
            state["map"].pop(argument, None)
        elif what == "number":
            state["numbers"].append(argument)
        elif what in ("event", "processing"):
            self.timers.add((key, what, argument))
        elif what == "clear":
            self.states[key] = {"value": None, "list": [], "map": {}, "numbers": [], "more": state["more"]}
        elif what == "slow":
            self.slow.append((key, argument))

    def answer(self, key: Any) -> tuple[Any, ...]:
        state = self.states.get(key, {"value": None, "list": [], "map": {}, "numbers": [], "more": None})
        numbers = state["numbers"]
        largest, mean = (max(numbers), sum(numbers) / len(numbers)) if numbers else (None, None)
        return (state["value"], state["list"], state["map"], largest, mean, state["more"])


_released = False


def release(released: bool) -> None:
    global _released
    _released = released


async def answer(result: Any) -> Any:
    while result[0] == "slow" and not _released:
        await asyncio.sleep(0.01)
    return result


def key(n: int) -> Any:
    return (n, f"key {n}", (n, "pair"), b"%d" % n)[n % 4]


def epochs() -> Iterator[list[tuple[Any, str, Any, int]]]:
    """Return (key, action, argument, event time) of each epoch."""
    rng = random.Random(5)
    for epoch in range(EPOCHS):
        records: list[tuple[Any, str, Any, int]] = []
        for step in range(30):
            key_, at = key(rng.randrange(KEYS)), 1_000 * epoch + step
            what, argument = rng.choice(
                [
                    ("value", rng.choice(VALUES)),
                    ("list", rng.choice(VALUES)),
                    ("map", (rng.choice(["a", 1, ("b", 2)]), rng.choice(VALUES))),
                    ("unmap", rng.choice(["a", 1, ("b", 2)])),
                    ("number", rng.randrange(100)),
                    ("event", 100_000 + rng.randrange(20)),
                    ("processing", CLOCK + 100_000 + rng.randrange(20)),
                    ("more" if epoch > EPOCHS // 2 else "value", epoch),
                    ("clear", None),
                ]
            )
            records.append((key_, what, argument, at))
        if epoch == 5:
            records += [(key(n), "value", bytes([n]) * 3_000, 5_500) for n in range(6)]
        if epoch in (EPOCHS - 2, EPOCHS - 1):
            records += [(key(n), "slow", (epoch, rng.choice(VALUES)), 1_000 * epoch + 900) for n in range(0, 12, 2)]
        yield records


def job(later: bool, savepoint: Savepoint | None = None) -> LocalJob:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda record: record[3])
    out = (
        env.from_collection([])
        .assign_timestamps_and_watermarks(times)
        .key_by(lambda record: record[0])
        .process(Everything(later))
        .uid("everything")
        .map_async(answer, timeout="1 hour", ordered=True, on_barrier="carry")
        .uid("ask")
    )
    return env.local_job(out=out, savepoint=savepoint, clock=ManualProcessingTimeService(CLOCK))


def push(running: LocalJob, records: list[Any], *, bounded: bool = False) -> list[Any]:
    (source,) = running.program.sources
    return running.run_epoch({source: [[Records(records)]]}, bounded=bounded)["out"]


def make(kind: str = "") -> Savepoint:
    release(False)
    savepoint: Savepoint | None = None
    with pytest.MonkeyPatch.context() as patch:
        # Chunks of few rows: the log has several, and has been cleaned; and some rows are large.
        patch.setattr(limits, "CHUNK_ROWS", 8)
        patch.setattr(limits, "CHUNK_BYTES", 2_500)
        patch.setattr(limits, "SLACK_BYTES", 500)
        if kind == "elements":
            patch.setattr(large_collections, "_LARGE", 40)
        for later in (False, True):
            with job(later, savepoint) as running:
                for epoch, records in enumerate(epochs()):
                    if (epoch > EPOCHS // 2) is later:
                        push(running, records)
                savepoint = running.savepoint()
    assert savepoint is not None
    return savepoint


def save(savepoint: Savepoint, path: Path) -> None:
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as file:
        for (uid, subtask), store in sorted(savepoint.items()):
            for number, chunk in sorted(store.chunks.items()):
                file.writestr(zipfile.ZipInfo(f"{uid}/{subtask}/{number}"), chunk, zipfile.ZIP_DEFLATED)


def load(path: Path) -> Savepoint:
    savepoint: Savepoint = {}
    with zipfile.ZipFile(path) as file:
        for name in file.namelist():
            uid, subtask, number = name.split("/")
            store = savepoint.setdefault((uid, int(subtask)), MemoryChunkStore())
            store.chunks[int(number)] = file.read(name)
    return savepoint


if __name__ == "__main__":
    for variant in KINDS:
        target = HERE / f"checkpoint-format-{FORMAT}{variant and '-' + variant}.zip"
        if not target.exists():
            save(make(variant), target)
            print(f"{target}: {target.stat().st_size} bytes", file=sys.stderr)
