"""Invalid chunks with correct digests. Cold starts and inspections check the writer's guarantees."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox import CheckpointMismatchError
from pillarbox._state.chunks.chunk import _packed
from pillarbox._state.chunks.head import META, LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.inspect.view import LogView
from pillarbox._state.keys.addresses import namespace_address
from pillarbox._state.log.state_log import StateLog, Sync

Content = dict[str, Any]


class Task:
    def __init__(self, store: MemoryChunkStore) -> None:
        self.store = store
        self.backend = KeyedStateBackend("op")
        self.value: Any = self.backend.get_state(ValueStateDescriptor("v"))
        self.map: Any = self.backend.get_state(MapStateDescriptor("m"))
        self.list: Any = self.backend.get_state(ListStateDescriptor("l"))
        self.window: Any = self.backend.get_state(ValueStateDescriptor("w"), namespaced=True)
        self.backend.seal()
        self.log = StateLog(LogIdentity("op", 0, 1, 128), self.backend)
        self.sync = self.log.sync(store)

    def epoch(self, value: Any) -> Task:
        for key in range(4):
            self.backend.namespaces.enter(namespace_address(key, (key, key + 10)))
            self.value.update([value] * (1 + 300 * key))
            self.window.update(value)
        self.backend.set_current_key("large")
        self.value.update(bytes(600_000))
        self.backend.set_current_key("many")
        self.map.put_all({name: f"{value} {name}" * 20 for name in range(500)})
        self.list.add_all([f"{value} {name}" * 20 for name in range(500)])
        self.backend.set_current_key(("short-lived", value - 1))
        self.value.clear()
        self.backend.set_current_key(("short-lived", value))
        self.value.update(1)
        self.log.commit(self.store, {})
        return self


def loaded(store: MemoryChunkStore) -> None:
    Task(store)


def viewed(store: MemoryChunkStore) -> None:
    list(LogView(store, 0).rows())


def head_of(store: MemoryChunkStore) -> Content:
    head: Content = pickle.loads(store.chunks[META][15:])
    return head


def put_head(store: MemoryChunkStore, head: Content) -> None:
    body = pickle.dumps(head, 5)
    store.chunks[META] = store.chunks[META][:11] + zlib.crc32(body).to_bytes(4, "little") + body


def damaged_by(change: Callable[[Content], Any], number: int = 0) -> MemoryChunkStore:
    store = Task(MemoryChunkStore()).epoch(1).epoch(2).store
    head = head_of(store)
    newest = head["following"] - 1
    content = pickle.loads(store.chunks[newest])
    if number:
        (index,) = [index for index, (of, *_) in content["large"].items() if of == number]
        value = pickle.loads(store.chunks[number])
        change(value)
        store.chunks[number] = payload = pickle.dumps(value, 5)
        content["large"][index] = (number, len(payload), zlib.crc32(payload), 2)
    else:
        change(content)
    store.chunks[newest] = payload = pickle.dumps(content, 5)
    put_head(store, {**head, "newest": (len(payload), zlib.crc32(payload), 2)})
    return store


def rows_of(content: Content) -> list[Any]:
    return [row for row in content["rows"] if row is not None]


def renumber(content: Content) -> None:
    rows_of(content)[0][0] += 1


def swap(content: Content) -> None:
    row, next_row = rows_of(content)[:2]
    row[0], next_row[0] = next_row[0], row[0]


def renumber_a_namespaces(content: Content) -> None:
    content["spaces"][2][0][0] -= 1


def bend_large(content: Content) -> None:
    ((index, where),) = content["large"].items()
    content["large"] = {index + 1: where}


def no_number_below_zero(content: Content) -> None:
    ((index, (_, *mark)),) = content["large"].items()
    content["large"] = {index: (5, *mark)}


def bend_namespace(namespace: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        content["spaces"][1][2] = namespace

    return change


def bend_apart(counts: dict[int, int]) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        ((index, _),) = content["apart"].items()
        content["apart"] = {index: counts}

    return change


def bend_elements(at: int, value: Callable[[Any], Any]) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        first = list(content["elements"][0])
        first[at] = value(first[at])
        content["elements"][0] = tuple(first)

    return change


def replaced(*distances: int) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        import numpy as np

        width, steps = _packed(np.array(distances))
        content["replaced"] = (width, steps)

    return change


def set_to(name: str, value: Any) -> Callable[[Content], None]:
    return lambda content: content.__setitem__(name, value)


DAMAGES: dict[str, tuple[Callable[[Content], Any], str]] = {
    "a number": (renumber, "rows do not have the numbers from"),
    "two numbers": (swap, "rows do not have the numbers from"),
    "a number of a namespace's": (renumber_a_namespaces, "rows do not have the numbers from"),
    "a number that is none": (lambda content: rows_of(content)[0].__setitem__(0, None), "do not have the numbers"),
    "a key less": (lambda content: content["keys"].pop(), "lists of keys and rows have"),
    "a row more": (lambda content: content["rows"].append([0, None, None, None]), "lists of keys and rows have"),
    "a namespace less": (lambda content: content["spaces"][1].pop(), "lists of keys and rows have"),
    "a row of a namespace less": (lambda content: content["spaces"][2].pop(), "lists of keys and rows have"),
    "a slot less": (lambda content: rows_of(content)[0].pop(), "has not its 3 slots"),
    "a slot more": (lambda content: rows_of(content)[0].append(1), "has not its 3 slots"),
    "a namespace's slot more": (lambda content: content["spaces"][2][0].append(1), "has not its 1 slots"),
    "a row of another kind": (
        lambda content: content["rows"].__setitem__(0, tuple(content["rows"][0])),
        "a row in it is no list",
    ),
    "no keys": (lambda content: content.pop("keys"), "KeyError: 'keys'"),
    "keys of another kind": (set_to("keys", 5), "TypeError"),
    "another epoch": (set_to("epoch", 7), "it says that it is of epoch 7"),
    "a namespace of another kind": (bend_namespace((1.5, 2)), "a namespace in it is no plain value"),
    "a namespace of no kind": (bend_namespace([1]), "a namespace in it is no plain value"),
    "another large row": (bend_large, "another row of it is missing than lies next to it"),
    "a large row under a chunk's number": (no_number_below_zero, "under the number 5"),
    "no large row": (lambda content: content.pop("large"), "a row in it is no list"),
    "a size less": (lambda content: set_to("weights", content["weights"][4:])(content), "sizes of"),
    "half a size": (lambda content: set_to("weights", content["weights"][1:])(content), "ValueError"),
    "elements of a value": (bend_apart({1: 500}), "slot 1 of its row .* has no elements apart"),
    "elements of no slot": (bend_apart({9: 500}), "slot 9 of its row .* has no elements apart"),
    "elements of no row": (set_to("apart", {99: {2: 500}}), "it has no row 99"),
    "an element's key less": (bend_elements(3, lambda keys: keys[1:]), "have not one name and one ordinal each"),
    "a map without keys": (bend_elements(3, lambda keys: None), "elements in it are those of slot 2, which has none"),
    "a map in the slot of a list": (bend_elements(1, lambda slot: 3), "those of slot 3, which has none"),
    "elements in the slot of a value": (bend_elements(1, lambda slot: 1), "those of slot 1, which has none"),
    "an ordinal less than none": (bend_elements(2, lambda of: (-9, *of[1:])), "have not one name and one ordinal each"),
    "ordinals of fewer": (bend_elements(2, lambda of: (0, 1, b"\1\1")), "have not one name and one ordinal each"),
    "ordinals twice": (bend_elements(2, lambda of: (0, 1, bytes(499))), "have not one name and one ordinal each"),
    "it replaces itself": (replaced(0, 1), "it takes the place of entries that were not before it, or of one twice"),
    "it replaces one twice": (replaced(3, 3), "it takes the place of entries that were not before it, or of one twice"),
    "it replaces what never was": (replaced(10**9), "it takes the place of entries that were not before it"),
    "what it replaces is cut": (set_to("replaced", (4, b"123")), "ValueError"),
    "a mark of another kind": (set_to("before", (1, 2)), "TypeError"),
}


@pytest.mark.parametrize("read", [loaded, viewed])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_chunk_that_is_none_of_its_log_is_damaged(damage, read):
    change, words = DAMAGES[damage]
    store = damaged_by(change)
    with pytest.raises(CheckpointMismatchError, match=words) as caught:
        read(store)
    message = str(caught.value)
    assert "operator 'op', subtask 0: chunk 2 of the state is not as it was written (" in message, message
    assert "the checkpoint is damaged; start from an older copy of it, or from a new one" in message


def test_what_is_not_damaged_is_read():
    store = damaged_by(lambda content: None)
    assert Task(store).sync is Sync.LOADED
    assert list(LogView(store, 0).rows())


LARGE: dict[str, tuple[Callable[[Content], Any], str]] = {
    "a slot less": (lambda content: content["row"].pop(), "has not its 3 slots"),
    "no slots": (lambda content: content.pop("slots"), "it is no row"),
    "an element": (lambda content: content.update(element=1), "it is no row"),
}


@pytest.mark.parametrize("read", [loaded, viewed])
@pytest.mark.parametrize("damage", LARGE)
def test_a_large_row_that_is_none_is_damaged(damage, read):
    change, words = LARGE[damage]
    store = damaged_by(change, -2)
    with pytest.raises(
        CheckpointMismatchError, match=rf"large row 2 of the state is not as it was written \(.*{words}"
    ):
        read(store)


@pytest.mark.parametrize("read", [loaded, viewed])
def test_two_chunks_that_take_the_place_of_the_same_entry_are_damaged(read):
    task = Task(MemoryChunkStore()).epoch(1).epoch(2)
    task.backend.set_current_key(0)
    task.value.update(0)
    task.log.commit(task.store, {})
    head = head_of(task.store)
    newest = head["following"] - 1
    content = pickle.loads(task.store.chunks[newest])
    # (The entries of the second chunk begin where the first chunk's end: it took the place of the very first.)
    replaced(head["entry"] - 1)(content)
    task.store.chunks[newest] = payload = pickle.dumps(content, 5)
    put_head(task.store, {**head, "newest": (len(payload), zlib.crc32(payload), newest)})
    # It reads the newest chunk first: the second one that is read is wrong.
    words = "it takes the place of what another one does"
    with pytest.raises(CheckpointMismatchError, match=rf"chunk {newest - 1} of the state .*{words}"):
        read(task.store)


@pytest.mark.parametrize("read", [loaded, viewed])
@pytest.mark.parametrize(
    "numbers",
    [
        {"entries": 10**9},
        {"entries": -1},
        {"first": 0},
        {"first": 9},
        {"cleaned": 10**9},
        {"large": -3},
        {"version": 1.5},
        {"following": "3"},
        {"stamps": []},
    ],
)
def test_a_head_with_numbers_of_no_log_is_damaged(numbers, read):
    store = damaged_by(lambda content: None)
    put_head(store, {**head_of(store), **numbers})
    with pytest.raises(CheckpointMismatchError, match=r"the head of the state is not as it was written \(its numbers"):
        read(store)
