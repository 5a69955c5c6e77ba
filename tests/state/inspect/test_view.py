"""A view of a log shows its content without the user's classes, and runs no code from the checkpoint."""

from __future__ import annotations

import datetime as dt
import enum
import pickle
import sys
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from types import ModuleType
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from pillarbox import CheckpointMismatchError, Row
from pillarbox._elements.buffers import dumps
from pillarbox._state.chunks.head import META, LogIdentity, Mark, write_head
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.inspect.view import LogView
from pillarbox._state.log import large_collections, limits
from pillarbox._state.log.state_log import StateLog
from pillarbox._state.types.opaque import AnyNames, Opaque, pickled
from pillarbox._unpickle import loads, loads_allowed
from tests.data import make_checkpoint as golden

# Of state logs; savepoints have files of another kind.
GOLDEN = sorted(path for path in golden.HERE.glob("*-format-*.zip") if not path.name.startswith("savepoint-"))


def shown(store: MemoryChunkStore) -> dict[Any, dict[str, Any]]:
    results: dict[Any, dict[str, Any]] = {}
    for keys, namespaces, layout, rows, sizes in LogView(store, 7).rows():
        assert len(keys) == len(rows) == len(sizes) == len(namespaces or keys)
        assert all(size > 0 for size in sizes)
        for index, (key, row) in enumerate(zip(keys, rows)):
            where = key if namespaces is None else (key, namespaces[index], "space")
            assert where not in results
            assert len(row) == len(layout) + 1
            results[where] = {name: value for (name, _), value in zip(layout, row[1:]) if value is not None}
    return results


def descriptor(name: str, kind: str) -> Any:
    return {
        "value": ValueStateDescriptor(name),
        "list": ListStateDescriptor(name),
        "map": MapStateDescriptor(name),
        "reducing": ReducingStateDescriptor(name, max),
        "aggregating": AggregatingStateDescriptor(name, golden.Sum()),
    }[kind]


def restored(store: MemoryChunkStore) -> dict[Any, dict[str, Any]]:
    head = LogView(store, 7).head
    backend = KeyedStateBackend(head.operator)
    for namespaced, layouts in ((False, head.layouts), (True, head.space_layouts)):
        for name, kind in dict.fromkeys(tuple(slot) for _, layout in layouts for slot in layout):
            lead, _, short = name.partition("/")
            if kind == "timers":
                backend.create_timers(name, namespaced=namespaced)
            elif lead == "state":
                backend.get_state(descriptor(short, kind), namespaced=namespaced)
    backend.seal()
    whose = head.operator, head.subtask, head.parallelism, head.max_parallelism
    StateLog(LogIdentity(*whose, head.program, head.key), backend).sync(store)
    results: dict[Any, dict[str, Any]] = {}
    for key, row in backend.rows.items():
        results[key] = {slot.name: value for slot, value in zip(backend.slots, row[2:]) if value is not None}
    for row in backend.namespaces.every_row():
        content = {slot.name: value for slot, value in zip(backend.namespaces.slots, row[2:]) if value is not None}
        key, namespace, _ = row[1]
        results[key, namespace, "space"] = content
    return results


def with_classes(values: dict[Any, Any]) -> Any:
    return loads(pickled(values))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_what_is_shown_is_what_a_restore_reads(path):
    for store in golden.load(path).values():
        result = shown(store)
        assert result or LogView(store, 7).head.entries == 0
        assert with_classes(result) == restored(store)


def test_elements_that_are_missing_are_noticed(monkeypatch):
    monkeypatch.setattr(large_collections, "_LARGE", 40)
    store = MemoryChunkStore()
    backend = KeyedStateBackend("op")
    state = backend.get_state(ListStateDescriptor("list"))
    backend.seal()
    log = StateLog(LogIdentity("op", 0, 1, 128), backend)
    log.sync(store)
    backend.set_current_key("k")
    state.update(list(range(100)))
    log.commit(store, {})
    assert shown(store) == {"k": {"state/list": list(range(100))}}
    content = pickle.loads(store.chunks[1])
    content["apart"][0][1] += 1
    store.chunks[1] = pickle.dumps(content, 5)
    head = LogView(store, 7).head
    head.newest = Mark.of(store.chunks[1], 1)
    store.chunks[META] = write_head(head)
    with pytest.raises(CheckpointMismatchError, match=r"the state 'list' of key 'k' has not its 101 elements, but 100"):
        shown(store)


def test_a_large_row_that_lies_where_slots_had_another_order(monkeypatch):
    monkeypatch.setattr(large_collections, "_LARGE", 200)
    monkeypatch.setattr(limits, "CHUNK_BYTES", 1_000)
    monkeypatch.setattr(limits, "SLACK_BYTES", 500)
    store = MemoryChunkStore()

    def task(*names):
        backend = KeyedStateBackend("op")
        states = {name: backend.get_state(descriptor(name, "map" if name == "map" else "value")) for name in names}
        backend.seal()
        log = StateLog(LogIdentity("op", 0, 1, 128), backend)
        log.sync(store)
        return backend, states, log

    backend, states, log = task("blob", "map")
    backend.set_current_key("large")
    states["blob"].update(bytes(2_000))
    states["map"].put_all({n: str(n) for n in range(100)})
    log.commit(store, {})
    written = store.chunks[-1]
    backend, states, log = task("map", "blob")
    for epoch in range(60):
        for key in range(5):
            backend.set_current_key(key)
            states["blob"].update(bytes([epoch]) * 100)
        log.commit(store, {})
    assert 1 not in store.chunks and store.chunks[-1] == written
    result = shown(store)
    assert result == restored(store)
    assert result["large"] == {"state/blob": bytes(2_000), "state/map": {n: str(n) for n in range(100)}}


def test_damage_is_noticed():
    (store, *_) = golden.load(golden.HERE / "checkpoint-format-2.zip").values()
    number = max(store.chunks)
    store.chunks[number] = store.chunks[number][:-1] + b"x"
    with pytest.raises(CheckpointMismatchError, match=rf"chunk {number} of the state, of epoch \d+, is not as it was"):
        shown(store)
    del store.chunks[number]
    with pytest.raises(CheckpointMismatchError, match=rf"chunk {number} of the state, .* is missing"):
        shown(store)
    store.chunks[0] = b"no head"
    with pytest.raises(CheckpointMismatchError, match="was not written by pillarbox"):
        LogView(store, 7)
    del store.chunks[0]
    with pytest.raises(CheckpointMismatchError, match=r"subtask code 7.* the head of the state .*missing"):
        LogView(store, 7)


# -- missing classes --

gone: Any = ModuleType("tests_gone")


@dataclass
class Order:
    item: str
    more: Any = None


class Point(NamedTuple):
    x: int
    y: Any


class Color(enum.Enum):
    RED = 1


class Odd(list):  # type: ignore[type-arg]
    """A list with attributes, pickled in several steps."""

    def __init__(self, *items: Any) -> None:
        super().__init__(items)
        self.name = "odd"


class Kept:
    def __init__(self, a: int) -> None:
        self.a = a

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kept) and other.a == self.a

    __hash__ = None  # type: ignore[assignment]

    def __getnewargs_ex__(self) -> Any:
        return (), {"a": self.a}

    def __new__(cls, a: int = 0) -> Kept:
        return super().__new__(cls)


class Node:
    """A node of a tree, with its parent."""

    def __init__(self, parent: Node | None = None) -> None:
        self.parent = parent
        self.children = [] if parent else [Node(self), Node(self)]


CLASSES = (Order, Point, Color, Odd, Kept, Node)


@pytest.fixture
def there(monkeypatch):
    for class_ in CLASSES:
        monkeypatch.setattr(class_, "__module__", "tests_gone")
        setattr(gone, class_.__name__, class_)
    monkeypatch.setitem(sys.modules, "tests_gone", gone)
    return lambda: monkeypatch.delitem(sys.modules, "tests_gone")


def unread(payload: bytes) -> Any:
    return loads_allowed(payload, AnyNames())


def test_a_value_of_the_users_classes_stays_as_it_was(there):
    order = Order("a")
    order.more = [order, Point(1, (order,)), Color.RED]
    ordered = OrderedDict(a=Point(1, 2), b={Color.RED: Odd(1, [2])})
    values = [order, ordered, Kept(4), Point, dt.datetime(2024, 1, 2, tzinfo=ZoneInfo("Europe/Rome")), Decimal("1.5")]
    payload = pickle.dumps(values, 5)
    there()
    loaded = unread(payload)
    assert [isinstance(value, Opaque) for value in loaded] == [True, True, True, False, False, False]
    assert loaded[4:] == values[4:]
    assert repr(loaded[0]) == "<tests_gone.Order>"
    again = pickled(loaded)
    assert pickled(unread(again)) == again
    sys.modules["tests_gone"] = gone
    read = pickle.loads(again)
    assert read[1:] == values[1:] and type(read[1]) is OrderedDict and read[1]["b"][Color.RED].name == "odd"
    assert read[0].item == "a" and read[0].more[0] is read[0] and read[0].more[1] == Point(1, (read[0],))


def test_equal_keys_of_the_users_classes_are_equal(there):
    payloads = [pickle.dumps(value, 5) for value in (Point(1, "a"), Point(1, "a"), Point(2, "a"), Order("a"))]
    there()
    names = AnyNames()
    first, same, other, order = (loads_allowed(payload, names) for payload in payloads)
    assert first == same and hash(first) == hash(same) and len({first, same, other, order}) == 3
    assert pickled(first) == pickled(same) != pickled(other)


def test_objects_with_other_contents_that_cannot_be_hashed(there):
    nan = float("nan")
    contents = [[1, {2}, {"a": [3]}, nan, bytearray(b"b"), Point(1, [2])], [1, {2}, {"a": [4]}, nan, bytearray(b"b")]]
    payloads = [pickle.dumps(Point(1, content), 5) for content in (contents[0], contents[0], contents[1])]
    there()
    names = AnyNames()
    first, same, other = (loads_allowed(payload, names) for payload in payloads)
    assert first == same and hash(first) == hash(same) and first != other and hash(first) != hash(other)


def test_keys_that_contain_themselves(there):
    payload = pickle.dumps({Node(): 1}, 5)
    there()
    names = AnyNames()
    first, same = (next(iter(loads_allowed(payload, names))) for _ in range(2))
    assert first == same and hash(first) == hash(same)


def test_names_that_are_not_there_are_pickled(there):
    values = [Point(n, [Color.RED, Order("a"), OrderedDict(a=Kept(n))]) for n in range(3)]
    payload = pickle.dumps([values, Point, Odd(1, [2])], 5)
    there()
    again = pickled(unread(payload))
    sys.modules["tests_gone"] = gone
    assert pickle.loads(again)[0] == pickle.loads(payload)[0] == values
    assert pickle.loads(again)[1] is Point


def test_a_uuid_is_one_without_any_class_at_hand():
    value = UUID(int=2**127 + 5)
    loaded = unread(pickle.dumps({value: (value, 1)}, 5))
    assert loaded == {value: (value, 1)} and hash(loaded[value][0]) == hash(value)


def test_nothing_runs():
    class Trap:
        def __reduce__(self) -> Any:
            return (exec, ("import tests.state.inspect.test_view as t; t.gone.sprung = True",))

    store = MemoryChunkStore()
    backend = KeyedStateBackend("op")
    state = backend.get_state(ValueStateDescriptor("a"))
    backend.seal()
    log = StateLog(LogIdentity("op", 0, 1, 128), backend)
    log.sync(store)
    backend.set_current_key("k")
    state.update(Trap())
    log.commit(store, {"operators": {"op": Trap()}})
    result = shown(store)
    assert repr(result["k"]["state/a"]) == "<builtins.exec>"
    assert repr(LogView(store, 7).task_state()["operators"]["op"]) == "<builtins.exec>"
    assert pickled(result["k"]["state/a"])
    assert not hasattr(gone, "sprung")


def test_rows_are_rows():
    loaded = unread(dumps([Row.of(a=1, b=[Row.of(c=dt.date(2024, 1, 2))])]))
    assert loaded == [Row.of(a=1, b=[Row.of(c=dt.date(2024, 1, 2))])] and loaded[0].b[0].c == dt.date(2024, 1, 2)
