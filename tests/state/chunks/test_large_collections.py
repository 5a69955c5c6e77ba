"""Large maps and lists. An epoch writes only changed elements, and reads return the stored content."""

from __future__ import annotations

import copy
import pickle
import random
import re
import threading
import zlib
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from pillarbox._errors import CheckpointMismatchError, OperatorError
from pillarbox._state.chunks.head import META, LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.log import large_collections, limits
from pillarbox._state.log.state_log import StateLog, Sync

MANY = 50_000


class Task:
    def __init__(self, store=None, *, states=("value", "map", "list")):
        self.store = MemoryChunkStore() if store is None else store
        self.backend = KeyedStateBackend("op")
        kinds = {"map": MapStateDescriptor, "list": ListStateDescriptor}
        self.states = {name: self.backend.get_state(kinds.get(name, ValueStateDescriptor)(name)) for name in states}
        self.backend.seal()
        self.log = StateLog(LogIdentity("op", 0, 1, 128), self.backend)
        self.sync = self.log.sync(self.store)

    def __getitem__(self, key):
        self.backend.set_current_key(key)
        return self.states

    def commit(self):
        self.log.commit(self.store, {})
        return self.log.bytes_written

    def view(self):
        seen = {}
        for key in list(self.backend.rows):
            states = self[key]
            result = (states["value"].value(), list(states["map"].items()), list(states["list"]))
            if result != (None, [], []):
                seen[key] = result
        return seen


def size(store):
    return sum(map(len, store.chunks.values()))


# -- an epoch's writes and costs --


@pytest.fixture(scope="module")
def many():
    task = Task()
    task["k"]["map"].put_all({n: n for n in range(MANY)})
    task["k"]["list"].add_all(range(MANY))
    task.commit()
    return task.store


def test_a_change_of_a_large_map_or_list_writes_what_it_changes(many):
    task = Task(many.copy())
    costs = []
    for change in (
        lambda: task["k"]["map"].put(MANY // 2, "other"),
        lambda: task["k"]["map"].put("new", 1),
        lambda: task["k"]["map"].remove(7),
        lambda: task["k"]["list"].add("new"),
        lambda: task["k"]["value"].update(1),
        lambda: task["k"]["map"].put_all({1: 2, 3: 4}),
        lambda: task["k"]["list"].add_all([5, 6]),
    ):
        change()
        costs.append(task.commit())
    assert max(costs) < 2_000, costs
    expected: dict[Any, Any] = {n: n for n in range(MANY) if n != 7}
    expected.update({MANY // 2: "other", "new": 1, 1: 2, 3: 4})
    again = Task(task.store)
    assert list(again["k"]["map"].items()) == list(expected.items())
    assert list(again["k"]["list"]) == [*range(MANY), "new", 5, 6]
    assert again.log.state_bytes == pytest.approx(task.log.state_bytes, rel=0.02)


def test_reading_writes_nothing_of_it(many):
    task = Task(many.copy())
    states = task["k"]
    assert (states["map"].get(5), len(list(states["map"].items())), sum(states["list"])) == (5, MANY, sum(range(MANY)))
    assert task.commit() < 1_000


@pytest.mark.parametrize("how", ["clear", "update", "remove the key"])
def test_what_goes_as_a_whole_is_named_in_few_bytes(many, how):
    task = Task(many.copy())
    states = task["k"]
    if how == "update":
        states["list"].update([1, 2])
        states["map"].clear()
        states["map"].put("a", 1)
    else:
        states["list"].clear()
        states["map"].clear()
        if how == "clear":
            states["value"].update(0)
    assert task.commit() < 3 * 2 * MANY
    left = {
        "clear": {"k": (0, [], [])},
        "update": {"k": (None, [("a", 1)], [1, 2])},
        "remove the key": {},
    }
    assert task.view() == Task(task.store).view() == left[how]
    for n in range(40):
        task["other"]["value"].update(n)
        task.commit()
    assert size(task.store) < 1_100_000  # (nothing in it: the log may be longer by this much)


def test_a_value_that_was_changed_in_place_is_written_when_it_is_put(many):
    task = Task(many.copy())
    states = task["k"]
    states["map"].put("x", [1])
    task.commit()
    states["map"].get("x").append(2)
    states["map"].put(1, 0)
    task.commit()
    assert Task(task.store)["k"]["map"].get("x") == [1]
    states["map"].put("x", states["map"].get("x"))
    task.commit()
    assert Task(task.store)["k"]["map"].get("x") == [1, 2]


def test_a_large_map_is_bounded_while_it_changes():
    task = Task()
    states = task["k"]
    for epoch in range(200):
        for n in range(50):
            states["map"].put((epoch, n), "x" * 20)
            if epoch >= 100:
                states["map"].remove((epoch - 100, n))
        states["list"].add(epoch)
        cost = task.commit()
        assert cost < 40_000
    live = len(pickle.dumps((dict(states["map"].items()), list(states["list"])), 5))
    assert size(task.store) < 2 * live + 4 * 1024 * 1024
    collection = task.log.contents.collections.get("k", 3)
    assert collection is not None and len(collection.entries) <= 101 * 50  # places are used again
    assert Task(task.store).view() == task.view()


# -- from small to large, and back --


def test_a_program_without_large_maps_and_lists_writes_nothing_new():
    task = Task()
    for n in range(50):
        task[n]["map"].put_all(dict.fromkeys(range(100), "x" * 20))
        task[n]["list"].add_all(range(300))
    task.commit()
    for number, payload in task.store.chunks.items():
        if number > META:
            assert not {"apart", "elements", "element_weights"} & pickle.loads(payload).keys()
    assert not task.log.contents.collections._of


def test_it_leaves_its_row_when_it_grows_and_comes_back_when_it_shrinks():
    task = Task()
    states = task["k"]
    states["value"].update("v")
    states["map"].put_all({n: n for n in range(100)})
    task.commit()
    assert not task.log.contents.collections._of
    for n in range(100, 10_000):
        states["map"].put(n, n)
        states["list"].add(n)
    task.commit()
    assert set(task.log.contents.collections._of["k"]) == {3, 4}
    assert Task(task.store).view() == task.view()
    for n in range(9_950):
        states["map"].remove(n)
    states["list"].update([1, 2, 3])
    task.commit()
    assert not task.log.contents.collections._of
    assert type(task.backend.rows["k"][3]) is dict
    assert task.view() == Task(task.store).view() == {"k": ("v", [(n, n) for n in range(9_950, 10_000)], [1, 2, 3])}


def test_the_order_of_a_map_outlives_restarts():
    task = Task()
    order = random.Random(4)
    model: dict[int, float] = {}
    for _ in range(12):
        states = task["k"]
        for _ in range(2_000):
            key = order.randrange(6_000)
            if order.random() < 0.2:
                model.pop(key, None)
                states["map"].remove(key)
            else:
                model[key] = states["map"][key] = order.random()
        task.commit()
        task = Task(task.store)
        assert list(task["k"]["map"].items()) == list(model.items())


def test_keys_that_are_equal_stay_as_they_were_put_first():
    task = Task()
    task["k"]["map"].put_all(dict.fromkeys(range(5000), "x" * 20))
    task.commit()
    task["k"]["map"].put(True, "one")
    task["k"]["map"].put(2.0, "two")
    task.commit()
    first = list(Task(task.store)["k"]["map"].items())[:3]
    assert repr(first) == repr([(0, "x" * 20), (1, "one"), (2, "two")])


def test_states_that_are_added_and_moved():
    task = Task(states=("value", "map", "list"))
    task["k"]["map"].put_all({n: n for n in range(10_000)})
    task["k"]["list"].add_all(range(10_000))
    task.commit()
    more = Task(task.store, states=("list", "more", "value", "map"))
    more["k"]["map"].put("new", 1)
    more["k"]["more"].update(5)
    more["k"]["list"].add("new")
    more.commit()
    again = Task(task.store, states=("map", "list", "value", "more"))
    states = again["k"]
    assert list(states["map"].items()) == [*((n, n) for n in range(10_000)), ("new", 1)]
    assert (list(states["list"]), states["more"].value()) == ([*range(10_000), "new"], 5)


# -- large elements, and unreadable or unwritable ones --


def test_a_large_element_lies_beside_the_log_and_is_written_once():
    task = Task()
    states = task["k"]
    states["map"].put_all({"small": 1, "large": bytes(600_000), "other": bytes(700_000)})
    states["list"].add_all([bytes(600_000), 1])
    task.commit()
    assert sorted(task.store.chunks) == [-3, -2, -1, 0, 1]
    for n in range(100):
        states["map"].put("small", n)
        states["list"].add(n)
        assert task.commit() < 5_000
    assert Task(task.store).view() == task.view()
    states["map"].put("large", bytes(650_000))
    states["map"].remove("other")
    task.commit()
    assert len([number for number in task.store.chunks if number < 0]) == 2
    assert task.view() == Task(task.store).view()


class Opaque:
    def __reduce__(self):
        return bytes, (3_000_000,)


def test_elements_whose_size_does_not_show():
    task = Task()
    task["k"]["map"].put_all(dict.fromkeys(range(1000), "x" * 100))
    task["k"]["map"].put("opaque", Opaque())
    task.commit()
    assert max(len(payload) for number, payload in task.store.chunks.items() if number > META) < 3_000_000
    assert Task(task.store)["k"]["map"].get("opaque") == bytes(3_000_000)


def test_an_element_that_cannot_be_written_is_named():
    task = Task()
    task["k"]["map"].put_all({n: n for n in range(10_000)})
    task["k"]["map"].put("it", threading.Lock())
    with pytest.raises(OperatorError, match=r"'op': the map state 'map' of key 'k' cannot be written: TypeError"):
        task.commit()


def test_elements_that_are_missing_are_noticed():
    task = Task()
    task["k"]["list"].add_all(range(10_000))
    task.commit()
    last = max(task.store.chunks)
    content = pickle.loads(task.store.chunks[last])
    ((address, slot, ordinals, names, values),) = content["elements"]
    assert (address, slot, ordinals[1:], names) == (("k",), 3, (0, b""), None)
    content["elements"] = [(address, slot, (ordinals[0] + 1, *ordinals[1:]), names, values)]
    task.store.chunks[last] = chunk = pickle.dumps(content, 5)
    head = pickle.loads(task.store.chunks[META][15:])
    body = pickle.dumps({**head, "newest": (len(chunk), zlib.crc32(chunk), 1)}, 5)
    task.store.chunks[META] = task.store.chunks[META][:11] + zlib.crc32(body).to_bytes(4, "little") + body
    with pytest.raises(
        CheckpointMismatchError,
        match=re.escape("the list state 'list' of key 'k' has not its 10000 elements, but 10000, in other places"),
    ):
        Task(task.store)


# -- against plain dicts and lists --

NAMES = st.integers(0, 11)
VALUES = st.integers(0, 3) | st.sampled_from(["x" * 30, b"y" * 300, (1, 2)])
KEYS = st.integers(0, 2)
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), KEYS, NAMES, VALUES),
    st.tuples(st.just("put"), KEYS, NAMES, VALUES),
    st.tuples(st.just("put_all"), KEYS, st.dictionaries(NAMES, VALUES, max_size=12)),
    st.tuples(st.just("remove"), KEYS, NAMES),
    st.tuples(st.just("remove"), KEYS, NAMES),
    st.tuples(st.just("clear map"), KEYS),
    st.tuples(st.just("add"), KEYS, VALUES),
    st.tuples(st.just("add_all"), KEYS, st.lists(VALUES, max_size=12)),
    st.tuples(st.just("update"), KEYS, st.lists(VALUES, max_size=12)),
    st.tuples(st.just("clear list"), KEYS),
    st.tuples(st.just("value"), KEYS, st.none() | VALUES),
)


def apply(states, model, operation):
    what, _, *arguments = operation
    if what in ("put", "put_all", "remove"):
        getattr(states["map"], what)(*arguments)
        if what == "remove":
            model["map"].pop(arguments[0], None)
        else:
            model["map"].update({arguments[0]: arguments[1]} if what == "put" else arguments[0])
    elif what in ("add", "add_all", "update"):
        getattr(states["list"], what)(*arguments)
        model["list"] = (model["list"] if what != "update" else []) + (arguments if what == "add" else arguments[0])
    elif what == "value":
        states["value"].update(*arguments)
        model["value"] = arguments[0]
    else:
        kind = what.removeprefix("clear ")
        states[kind].clear()
        model[kind] = {"map": {}, "list": []}[kind]


class LargeCollectionsMachine(RuleBasedStateMachine):
    """Two workers take turns. Epochs succeed or are lost, and tasks restart at any time."""

    @initialize()
    def begin(self):
        self.store = MemoryChunkStore()
        self.model: dict[Any, Any] = {key: {"value": None, "map": {}, "list": []} for key in range(3)}
        self.tasks = [Task(self.store), Task(self.store)]

    def task(self, index):
        task = self.tasks[index]
        if task.log.sync(self.store) is Sync.OUT_OF_STEP:
            task = self.tasks[index] = Task(self.store)
        return task

    def check(self, task):
        model = {
            key: (states["value"], list(states["map"].items()), states["list"])
            for key, states in self.model.items()
            if any(value not in (None, {}, []) for value in states.values())
        }
        assert task.view() == model
        assert len(task.log.contents.large_values) == sum(number < META for number in self.store.chunks)
        collections = [slot for slots in task.log.contents.collections._of.values() for slot in slots.values()]
        rows = [row for row in task.backend.rows.values() if any(value is not None for value in row[2:])]
        assert task.log.contents.ledger.current == len(rows) + sum(
            len(collection.written()) for collection in collections
        )
        assert task.log.contents.ledger.log_bytes == size(self.store) - len(self.store.chunks.get(META, b""))

    def work(self, task, model, operations):
        for operation in operations:
            apply(task[operation[1]], model[operation[1]], operation)

    @rule(index=st.integers(0, 1), operations=st.lists(OPERATIONS, max_size=10))
    def epoch(self, index, operations):
        task = self.task(index)
        self.check(task)
        self.work(task, self.model, operations)
        task.commit()
        self.check(task)

    @rule(index=st.integers(0, 1), operations=st.lists(OPERATIONS, min_size=1, max_size=5))
    def lost_epoch(self, index, operations):
        task = self.task(index)
        self.work(task, copy.deepcopy(self.model), operations)
        task.log.commit(self.store.copy(), {})

    @rule(index=st.integers(0, 1))
    def restart(self, index):
        self.tasks[index] = Task(self.store)
        self.check(self.tasks[index])


@pytest.fixture(autouse=True)
def _small(monkeypatch, request):
    if request.cls is None:
        return
    monkeypatch.setattr(large_collections, "_LARGE", 100)
    monkeypatch.setattr(limits, "CHUNK_ROWS", 5)
    monkeypatch.setattr(limits, "SPARE_CHUNKS", 4)
    monkeypatch.setattr(limits, "GATHERING", 2)
    monkeypatch.setattr(limits, "SLACK_BYTES", 100)
    monkeypatch.setattr(limits, "CHUNK_BYTES", 250)


TestLargeCollections = LargeCollectionsMachine.TestCase


def test_large_maps_and_lists_of_namespaces():
    class Windows:
        def __init__(self, store):
            self.store = store
            self.backend = KeyedStateBackend("op")
            self.backend.get_state(MapStateDescriptor("other"))
            self.contents = self.backend.get_state(ListStateDescriptor("contents"), namespaced=True)
            self.counts = self.backend.get_state(MapStateDescriptor("counts"), namespaced=True)
            self.backend.seal()
            self.log = StateLog(LogIdentity("op", 0, 1, 128), self.backend)
            self.sync = self.log.sync(store)

        def at(self, namespace):
            self.backend.set_current_key("k")
            self.backend.set_current_namespace(namespace)
            return self

        def commit(self):
            self.log.commit(self.store, {})
            return self.log.bytes_written

        def view(self, namespace):
            self.at(namespace)
            return list(self.contents), list(self.counts.items())

    windows = Windows(MemoryChunkStore())
    windows.at((0, 10)).contents.add_all(range(20_000))
    windows.counts.put_all({n: n for n in range(20_000)})
    windows.at((10, 20)).contents.add("x")
    windows.commit()
    windows.at((0, 10)).contents.add("new")
    windows.counts.remove(7)
    assert windows.commit() < 2_000
    windows.at((10, 20)).contents.add_all(range(20_000))
    windows.commit()
    for state in (windows, Windows(windows.store)):
        assert state.view((0, 10)) == ([*range(20_000), "new"], [(n, n) for n in range(20_000) if n != 7])
        assert state.view((10, 20)) == (["x", *range(20_000)], [])
    windows.at((10, 20)).contents.merge_namespaces((0, 10), [(10, 20)])
    windows.commit()
    for state in (windows, Windows(windows.store)):
        assert state.view((0, 10))[0] == [*range(20_000), "new", "x", *range(20_000)]
        assert state.view((10, 20)) == ([], [])
    windows.at((0, 10)).contents.clear()
    windows.counts.clear()
    windows.commit()
    assert not list(Windows(windows.store).backend.get_keys())
