"""Operators of keyed streams: process, folds, deduplicate, and order by time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pillarbox import DataStream, DeadLetter, OutputTag, ReduceFunction
from pillarbox._operators.async_keyed.operator import AsyncKeyedOperator
from pillarbox._operators.dead_letters.guarded import GuardedOperator
from pillarbox._operators.dead_letters.key_guard import KeyGuardOperator
from pillarbox._operators.keyed.deduplicate import DeduplicateOperator
from pillarbox._operators.keyed.in_event_time_order import InEventTimeOrderOperator
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._operators.keyed.reduce import ReduceOperator
from pillarbox.testing import row
from tests.faults.parts import letters
from tests.faults.parts.awaited import AWAITED
from tests.faults.parts.part import Model, OutputRow, Part, mixed
from tests.faults.parts.windows import id_of
from tests.faults.programs.job import Event, Faults
from tests.operators_table.entry import (
    BY_KEY,
    DROPPED,
    LIKE_OTHERS,
    NO_ARGUMENT,
    SAME,
    Differs,
    Entry,
    Reason,
    Refused,
    Resumes,
    StoredState,
    pick,
    record,
)
from tests.operators_table.functions import AsyncTimed, Raising, Timed
from tests.operators_table.stateless import stateless
from tests.simulation import oracles
from tests.simulation.programs import awaiting, state, two_inputs
from tests.simulation.programs.program import LAST, SimulatedProgram, of_events
from tests.support.programs import bounded, first, monotonous, second

__all__ = ["ENTRIES"]

# -- process --

FUNCTIONS = StoredState("the function's states and timers", "pickle: the list state 'seen': no type", by_user=True)

PROCESS = Entry(
    "KeyedStream.process",
    KeyedProcessOperator,
    lambda s: s.key_by("key").process(Timed()),
    ordered=False,
    state=FUNCTIONS,
    late=LIKE_OTHERS,
    batch=BY_KEY,
    changes=NO_ARGUMENT,
    simulated=pick(state, "every-state", "many-keys", "history"),
    chaos=Reason("the ledger of tests/faults/programs/job.py is made by it, and runs together with all parts"),
)
GUARDED = replace(
    PROCESS,
    operator=GuardedOperator,
    build=lambda s: s.key_by("key").process(Raising(), on_error=OutputTag("bad")),
    case="with `on_error`",
    simulated=pick(state, "dead-letters"),
    chaos=letters.STRICT,
)
ASYNC = replace(
    PROCESS,
    operator=AsyncKeyedOperator,
    build=lambda s: s.key_by("key").process(AsyncTimed(), on_barrier="carry"),
    case="with `async def`",
    state=StoredState(
        "the function's states and timers; with `carry`, the unfinished records",
        "pickle: an operator chained",
        by_user=True,
    ),
    simulated=pick(awaiting, *awaiting.PROGRAMS),
    chaos=AWAITED,
)

# -- reduce, and folds of a field --


def added(sum_: Any, row_: Any) -> Any:
    return row(key=sum_.key, n=sum_.n + row_.n, at=row_.at)


def folded(function: Any) -> Any:
    def expected(rows: list[Any]) -> list[Any]:
        results: dict[Any, Any] = {}
        for event in rows:
            results[event.key] = function(results[event.key], event) if event.key in results else event
        return list(results.values())

    return expected


NO_KEY = OutputTag[DeadLetter]("no key")


def has_no_key(event: Any) -> bool:
    return bool(event.id % 11 == 5)


def key_of(event: Any) -> int:
    if has_no_key(event):
        raise ValueError(f"{event.id} has no key")
    return int(event.key)


def without_key(letter: DeadLetter) -> OutputRow:
    return OutputRow(letter.value.key, letter.value.ts, [letter.value.id, letter.key, letter.error])


class Mixed(ReduceFunction):
    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def reduce(self, event: Any, other: Any) -> Event:
        self.faults.pass_by("reduced", other.id)
        return Event(mixed(event.id, other.id), other.key, other.ts)


class MixedModel(Model):
    """Computes the expected output. Fault points are records that are reduced into an earlier record."""

    def __init__(self) -> None:
        super().__init__()
        self._mixed: dict[int, int] = {}

    def record(self, event: Event) -> None:
        if has_no_key(event):
            self.say(event.key, event.ts, [event.id, None, f"ValueError: {event.id} has no key"], NO_KEY.tag_id)
            return
        so_far = self._mixed.get(event.key)
        if so_far is not None:
            self.points["reduced"].append(event.id)
        self._mixed[event.key] = event.id if so_far is None else mixed(so_far, event.id)
        self.say(event.key, event.ts, self._mixed[event.key])


def mix(events: DataStream, faults: Faults) -> tuple[DataStream, DataStream]:
    with_keys = events.key_by(key_of, on_error=NO_KEY)
    return with_keys.reduce(Mixed(faults)), with_keys


MIXED = Part("mixed", mix, MixedModel, id_of, sides={NO_KEY: without_key})


class LatestModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[int, Event] = {}

    def record(self, event: Event) -> None:
        latest = self._latest.get(event.key)
        if latest is None or event.ts > latest.ts:
            latest = self._latest[event.key] = event
        self.say(*id_of(latest))


LATEST = Part("latest", lambda events, faults: events.key_by("key").max_by("ts"), LatestModel, id_of)
LAST_RESULT = "the last result of each key"

REDUCE = Entry(
    "KeyedStream.reduce",
    ReduceOperator,
    lambda s: s.key_by("key").reduce(added),
    state=StoredState("the result so far", "pickle: the value state 'reduced': no type"),
    late=LIKE_OTHERS,
    batch=Differs(LAST_RESULT, folded(added)),
    changes=NO_ARGUMENT,
    simulated=pick(state, "running-sums", "rows"),
    chaos=MIXED,
)


def with_keys(stream: Any) -> Any:
    keyed = stream.key_by(lambda value: 1 // (value.n % 3), on_error=OutputTag("bad"))
    return DataStream(keyed._env, keyed._plain_step())


KEY_BY = stateless(
    "DataStream.key_by",
    KeyGuardOperator,
    with_keys,
    case="with `on_error`",
    simulated=Reason("it is a map that may refuse a record; chaos has it"),
    chaos=MIXED,
)


def of_field(method: str, fold: Any) -> Entry:
    return replace(
        REDUCE,
        method=f"KeyedStream.{method}",
        build=lambda s: getattr(s.key_by("key"), method)("n"),
        batch=Differs(LAST_RESULT, folded(fold)),
        changes=[
            Refused(
                "another field",
                lambda s: getattr(s.key_by("key"), method)("at"),
                f"'op': it kept {method}('n'), and keeps {method}('at')",
            ),
            Refused(
                "another of these methods",
                lambda s: getattr(s.key_by("key"), "max" if method == "min" else "min")("n"),
                f"'op': it kept {method}('n'), and keeps {'max' if method == 'min' else 'min'}('n')",
            ),
        ],
        simulated=pick(two_inputs, "extremes"),
        chaos=LATEST if method == "max_by" else Reason("max_by has the same operator"),
    )


def with_n(first: Any, n: int) -> Any:
    return row(key=first.key, n=n, at=first.at)


FOLDS = [
    of_field("sum", lambda value, other: with_n(value, value.n + other.n)),
    of_field("min", lambda value, other: with_n(value, min(value.n, other.n))),
    of_field("max", lambda value, other: with_n(value, max(value.n, other.n))),
    of_field("min_by", lambda value, other: other if other.n < value.n else value),
    of_field("max_by", lambda value, other: other if other.n > value.n else value),
]

# -- deduplicate --

WITHIN = 3_000  # milliseconds


def name_of(event: Any) -> tuple[int, int]:
    return event.key, event.id % 2


class FreshModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self._forget_at: dict[tuple[int, int], int] = {}

    def record(self, event: Event) -> None:
        if name_of(event) not in self._forget_at:
            if event.ts + WITHIN > self.watermark:
                self._forget_at[name_of(event)] = event.ts + WITHIN
            self.say(*id_of(event))

    def advance(self, watermark: int) -> None:
        super().advance(watermark)
        self._forget_at = {name: at for name, at in self._forget_at.items() if at > watermark}


def not_seen(within: int) -> Any:
    def expected(key: Any, values: list[Any]) -> list[Any]:
        passed: list[Any] = []
        for value in values:
            if not passed or value[1] > passed[-1][1] + within:
                passed.append(value)
        return passed

    return expected


def not_seen_rows(rows: list[Any]) -> list[Any]:
    groups = oracles.by_key([(row.key, row.at, row) for row in rows])
    return [passed[2] for key, values in groups.items() for passed in not_seen(10)(key, values)]


def deduplicated(env: Any, events: DataStream) -> DataStream:
    return events.assign_timestamps_and_watermarks(monotonous()).key_by(first).deduplicate(200)


DEDUPLICATE = Entry(
    "KeyedStream.deduplicate",
    DeduplicateOperator,
    lambda s: s.key_by("key").deduplicate(10),
    state=StoredState("the keys of the last `within` of event time"),
    late=LIKE_OTHERS,
    batch=Differs("a key is forgotten by the timestamps of its records", not_seen_rows),
    changes=[
        Resumes(
            "another `within`",
            "existing keys are forgotten by the old `within`",
            lambda s, within=now: s.key_by("key").deduplicate(within),
            [record("a", 1, 1_000)],
            [[record("b", 2, 1_006)], [record("a", 3, 1_007)], [record("c", 4, 1_015)], [record("a", 5, 1_016)]],
            [("b", 2, 1_006), ("c", 4, 1_015), ("a", 5, 1_016)],
        )
        for now in (1_000, 1)
    ],
    simulated={
        "deduplicated": of_events(
            deduplicated,
            last=LAST,
            together={"events": first},
            batch_oracle=oracles.each_key(lambda key, group: not_seen(200)(key, sorted(group, key=lambda v: v[1]))),
        )
    },
    chaos=Part("fresh", lambda events, faults: events.key_by(name_of).deduplicate(WITHIN), FreshModel, id_of),
)

# -- in_event_time_order --


class OrderedModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[Event] = []

    def record(self, event: Event) -> None:
        if event.ts > self.watermark:
            self._waiting.append(event)

    def advance(self, watermark: int) -> None:
        super().advance(watermark)
        for event in self._waiting:
            if event.ts <= watermark:
                self.say(*id_of(event))
        self._waiting = [event for event in self._waiting if event.ts > watermark]


def in_order(strategy: Any, **promises: Any) -> SimulatedProgram:
    return of_events(
        lambda env, events: events.assign_timestamps_and_watermarks(strategy).key_by(first).in_event_time_order(),
        last=LAST,
        together={"events": first},
        order={"output": first},
        batch_oracle=oracles.each_key(lambda key, group: sorted(group, key=second)),
        **promises,
    )


IN_EVENT_TIME_ORDER = Entry(
    "KeyedStream.in_event_time_order",
    InEventTimeOrderOperator,
    lambda s: s.key_by("key").in_event_time_order(),
    ordered=False,
    state=StoredState("the records after the watermark", "pickle: the map state 'waiting': no type"),
    late=DROPPED,
    batch=SAME,
    changes=NO_ARGUMENT,
    simulated={
        "in-event-time-order": in_order(bounded(100), cut_free=True),
        "late-in-event-time-order": in_order(monotonous()),
    },
    chaos=Part("ordered", lambda events, faults: events.key_by("key").in_event_time_order(), OrderedModel, id_of),
)

ENTRIES = [KEY_BY, PROCESS, GUARDED, ASYNC, REDUCE, *FOLDS, DEDUPLICATE, IN_EVENT_TIME_ORDER]
