"""Golden logs of an older program, which changed programs resume: ``python -m tests.data.make_evolution``.

One log has declared types, the other is pickled. They contain dataclasses, named tuples and rows in states of all
kinds, some large, some with a time-to-live, and a class that has moved to another module. Never change the classes
here, except ``Moved``, which tests hide.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from pillarbox import Row, StateTtlConfig, Types
from pillarbox._state.chunks.head import FORMAT, LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._state.log import large_collections
from pillarbox._state.log.state_log import StateLog
from tests.data.make_checkpoint import HERE, save

__all__ = ["KEYS", "PATH", "Money", "Moved", "Order", "Slim"]

PATH = HERE / f"evolution-format-{FORMAT}.zip"
KEYS = 12


class Money(NamedTuple):
    amount: int
    currency: str


@dataclass
class Order:
    number: int
    money: Money
    note: str = ""


@dataclass(frozen=True, slots=True)
class Slim:
    a: int
    b: str


@dataclass
class Moved:
    n: int


ROW = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()])


def declared(plain: bool) -> list[Any]:
    total = ValueStateDescriptor("sum", Types.LONG() if plain else None)
    total.enable_time_to_live(StateTtlConfig("1 day"))
    return [
        total,
        ValueStateDescriptor("order", Order if plain else None),
        ListStateDescriptor("slims", Slim if plain else None),
        MapStateDescriptor("orders", *((int, list[Order]) if plain else ())),
        ValueStateDescriptor("row", ROW if plain else None),
        ReducingStateDescriptor("latest", lambda value, other: other, Moved if plain else None),
        MapStateDescriptor("old", *((str, Money) if plain else ())),
    ]


def put(states: dict[str, Any], n: int) -> None:
    states["sum"].update(n)
    states["order"].update(Order(n, Money(n, "EUR"), "x"))
    states["slims"].add_all([Slim(number, str(number)) for number in range(3 * n)])
    states["orders"].put_all({number: [Order(number, Money(number, "USD"))] for number in range(2 * n)})
    states["row"].update(Row.of(a=n, b=str(n)))
    states["latest"].add(Moved(n))
    states["old"].put("k", Money(n, ""))


def make(plain: bool) -> MemoryChunkStore:
    store = MemoryChunkStore()
    backend = KeyedStateBackend("evolving")
    states = {descriptor.name: backend.get_state(descriptor) for descriptor in declared(plain)}
    timers = backend.create_timers("user-timers/event")
    backend.seal()
    identity = LogIdentity("evolving", 0, 1, 128, key=KeyNote(columns=["k"], types=["string"]))
    log = StateLog(identity, backend, own_state=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_collections, "_LARGE", 300)
        log.sync(store)
        for n in range(KEYS):
            backend.set_current_key(f"key {n}")
            backend.now = 1000 + n
            put(states, n)
            timers.register(100 + n)
            log.commit(store, {})
    return store


if __name__ == "__main__":
    from tests.data import make_evolution  # as what tests import, and not as __main__: classes are named

    save({("plain", 0): make_evolution.make(plain=True), ("pickled", 0): make_evolution.make(plain=False)}, PATH)
    print(f"{PATH}: {PATH.stat().st_size} bytes", file=sys.stderr)
