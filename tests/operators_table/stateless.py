"""Operators of all streams: map, flat_map, filter, process, and asynchronous operators."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from pillarbox import AsyncDataStream
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox._operators.stateless.filter import FilterOperator
from pillarbox._operators.stateless.flat_map import FlatMapOperator
from pillarbox._operators.stateless.map import MapOperator
from pillarbox._operators.stateless.process import ProcessOperator
from tests.faults.parts import letters
from tests.faults.parts.part import Model, OutputRow, Part
from tests.faults.programs.job import Event
from tests.operators_table.entry import LIKE_OTHERS, NO_ARGUMENT, NO_STATE, SAME, Entry, Reason, StoredState, pick
from tests.operators_table.functions import Asked
from tests.simulation.programs import requests, state

__all__ = ["ENTRIES", "stateless"]

# -- parts of the program that chaos runs --


def thirds(event: Any) -> Iterator[OutputRow]:
    for part in range(event.id % 3):
        yield OutputRow(event.key, event.ts, [event.id, part])


class ThirdsModel(Model):
    def record(self, event: Event) -> None:
        for third in thirds(event):
            self.say(*third)


THIRDS = Part("thirds", lambda events, faults: events.flat_map(thirds), ThirdsModel, has_state=False)

# -- the entries --


async def squared(value: Any) -> int:
    return int(value.n**2)


EVERYWHERE = Reason("it is in the program of tests/faults/programs/job.py, together with all parts")
SECOND = Reason("tests/faults/programs/second_job.py is chaos's program with requests")

stateless = partial(Entry, state=NO_STATE, late=LIKE_OTHERS, batch=SAME, changes=NO_ARGUMENT)

ENTRIES = [
    stateless(
        "DataStream.map",
        MapOperator,
        lambda s: s.map(lambda value: value.n),
        simulated=pick(state, "keyed-map-and-filter", "diamond"),
        chaos=EVERYWHERE,
    ),
    stateless(
        "DataStream.flat_map",
        FlatMapOperator,
        lambda s: s.flat_map(lambda value: [value.n] * (value.n % 3)),
        simulated=pick(state, "two-levels"),
        chaos=THIRDS,
    ),
    stateless(
        "DataStream.filter",
        FilterOperator,
        lambda s: s.filter(lambda value: value.n % 2 == 0),
        simulated=pick(state, "keyed-map-and-filter", "two-sources"),
        chaos=EVERYWHERE,
    ),
    stateless(
        "DataStream.process",
        ProcessOperator,
        lambda s: s.process(lambda value, ctx: [(value.n, ctx.timestamp())]),
        simulated=pick(state, "side-outputs"),
        chaos=letters.HALVES,
    ),
    stateless(
        "DataStream.map_async",
        AsyncWaitOperator,
        lambda s: s.map_async(squared, ordered=True, timeout=None),
        state=StoredState('with `on_barrier="carry"`, the requests in flight', None),
        changes=Reason("requests in flight are answered by the new options: tests/operators/async_io"),
        simulated=pick(requests, *requests.PROGRAMS),
        chaos=SECOND,
    ),
    stateless(
        "AsyncDataStream.ordered_wait",
        AsyncWaitOperator,
        lambda s: AsyncDataStream.ordered_wait(s, Asked(), 1000),
        simulated=pick(requests, "drained-behind-a-shuffle"),
        chaos=SECOND,
    ),
    stateless(
        "AsyncDataStream.unordered_wait",
        AsyncWaitOperator,
        lambda s: AsyncDataStream.unordered_wait(s, Asked(), 1000),
        ordered=False,
        simulated=pick(requests, "drained"),
        chaos=SECOND,
    ),
]
