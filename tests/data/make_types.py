"""A golden log of a plain operator: ``python -m tests.data.make_types``.

It contains a state of each kind with declared types, large maps and lists, and rows in namespaces.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timezone
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

import pytest

from pillarbox import Row, Types
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
from pillarbox._state.log import large_collections, limits
from pillarbox._state.log.state_log import StateLog
from tests.data.make_checkpoint import HERE, save

__all__ = ["PATH", "Money", "Order", "Typed", "contents"]

PATH = HERE / f"types-format-{FORMAT}.zip"


class Money(NamedTuple):
    amount: Decimal
    currency: str


@dataclass
class Order:
    money: Money
    tags: list[str]
    at: datetime | None = None


STATES: dict[str, Any] = {
    "long": partial(ValueStateDescriptor, value_type_info=Types.LONG()),
    "double": partial(ReducingStateDescriptor, reduce_function=max, type_info=Types.DOUBLE()),
    "date": partial(ValueStateDescriptor, value_type_info=Types.SQL_DATE()),
    "time": partial(ValueStateDescriptor, value_type_info=Types.SQL_TIME()),
    "instant": partial(ValueStateDescriptor, value_type_info=Types.INSTANT()),
    "row": partial(ValueStateDescriptor, value_type_info=Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.LONG()])),
    "order": partial(ValueStateDescriptor, value_type_info=Order),
    "list": partial(ListStateDescriptor, elem_type_info=Types.STRING()),
    "map": partial(MapStateDescriptor, key_type_info=Types.LONG(), value_type_info=Types.LIST(Types.BIG_DEC())),
}


class Typed:
    def __init__(self, store: MemoryChunkStore) -> None:
        self.store = store
        self.backend = KeyedStateBackend("typed")
        self.states = {name: self.backend.get_state(make(name)) for name, make in STATES.items()}
        self.window = self.backend.get_state(
            ListStateDescriptor("window", Types.TUPLE([Types.LONG(), Types.BOOLEAN()])), namespaced=True
        )
        self.backend.seal()
        key = KeyNote(columns=["a", "b"], types=["string", "decimal(10,2)"])
        self.log = StateLog(LogIdentity("typed", 0, 1, 128, key=key), self.backend, own_state=False)
        self.log.sync(store)

    def put(self, key: Any, states: dict[str, Any], windows: dict[Any, Any]) -> None:
        self.backend.set_current_key(key)
        for name, value in states.items():
            if name == "list":
                self.states[name].add_all(value)
            elif name == "map":
                self.states[name].put_all(value)
            elif name == "double":
                self.states[name].add(value)
            else:
                self.states[name].update(value)
        for namespace, elements in windows.items():
            self.backend.set_current_namespace(namespace)
            self.window.update(elements)

    def windows(self, key: Any) -> dict[Any, Any]:
        self.backend.set_current_key(key)
        elements = {}
        for namespace in self.backend.get_namespaces():
            self.backend.set_current_namespace(namespace)
            elements[namespace] = list(self.window)
        return elements


def contents() -> Iterator[tuple[Any, dict[str, Any], dict[Any, Any]]]:
    for n in range(30):
        states: dict[str, Any] = {
            "long": n,
            "double": n / 4,
            "date": date(2024, 1, 1 + n),
            "time": time(1, n),
            "instant": datetime(2024, 1, 1, n % 24, tzinfo=timezone.utc),
            "row": Row.of(a=f"row {n}", b=None),
            "order": Order(Money(Decimal(n) / 8, "EUR"), [str(n)], datetime(2024, 1, 1)),
            "list": [f"element {number}" for number in range(n * 3)],
            "map": {number: [Decimal(number) / 4, None] for number in range(n)},
        }
        chosen = {name: states[name] for index, name in enumerate(states) if (n + index) % 4}
        yield (f"key {n}", Decimal(n) / 4), chosen, {(n, n + 10): [(n, True)] * (n + 1)} if n % 3 else {}


def make() -> MemoryChunkStore:
    typed = Typed(MemoryChunkStore())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CHUNK_ROWS", 8)
        patch.setattr(large_collections, "_LARGE", 200)
        for key, states, windows in contents():
            typed.put(key, states, windows)
            typed.log.commit(typed.store, {"gate": {}, "operators": {}})
    return typed.store


if __name__ == "__main__":
    from tests.data import make_types  # as what tests import, and not as __main__: classes are named

    save({("typed", 0): make_types.make()}, PATH)
    print(f"{PATH}: {PATH.stat().st_size} bytes", file=sys.stderr)
