from __future__ import annotations

import gc
import pickle
import random
import threading
import weakref

import numpy as np
import pytest

from pillarbox._errors import CheckpointMismatchError, OperatorError
from pillarbox._state.chunks.head import FORMAT, META, LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.log import limits
from pillarbox._state.log.state_log import StateLog, Sync

KINDS = {"value": ValueStateDescriptor, "list": ListStateDescriptor, "map": MapStateDescriptor}


class Task:
    """State backend and log of a program. Keyword arguments declare its states: ``total="value"``, ``items="list"``."""

    def __init__(self, store, identity=None, **states):
        self.store = store
        self.backend = KeyedStateBackend("op")
        self.states = {name: self.backend.get_state(KINDS[kind](name)) for name, kind in states.items()}
        self.backend.seal()
        self.log = StateLog(identity or LogIdentity("op", 0, 2, 128, (("op", 1, 1),)), self.backend)
        self.sync = self.log.sync(store)

    def put(self, key, **values):
        self.backend.set_current_key(key)
        for name, value in values.items():
            self.states[name].update(value)

    def commit(self):
        self.log.commit(self.store, {})
        return self

    def get(self, name):
        results = {}
        for key in list(self.backend.rows):
            self.backend.set_current_key(key)
            value = self.states[name].value()
            if value is not None:
                results[key] = value
        return results


def written(count=3, **states):
    task = Task(MemoryChunkStore(), **(states or {"a": "value"}))
    for key in range(count):
        task.put(key, a=key)
    return task.commit().store


# -- refusals --


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        (
            LogIdentity("other", 0, 2, 128, (("other", 1, 1), ("op", 2, 1))),
            ["state of operator 'op'", "program has 'other'", "uid()"],
        ),
        (
            LogIdentity("op", 0, 3, 128, (("op", 1, 1),)),
            ["written with 2 subtasks", "runs with 3", "set_parallelism(2)"],
        ),
        (LogIdentity("op", 0, 2, 256, (("op", 1, 1),)), ["written with 128 key groups", "runs with 256"]),
        (
            LogIdentity("op", 0, 2, 128, (("op", 1, 1),), codes=2),
            ["subtasks by scheme 0 of codes", "by scheme 2: run the version of pillarbox that wrote it"],
        ),
        (LogIdentity("op", 1, 2, 128, (("op", 1, 1),)), ["state of subtask 0 in the place of subtask 1"]),
    ],
)
def test_the_state_of_something_else_is_refused(identity, words):
    with pytest.raises(CheckpointMismatchError) as caught:
        Task(written(), identity, a="value")
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_program_that_lost_an_operator_is_refused():
    task = Task(MemoryChunkStore(), LogIdentity("op", 0, 2, 128, (("gone", 1, 1), ("op", 2, 2))), a="value")
    task.put(1, a=1)
    with pytest.raises(CheckpointMismatchError, match="state of 'gone', which the program does not have"):
        Task(task.commit().store, a="value")


def test_an_operator_that_moved_is_refused():
    """Under Spark its state would not be found, because the store's key is the operator's position."""
    with pytest.raises(CheckpointMismatchError, match="holds state of 'op', which the program has in another place"):
        Task(written(), LogIdentity("op", 0, 2, 128, (("new", 1, 1), ("op", 2, 1))), a="value")


def test_a_removed_state_is_refused():
    with pytest.raises(CheckpointMismatchError, match="holds value 'a' of operator 'op', which the program does not"):
        Task(written(), b="value")


def test_a_state_of_another_kind_is_refused():
    with pytest.raises(
        CheckpointMismatchError, match="'a' of operator 'op' as value state, the program declares it as"
    ):
        Task(written(), a="list")


@pytest.mark.parametrize(
    ("number", "advice"), [(FORMAT + 1, "update"), (FORMAT - 1, "run the version .* that wrote it")]
)
def test_another_format_is_refused(number, advice):
    store = written()
    meta = bytearray(store.chunks[META])
    meta[len(b"pillarbox")] = number
    store.chunks[META] = bytes(meta)
    with pytest.raises(CheckpointMismatchError, match=f"format {number}.*reads format {FORMAT}: {advice}"):
        Task(store, a="value")


def test_what_is_not_pillarboxs_is_refused():
    store = written()
    store.chunks[META] = pickle.dumps({"hello": "world"})
    with pytest.raises(
        CheckpointMismatchError, match="'op', subtask 0: the state at hand was not written by pillarbox"
    ):
        Task(store, a="value")


def test_a_missing_chunk_is_named():
    store = written()
    store.remove(1)
    sentence = r"operator 'op', subtask 0: chunk 1 of the state, of epoch 1 and \d+ bytes, is missing in the checkpoint"
    with pytest.raises(CheckpointMismatchError, match=sentence):
        Task(store, a="value")


# -- programs that change --


@pytest.mark.parametrize("states", [("a", "b"), ("b", "a"), ("b", "a", "c")])
def test_an_added_state_starts_empty(states):
    store = written()
    for _ in range(3):
        task = Task(store, **dict.fromkeys(states, "value"))
        assert task.sync is Sync.LOADED
        assert task.get("a") == {0: 0, 1: 1, 2: 2}
        task.put(1, b=10)
        task.commit()
        assert task.get("b") == {1: 10}
    task = Task(store, **dict.fromkeys((*states, "d"), "value"))
    assert (task.get("a"), task.get("b"), task.get("d")) == ({0: 0, 1: 1, 2: 2}, {1: 10}, {})


def test_layouts_are_forgotten_with_their_chunks(monkeypatch):
    monkeypatch.setattr(limits, "CHUNK_ROWS", 2)
    monkeypatch.setattr(limits, "SLACK_BYTES", 100)
    store = written(count=3)
    task = Task(store, b="value", a="value")
    assert len(task.log.contents.layouts.keys._layouts) == 1
    for epoch in range(30):
        task.put(epoch % 3, a=epoch, b=epoch)
        task.commit()
    assert len(task.log.contents.layouts.keys._layouts) == 1
    again = Task(store, b="value", a="value")
    assert again.get("a") == again.get("b") == {0: 27, 1: 28, 2: 29}


# -- writes --


def test_an_epoch_costs_what_it_touches():
    few, many = Task(written(count=10), a="value"), Task(written(count=20_000), a="value")
    costs = []
    for task in (few, many):
        for key in range(5):
            task.put(key, a=-1)
        costs.append(task.commit().log.bytes_written)
    assert costs[1] < costs[0] + 200
    for task in (few, many):
        task.commit()
        assert task.log.bytes_written < 500  # nothing touched: the meta entry alone


def test_reading_costs_nothing():
    task = Task(written(count=100), a="value")
    for key in range(200):
        task.backend.set_current_key(key)
        assert task.states["a"].value() == (key if key < 100 else None)
    assert task.commit().log.bytes_written < 500
    assert len(task.backend.rows) == 100


def test_all_that_was_written_can_be_removed():
    task = Task(written(count=1000), a="value")
    for key in range(1000):
        task.put(key, a=None)
    task.commit()
    assert not task.backend.rows
    for epoch in range(20):
        task.put("x", a=epoch)
        task.commit()
    assert sum(map(len, task.store.chunks.values())) < 25_000
    assert Task(task.store, a="value").get("a") == {"x": 19}


def test_a_key_that_comes_and_goes_within_an_epoch_is_never_written():
    task = Task(MemoryChunkStore(), a="value")
    task.put(1, a=1)
    task.put(1, a=None)
    task.commit()
    assert list(task.store.chunks) == [META]


def test_removed_and_set_again_across_epochs():
    task = Task(MemoryChunkStore(), a="value")
    for value in (1, None, 2, None, None, 3):
        task.put("k", a=value)
        task.commit()
        assert Task(task.store, a="value").get("a") == ({} if value is None else {"k": value})


def test_rows_that_cleaning_moved_and_that_change_again(monkeypatch):
    monkeypatch.setattr(limits, "CHUNK_ROWS", 64)
    monkeypatch.setattr(limits, "GATHERING", 10**6)
    monkeypatch.setattr(limits, "SLACK_BYTES", 100)
    task = Task(MemoryChunkStore(), a="value")
    expected = {}
    being_cleaned = 0
    for key in range(64):
        expected[key] = 0
        task.put(key, a=0)
    task.commit()
    # Until cleaning begins with the first chunk, its last keys change; then the keys that it has moved.
    for epoch, key in enumerate([61, 62, 63] * 6 + [0, 0, 1, 0], 1):
        expected[key] = epoch
        task.put(key, a=epoch)
        task.commit()
        assert Task(task.store, a="value").get("a") == expected
        being_cleaned += 1 in task.store.chunks and task.log.contents.head.cleaned > 0
    assert being_cleaned > 1, being_cleaned


def test_large_rows_go_into_small_chunks():
    task = Task(MemoryChunkStore(), a="value")
    for key in range(60):
        task.put(key, a=bytes(100_000))
    task.commit()
    assert max(map(len, task.store.chunks.values())) < 3 * 1024 * 1024
    assert len(Task(task.store, a="value").get("a")) == 60


def test_values_that_do_not_compare_to_a_bool():
    task = Task(MemoryChunkStore(), a="value", b="value")
    task.put(1, a=np.arange(3))
    task.put(2, b=np.arange(3))
    again = Task(task.commit().store, a="value", b="value")
    assert again.get("a")[1].tolist() == again.get("b")[2].tolist() == [0, 1, 2]


def test_values_that_cannot_be_written_are_named():
    task = Task(MemoryChunkStore(), a="value", b="value")
    task.put(1, a=1)
    task.put("guilty", a=1, b=threading.Lock())
    with pytest.raises(OperatorError, match=r"'op': the value state 'b' of key 'guilty' cannot be written: TypeError"):
        task.commit()


@pytest.mark.parametrize("kind", ["value", "map"])
def test_a_value_that_spark_does_not_take_is_named(monkeypatch, kind):
    monkeypatch.setattr(limits, "VALUE_BYTES", 2_000_000)
    task = Task(MemoryChunkStore(), a="value", m="map")
    task.backend.set_current_key("fits")
    task.states["a"].update(bytes(1_900_000))
    task.commit()
    task.backend.set_current_key("k")
    if kind == "value":
        task.states["a"].update(bytes(2_100_000))
    else:
        task.states["m"].put_all({"small": 1, "large": bytes(2_100_000)})
    with pytest.raises(OperatorError) as caught:
        task.commit()
    message = str(caught.value)
    of = "the value state 'a'" if kind == "value" else "an element, 'large', of the map state 'm'"
    assert message.startswith(f"operator 'op': {of} of key 'k' cannot be written: it takes 21000"), message
    assert "Spark takes no value of more than 2000000: keep it in a map or list state" in message


class RefusesOnce:
    tries = 0

    def __reduce__(self):
        RefusesOnce.tries += 1
        if RefusesOnce.tries == 1:
            raise OSError("not now")
        return RefusesOnce, ()


def test_an_error_of_writing_that_does_not_come_again_has_its_cause():
    task = Task(MemoryChunkStore(), a="value")
    task.put(1, a=RefusesOnce())
    with pytest.raises(OperatorError, match=r"'op': the epoch's state cannot be written: OSError: not now") as caught:
        task.commit()
    assert isinstance(caught.value.__cause__, OSError)


# -- several residents --


def test_a_task_that_goes_on_does_not_read_its_own_head_again(monkeypatch):
    store = MemoryChunkStore()
    first = Task(store, n="value")
    first.put("k", n=1)
    first.commit()
    second = Task(store, n="value")
    monkeypatch.setattr("pillarbox._state.log.state_log.read_head", None)
    assert first.log.sync(store) is second.log.sync(store) is Sync.IN_STEP
    monkeypatch.undo()
    # Another attempt at the epoch, or a damaged head, has different bytes.
    second.put("k", n=2)
    first.put("k", n=2)
    before = dict(store.chunks)
    first.commit()
    head = store.chunks[META]
    store.chunks.update(before)
    second.commit()
    assert first.log.sync(store) is Sync.OUT_OF_STEP and second.log.sync(store) is Sync.IN_STEP
    store.chunks[META] = head[:-1] + bytes([head[-1] ^ 1])
    with pytest.raises(CheckpointMismatchError, match="digest"):
        first.log.sync(store)


def test_the_ways_to_stand_to_a_store():
    store = MemoryChunkStore()
    first, second = Task(store, a="value"), Task(store, a="value")
    assert first.sync is second.sync is Sync.IN_STEP
    first.put(1, a=1)
    first.commit()
    assert first.log.sync(store) is Sync.IN_STEP
    # Another task has written, so the task is recreated, even if it began without state.
    assert second.log.sync(store) is Sync.OUT_OF_STEP
    second = Task(store, a="value")
    assert second.sync is Sync.LOADED
    first.put(1, a=None)
    first.put(3, a=3)
    first.commit()
    before = store.bytes_put
    assert second.log.sync(store) is Sync.OUT_OF_STEP
    assert store.bytes_put == before and second.get("a") == {1: 1}
    second = Task(store, a="value")
    assert second.sync is Sync.LOADED and second.get("a") == first.get("a") == {3: 3}
    second.put(4, a=4)
    second.log.commit(store.copy(), {})
    assert second.log.sync(store) is Sync.OUT_OF_STEP


def test_a_small_restore_leaves_garbage_in_the_collectors_sight():
    class Ring:
        def __init__(self):
            self.itself = self

    store = written()
    gc.disable()
    try:
        ring = Ring()
        gone = weakref.ref(ring)
        del ring
        assert Task(store, a="value").sync is Sync.LOADED
        gc.collect(0)
    finally:
        gc.enable()
    assert gone() is None


def test_an_uncommitted_first_epoch_is_noticed():
    task = Task(MemoryChunkStore(), a="value")
    task.put(1, a=1)
    task.log.commit(MemoryChunkStore(), {})
    assert task.log.sync(task.store) is Sync.OUT_OF_STEP


def test_a_log_that_was_empty_goes_on(monkeypatch):
    monkeypatch.setattr(limits, "SLACK_BYTES", 0)
    monkeypatch.setattr(limits, "SPARE_CHUNKS", 0)
    store = written(count=1)
    task = Task(store, a="value")
    task.put(0, a=None)
    task.commit()
    task.put(1, a=1)
    task.put(1, a=None)
    task.commit()
    assert [number for number in store.chunks if number > 0] == []
    other = Task(store, a="value")
    other.put(1, a=1)
    other.commit()
    assert Task(store, a="value").get("a") == {1: 1}


def test_an_attempt_that_was_not_committed_never_looks_like_the_one_that_was():
    store = MemoryChunkStore()
    lost, committed = Task(store, a="value"), Task(store, a="value")
    random.seed(7)
    lost.put("k", a="lost")
    lost.log.commit(store.copy(), {})
    random.seed(7)
    committed.put("k", a="committed")
    committed.commit()
    assert lost.log.sync(store) is Sync.OUT_OF_STEP


def true_size(task):
    return sum(len(pickle.dumps((key, row), 5)) for key, row in task.backend.rows.items())


@pytest.mark.parametrize("seed", range(5))
def test_the_size_of_the_state_is_known_about(seed):
    order = random.Random(seed)
    store = MemoryChunkStore()
    task = Task(store, a="value")
    for epoch in range(60):
        for _ in range(200):
            task.put(order.randrange(1_000 if epoch < 40 else 100), a="x" * order.randrange(200))
        task.commit()
        if epoch % 7 == 0:
            assert Task(store, a="value").log.state_bytes == pytest.approx(task.log.state_bytes, rel=0.02)
        assert task.log.state_bytes == pytest.approx(true_size(task), rel=0.3)
    assert Task(store, a="value").log.state_bytes == pytest.approx(task.log.state_bytes, rel=0.02)
    for key in list(task.backend.rows):
        task.put(key, a=None)
    task.commit()
    assert task.log.state_bytes < 100


def test_the_size_of_an_empty_state_is_nothing():
    assert Task(MemoryChunkStore(), a="value").commit().log.state_bytes == 0


def test_chunks_that_hold_nothing_current_go_at_once():
    task = Task(MemoryChunkStore(), a="value")
    for number in range(10):
        task.put("k", a="x" * number)
        task.put(number, a=number)
        task.commit()
        for key in range(number + 1):
            task.backend.set_current_key(key)
            task.states["a"].clear()
    for _ in range(20):
        task.put("k", a="x")
        task.commit()
        assert Task(task.store, a="value").get("a") == {"k": "x"}
    assert len(task.store.chunks.keys() - {META}) <= 2
