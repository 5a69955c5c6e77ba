"""Keys may become equal if their class loses a field. No map entry or row is lost silently."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any, NamedTuple

import pytest

from pillarbox import CheckpointMismatchError, Row, Types
from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import MapStateDescriptor, ValueStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.key_rows import KeyOwner
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._state.log.state_log import StateLog

PLAIN = KeyNote(columns=["k"], types=["string"])


@dataclass(frozen=True)
class Place:
    a: int
    b: int


@dataclass(frozen=True)
class Inner:
    place: Place


class Pair(NamedTuple):
    a: int
    b: int


class Task:
    def __init__(self, store: Any = None, *, of: Any = None, key: Any = PLAIN, namespaced: bool = False) -> None:
        self.store = MemoryChunkStore() if store is None else store
        self.backend = KeyedStateBackend("op", KeyOwner(0, 1, 128))
        self.map: Any = self.backend.get_state(MapStateDescriptor("m", *(() if of is None else (of, Types.LONG()))))
        if namespaced:
            self.window: Any = self.backend.get_state(ValueStateDescriptor("w"), namespaced=True)
        self.backend.seal()
        self.log = StateLog(LogIdentity("op", 0, 1, 128, key=key), self.backend, own_state=False)
        self.log.sync(self.store)

    def put(self, values: dict[Any, Any], key: Any = "k") -> Task:
        self.backend.set_current_key(key)
        for name, value in values.items():
            self.map.put(name, value)
        return self

    def commit(self) -> MemoryChunkStore:
        self.log.commit(self.store, {})
        return self.store


def without_b(cls: Any, monkeypatch: Any) -> Any:
    fields: list[Any] = [("a", int)]
    class_: Any = NamedTuple(cls.__name__, fields) if cls is Pair else make_dataclass(cls.__name__, fields, frozen=True)
    class_.__module__ = __name__
    monkeypatch.setattr(f"{__name__}.{cls.__name__}", class_)
    return class_


LOSE = "keys of a map lose the field 'b' of .*, and entries whose keys differ by it alone would become one"


@pytest.mark.parametrize("size", [1, 4096])
@pytest.mark.parametrize("cls", [Place, Pair])
def test_declared_keys_of_maps_keep_their_fields(cls, size, monkeypatch):
    task = Task(of=cls).put({cls(1, n): 5 for n in range(size)})
    store = task.commit()
    assert (size == 1) == (not any(b"elements" in payload for payload in store.chunks.values()))
    now = without_b(cls, monkeypatch)
    with pytest.raises(CheckpointMismatchError, match=f"map state 'm' .*{LOSE}"):
        Task(store, of=now)


@pytest.mark.parametrize("nested", [False, True])
def test_rows_in_keys_of_maps_keep_their_columns(nested):
    long = Types.LONG()

    def of(*names: str) -> Any:
        row = Types.ROW_NAMED(list(names), [long] * len(names))
        return Types.TUPLE([long, row]) if nested else row

    rows = [Row(a=1, b=1), Row(a=1, b=2)]
    store = Task(of=of("a", "b")).put({(7, row) if nested else row: 5 for row in rows}).commit()
    assert len(dict(Task(store, of=of("b", "a")).put({}).map.items())) == 2
    with pytest.raises(CheckpointMismatchError, match=LOSE):
        Task(store, of=of("a"))


@pytest.mark.parametrize("kind", ["alone", "in a tuple", "in a class", "in a set", "elements"])
def test_keys_of_pickled_maps_that_become_equal_are_refused(kind, monkeypatch):
    wrap = {"in a tuple": lambda key: (0, key), "in a class": Inner}.get(kind, lambda key: key)
    places = [Place(1, 1), Place(1, 2)]
    task = Task()
    if kind == "in a set":
        task.put({"places": set(places)})
    elif kind == "elements":
        task.put({**{n: bytes(100) for n in range(1000)}, **dict.fromkeys(places, 5)})
    else:
        task.put({wrap(index): n for n, index in enumerate(places)})
    store = task.commit()
    without_b(Place, monkeypatch)
    expected = "has not its 1002 elements" if kind == "elements" else "map state 'm' of the key 'k' .* are equal now"
    with pytest.raises(CheckpointMismatchError, match=expected):
        Task(store)


def test_keys_of_pickled_maps_that_stay_apart_lose_fields(monkeypatch):
    store = Task().put({Place(1, 1): 5, Place(2, 2): 7}).commit()
    now = without_b(Place, monkeypatch)
    assert dict(Task(store).put({}).map.items()) == {now(1): 5, now(2): 7}


@pytest.mark.parametrize("namespaced", [False, True])
def test_keys_that_become_equal_are_refused(namespaced, monkeypatch):
    task = Task(namespaced=namespaced)
    for n in range(3):
        task.backend.set_current_key(Place(n // 2, n))
        if namespaced:
            task.backend.set_current_namespace("w")
            task.window.update(n)
        else:
            task.map.put(1, n)
    store = task.commit()
    without_b(Place, monkeypatch)
    with pytest.raises(CheckpointMismatchError, match=r"of 3 rows, 1 have keys now that equal those of others"):
        Task(store, namespaced=namespaced)
