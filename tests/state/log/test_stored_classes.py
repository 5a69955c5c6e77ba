"""Stored values of user classes. Checking them runs no code, and only importable classes are stored."""

from __future__ import annotations

import enum
import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from pillarbox import CheckpointMismatchError, OperatorError
from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import MapStateDescriptor, ValueStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.key_rows import KeyOwner
from pillarbox._state.log.state_log import StateLog
from pillarbox._state.types.opaque import loads_inert, opaques_in
from pillarbox._unpickle import loads_allowed


def is_named_in(value: Any, where: tuple[str, str]) -> bool:
    return any(opaque.where == where for opaque in opaques_in(value))


class Task:
    def __init__(self, store: MemoryChunkStore | None = None) -> None:
        self.store = MemoryChunkStore() if store is None else store
        self.backend = KeyedStateBackend("op", KeyOwner(0, 1, 128))
        self.value: Any = self.backend.get_state(ValueStateDescriptor("v"))
        self.map: Any = self.backend.get_state(MapStateDescriptor("m"))
        self.backend.seal()
        self.log = StateLog(LogIdentity("op", 0, 1, 128), self.backend, own_state=False)
        self.log.sync(self.store)

    def of(self, key: Any) -> Task:
        self.backend.set_current_key(key)
        return self

    def commit(self) -> MemoryChunkStore:
        self.log.commit(self.store, {})
        return self.store


@dataclass(frozen=True, slots=True, order=True)
class Event:
    at: int
    n: int


class Sorted:
    """Is pickled as a call that compares its arguments, like the lists of sortedcontainers."""

    def __init__(self, elements: Any) -> None:
        self.found = sorted(elements)

    def __reduce__(self) -> Any:
        return Sorted, (list(self.found),)


class Plan(enum.Enum):
    FREE = Event(0, 1)
    PAID = Event(0, 2)

    def __reduce_ex__(self, protocol: Any) -> Any:  # by value, as Python does up to 3.11
        return Plan, (self.value,)


class Total:
    read = 0

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.sum = sum(event.n for event in events)

    def __getstate__(self) -> Any:
        return self.events

    def __setstate__(self, events: list[Event]) -> None:
        Total.read += 1
        self.__init__(events)  # type: ignore[misc]


@pytest.mark.parametrize("where", ["value", "map", "key"])
def test_checking_places_runs_nothing_of_other_classes(where):
    task = Task()
    values = {"sorted": Sorted([Event(2, 2), Event(1, 1)]), "plan": Plan.PAID, "total": Total([Event(1, 1)])}
    if where == "value":
        task.of("a").value.update(values)
    elif where == "map":
        for name, value in values.items():
            task.of("a").map.put((Event(1, 1), name), value)
    else:
        task.of(Plan.FREE).value.update(values)
    Total.read = 0
    again = Task(task.commit())
    assert Total.read == 1
    if where == "map":
        results = {name: value for (_, name), value in again.of("a").map.items()}
    else:
        results = again.of("a" if where == "value" else Plan.FREE).value.value()
    assert results["sorted"].found == [Event(1, 1), Event(2, 2)]
    assert (results["plan"], results["total"].sum) == (Plan.PAID, 1)


def test_a_chunk_is_checked_for_the_classes_that_it_names(monkeypatch):
    counted: list[bytes] = []
    task = Task()
    task.of("b").value.update(5)
    task.commit()
    task.of("a").value.update(Event(1, 1))
    task.commit()
    task.of("c").value.update(6)
    task.commit()

    def counting(payload, classes):
        counted.append(payload)
        return loads_inert(payload, classes)

    monkeypatch.setattr("pillarbox._state.types.class_names.loads_inert", counting)
    other = Task(task.store)
    assert [other.of(key).value.value() for key in "bac"] == [5, Event(1, 1), 6]
    assert len(counted) == 1


class Ring:
    me: Any


class Point(NamedTuple):
    x: int
    y: int


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class LevelNow(enum.Enum):
    LOW = 1


class PointNow(NamedTuple):
    x: int


@pytest.mark.parametrize(("value", "now"), [(Point(1, 2), PointNow), (Level.HIGH, LevelNow)])
def test_an_error_of_a_class_says_where_its_value_is_and_runs_nothing_more(value, now, monkeypatch):
    task = Task()
    task.of("a").value.update(Point(1, 2) if now is LevelNow else Level.LOW)
    task.of("b").map.put("k", [value])
    task.commit()
    now.__name__ = now.__qualname__ = type(value).__name__
    monkeypatch.setattr(f"{__name__}.{type(value).__name__}", now)
    calls: list[str] = []
    loads = "pillarbox._state.chunks.chunk.loads_allowed"

    def counting(*args: Any) -> Any:
        calls.append("read")
        return loads_allowed(*args)

    monkeypatch.setattr(loads, counting)
    with pytest.raises(CheckpointMismatchError, match=r"cannot be read \(in the map state 'm' of the key 'b'\)"):
        Task(task.store)
    assert calls == ["read"]


def test_inert_reading_takes_recursive_objects_and_calls():
    ring = Ring()
    ring.me = ring
    content = loads_inert(pickle.dumps({"v": [ring, Plan.FREE], "k": {Event(1, 1): Sorted([])}}))
    assert is_named_in(content, (__name__, "Event"))
    assert is_named_in(content["v"], (__name__, "Plan"))
    assert not is_named_in(content["v"][0], (__name__, "Sorted"))
    assert len(list(opaques_in(pickle.loads(pickle.dumps([1, "a", {2: (3,)}]))))) == 0


def local_class() -> Any:
    @dataclass(frozen=True)
    class Card:
        number: int

    return Card


@pytest.mark.parametrize("where", ["value", "key", "map", "large", "function", "request"])
def test_what_cannot_be_imported_is_not_stored(where):
    """A restarted program would have another class, so old keys would not be equal to its keys."""
    task, card = Task(), local_class()(1)
    key = "'k'" if where not in ("key",) else r".*Card\(number=1\)"
    task.of(card if where == "key" else "k")
    own: dict[str, Any] = {}
    if where == "map":
        task.map.put("a", [card])
    elif where == "large":
        task.value.update([bytes(1024 * 1024), card])
    elif where == "request":
        own = {"operators": {"ask": [card]}}
    else:
        task.value.update(5 if where == "key" else (lambda n: n) if where == "function" else card)
    state = "what it keeps beside" if where == "request" else f"the (value state 'v'|map state 'm') of key {key} "
    with pytest.raises(OperatorError, match=rf"^operator 'op': {state}.*cannot be written: .*(Card|lambda)") as caught:
        task.log.commit(task.store, own)
    assert "define it at the top level of a module, outside of all functions" in str(caught.value)
