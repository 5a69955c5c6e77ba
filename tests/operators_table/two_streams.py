"""Operators of two streams: connected streams, broadcast state, joins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

from pillarbox._datastream.connected import columnar_joins
from pillarbox._operators.async_keyed.two_inputs import AsyncKeyedBroadcastOperator, AsyncKeyedCoProcessOperator
from pillarbox._operators.columnar.joins.join_operator import ColumnarJoinOperator
from pillarbox._operators.columnar.joins.process_join import ColumnarProcessJoinOperator
from pillarbox._operators.connected.broadcast import BroadcastProcessOperator, KeyedBroadcastProcessOperator
from pillarbox._operators.connected.two_inputs import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
    KeyedCoProcessOperator,
)
from pillarbox._operators.joins.co_group import CoGroupWindowOperator
from pillarbox._operators.joins.interval_join import IntervalJoinOperator
from tests.faults.parts import columns as column_parts
from tests.faults.parts import connected, joins
from tests.operators_table.entry import (
    DROPPED,
    LIKE_OTHERS,
    NO_ARGUMENT,
    NO_STATE,
    SAME,
    Differs,
    Entry,
    Reason,
    Refused,
    StoredState,
    pick,
)
from tests.operators_table.functions import (
    RULES,
    AnyOf,
    AsyncKeyedRuled,
    AsyncPairs,
    Either,
    KeyedRuled,
    Pairs,
    Ruled,
    Seen,
)
from tests.operators_table.windows import SESSIONS, SLIDING
from tests.simulation.programs import columnar_joins as simulated_joins
from tests.simulation.programs import two_inputs

__all__ = ["ENTRIES"]

FUNCTIONS = "the function's states"
BY_TIME = Differs("a key's records are sorted by time, across both streams")
FIRST = Differs("the broadcast stream is read first")
SWAPPED = "'op': its inputs have changed places: the first one came from source 'left'"

# -- connected streams --

MAP = Entry(
    "ConnectedStreams.map",
    CoMapOperator,
    lambda a, b: a.connect(b).map(AnyOf()),
    inputs=2,
    state=NO_STATE,
    late=LIKE_OTHERS,
    batch=SAME,
    changes=NO_ARGUMENT,
    simulated=pick(two_inputs, "co-map-and-flat-map"),
    chaos=connected.SIDES,
)
CONNECTED = [
    MAP,
    replace(
        MAP,
        method="ConnectedStreams.flat_map",
        operator=CoFlatMapOperator,
        build=lambda a, b: a.connect(b).key_by("key", "key").flat_map(Seen()),
        state=StoredState(FUNCTIONS, "pickle: the list state 'ones': no type", by_user=True),
        batch=BY_TIME,
        chaos=connected.TURNS,
    ),
    replace(
        MAP,
        method="ConnectedStreams.process",
        operator=CoProcessOperator,
        build=lambda a, b: a.connect(b).process(Either()),
        simulated=pick(two_inputs, "connected-without-key"),
        chaos=connected.HELD,
    ),
    replace(
        MAP,
        method="ConnectedStreams.process",
        operator=KeyedCoProcessOperator,
        build=lambda a, b: a.connect(b).key_by("key", "key").process(Pairs()),
        case="by key",
        ordered=False,
        state=StoredState(f"{FUNCTIONS} and timers", "pickle: the value state 'left': no type", by_user=True),
        batch=BY_TIME,
        simulated=pick(two_inputs, "connected-by-key"),
        chaos=connected.BALANCE,
    ),
    replace(
        MAP,
        method="ConnectedStreams.process",
        operator=AsyncKeyedCoProcessOperator,
        build=lambda a, b: a.connect(b).key_by("key", "key").process(AsyncPairs()),
        case="by key, with `async def`",
        ordered=False,
        state=StoredState(
            "the function's states and timers; with `carry`, the unfinished records", "pickle: the", by_user=True
        ),
        batch=Differs("a key's records are sorted by time, across both streams"),
        simulated=Reason("KeyedStream.process has the same operator but for its inputs"),
        chaos=Reason("KeyedStream.process has the same operator but for its inputs"),
    ),
]

# -- broadcast state --

BROADCAST = [
    replace(
        MAP,
        method="BroadcastConnectedStream.process",
        operator=BroadcastProcessOperator,
        build=lambda a, b: a.connect(b.broadcast(RULES)).process(Ruled()),
        state=StoredState("broadcast state", "pickle: it works without keys"),
        batch=FIRST,
        simulated=pick(two_inputs, "broadcast-without-key"),
        chaos=connected.KNOWN,
    ),
    replace(
        MAP,
        method="BroadcastConnectedStream.process",
        operator=KeyedBroadcastProcessOperator,
        build=lambda a, b: a.key_by("key").connect(b.broadcast(RULES)).process(KeyedRuled()),
        case="by key",
        ordered=False,
        state=StoredState(f"broadcast state, {FUNCTIONS} and timers", "pickle: ", by_user=True),
        batch=FIRST,
        simulated=pick(two_inputs, "rules-by-time"),
        chaos=joins.RULED,
    ),
    replace(
        MAP,
        method="BroadcastConnectedStream.process",
        operator=AsyncKeyedBroadcastOperator,
        build=lambda a, b: a.key_by("key").connect(b.broadcast(RULES)).process(AsyncKeyedRuled()),
        case="by key, with `async def`",
        ordered=False,
        state=StoredState("broadcast state, the function's states and timers", "pickle: ", by_user=True),
        batch=Differs("the broadcast stream is read first"),
        simulated=Reason("KeyedStream.process has the same operator but for its inputs"),
        chaos=Reason("KeyedStream.process has the same operator but for its inputs"),
    ),
]

# -- joins --


def near(a: Any, b: Any) -> Any:
    return a.key_by("key").interval_join(b.key_by("key")).between(-9, 12)


def near_pairs(a: Any, b: Any) -> Any:
    return near(a, b).process(lambda left, right, ctx: [(left.n, right.n)])


def near_columns(a: Any, b: Any) -> Any:
    return near(a, b).columns("left", suffixes=("", "_right"))


def pairs_of_columns(a: Any, b: Any) -> Any:
    with mock.patch.object(columnar_joins, "_is_untouched", lambda step: True):
        return near_pairs(a, b)


def both(lefts: Any, rights: Any) -> Any:
    return [(sorted(record.n for record in lefts), sorted(two.n for two in rights))]


def grouped(a: Any, b: Any) -> Any:
    return a.co_group(b).where("key").equal_to("key").window(SLIDING).apply(both)


def joined(a: Any, b: Any) -> Any:
    return a.join(b).where("key").equal_to("key").window(SESSIONS).apply(lambda left, right: (left.n, right.n))


def sides_changed(make: Any) -> list[Refused]:
    return [Refused("swapped sides", lambda a, b: make(b, a), SWAPPED)]


BOTH_SIDES = StoredState("the records of both sides that may still find a partner")
INTERVAL = Entry(
    "IntervalJoin.process",
    IntervalJoinOperator,
    near_pairs,
    inputs=2,
    state=replace(BOTH_SIDES, format="pickle: "),
    late=DROPPED,
    batch=SAME,
    changes=sides_changed(near_pairs),
    simulated=pick(
        two_inputs,
        "interval-join",
        "interval-join-of-one-key",
        "interval-join-of-the-past",
        "late-interval-join",
        "join-of-joins",
    ),
    chaos=joins.pairs_of(),
)
WINDOWS = replace(
    INTERVAL,
    method="CoGroupedWindows.apply",
    operator=CoGroupWindowOperator,
    build=grouped,
    ordered=False,
    state=StoredState("the elements of both sides", "pickle: "),
    changes=sides_changed(grouped),
    simulated=pick(two_inputs, "joined-windows"),
    chaos=joins.BOTH,
)
JOINS = [
    INTERVAL,
    replace(
        INTERVAL,
        operator=ColumnarProcessJoinOperator,
        build=pairs_of_columns,
        case="of rows of DataFrames",
        ordered=False,
        state=BOTH_SIDES,
        changes=sides_changed(pairs_of_columns),
        simulated=pick(simulated_joins, "join-of-columns-with-a-function"),
        chaos=Reason("it is in the query of DataFrame functions: tests/faults/parts/columns.py"),
    ),
    replace(
        INTERVAL,
        method="IntervalJoin.columns",
        operator=ColumnarJoinOperator,
        build=near_columns,
        ordered=False,
        state=BOTH_SIDES,
        changes=sides_changed(near_columns),
        simulated=pick(simulated_joins, *(set(simulated_joins.PROGRAMS) - {"join-of-columns-with-a-function"})),
        chaos=column_parts.pairs_of(),
    ),
    WINDOWS,
    replace(
        WINDOWS,
        method="JoinedWindows.apply",
        build=joined,
        changes=sides_changed(joined),
        chaos=Reason("co_group has the same operator"),
    ),
]

ENTRIES = [*CONNECTED, *BROADCAST, *JOINS]
