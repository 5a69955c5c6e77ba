"""The checkpoint format. Golden checkpoints can be read, and no checkpoint names a class that could move."""

from __future__ import annotations

import pickle
import pickletools
import re
import sys
import zlib
from dataclasses import dataclass, is_dataclass
from enum import Enum
from itertools import chain
from types import ModuleType
from typing import Any

import pytest

import pillarbox
from pillarbox import (
    AsyncFailure,
    CheckpointMismatchError,
    CircuitOpenError,
    CountWindow,
    DeadLetter,
    Duration,
    ExchangeError,
    GlobalWindow,
    OperatorError,
    OutputTag,
    Row,
    Time,
    TimeDomain,
    TimestampedValue,
    TimeWindow,
    TypeMismatchError,
)
from pillarbox._state.chunks.head import FORMAT, META, LogIdentity, read_head
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import MapStateDescriptor, ValueStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.log import limits
from pillarbox._state.log.state_log import StateLog, Sync
from tests.data import make_checkpoint as golden

GOLDEN = sorted(golden.HERE.glob("checkpoint-format-*.zip"))

# All names in checkpoints of programs without user classes in their states.
NAMED = {
    "pillarbox._unpickle.make",
    "pillarbox._unpickle.make_error",
    "pillarbox._unpickle.row_class",
    "datetime.date",
    "datetime.datetime",
    "datetime.timezone",
    "datetime.timedelta",
    "decimal.Decimal",
}


def names_in(payload):
    strings: list[str] = []
    memo: list[str] = []
    results = set()
    for opcode, argument, _ in pickletools.genops(payload):
        if opcode.name == "MEMOIZE":
            memo.append(strings[-1] if strings else "")
        elif opcode.name in ("BINGET", "LONG_BINGET"):
            strings.append(memo[argument or 0])
        elif opcode.name == "STACK_GLOBAL":
            results.add(".".join(strings[-2:]))
        elif opcode.name == "GLOBAL":
            results.add(str(argument).replace(" ", "."))
        elif isinstance(argument, str):
            strings.append(argument)
        elif isinstance(argument, bytes) and argument[:2] == b"\x80\x05":
            results |= names_in(argument)
        else:
            strings.append("")
    return results


def pickles_of(store):
    for number, payload in store.chunks.items():
        yield payload if number != META else payload[15:]


def pickles_of_all(path):
    for store in golden.load(path).values():
        yield from pickles_of(store)


def names_in_savepoint(savepoint):
    return set(chain.from_iterable(names_in(p) for store in savepoint.values() for p in pickles_of(store)))


def test_there_is_a_golden_checkpoint_of_each_format_and_kind():
    kinds = {f"checkpoint-format-{FORMAT}-{kind}" for kind in golden.KINDS if kind}
    assert {path.stem for path in GOLDEN} == {f"checkpoint-format-{FORMAT}"} | kinds


def test_the_golden_checkpoint_of_elements_has_some():
    chunks = [pickle.loads(payload) for payload in pickles_of_all(golden.HERE / "checkpoint-format-2-elements.zip")]
    groups = [group for chunk in chunks for group in chunk.get("elements", ())]
    assert {keys is None for _, _, _, keys, _ in groups} == {True, False}
    assert sum("apart" in chunk for chunk in chunks) > 5 < sum("element_weights" in chunk for chunk in chunks)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_golden_checkpoint_is_read(path):
    model = golden.Model()
    for records in golden.epochs():
        for record in records:
            model.apply(record)
    golden.release(True)
    savepoint = golden.load(path)
    keys = [golden.key(n) for n in range(golden.KEYS)]
    out_of_all: list[tuple[str, object, tuple[str, int]]] = []
    with golden.job(True, savepoint) as running:
        for epoch in range(2):
            running.reset()  # each is a cold start: the second one of this version's rewrite
            out = golden.push(running, [(key, "ask", None, 50_000 + epoch) for key in keys], bounded=epoch == 1)
            assert names_in_savepoint(running.savepoint()) <= NAMED
            out_of_all += out
    # Answers follow the carried requests' answers: in the first epoch, or in the last.
    answers = [(key, answer) for what, key, answer in out_of_all if what == "state"]
    assert sorted(answers, key=repr) == sorted([(key, model.answer(key)) for key in keys] * 2, key=repr)
    out = out_of_all
    slow = [(key, argument) for what, key, argument in out if what == "slow"]
    assert sorted(slow, key=repr) == sorted(model.slow, key=repr)
    event = [(key, at) for key, domain, at in model.timers if domain == "event"]
    fired = [(key, what[1]) for kind, key, what in out if kind == "timer" and what[0] == "EVENT_TIME"]
    assert sorted(fired, key=repr) == sorted(event, key=repr)
    assert len(event) > 10 < len(slow)


def test_a_checkpoint_names_nothing_of_pillarbox_but_what_stays():
    named = names_in_savepoint(golden.make())
    assert {name for name in named if name.startswith("pillarbox")} == {
        "pillarbox._unpickle.make",
        "pillarbox._unpickle.row_class",
    }
    assert named <= NAMED


def test_the_names_of_golden_checkpoints_are_these():
    for path in GOLDEN:
        assert names_in_savepoint(golden.load(path)) <= NAMED


VALUES = [
    Row.of(a=1, b=Row.of(c=2)),
    OutputTag("late"),
    AsyncFailure(1, "OSError: no", 2),
    Duration.of_seconds(5),
    Time.hours(-8),
    *TimeDomain,
    TimeWindow(0, 10),
    CountWindow(3),
    GlobalWindow(),
    TimestampedValue("x", 5),
    DeadLetter(1, "k", 2, "op", "OSError: no", "", TimeDomain.EVENT_TIME),
]
# Classes of records and other plain values that are about a program, and not in its records.
OF_PROGRAMS = {
    "AsyncCache",
    "Budget",
    "CircuitBreaker",
    "Program",
    "AsyncFallback",
    "RuntimeExecutionMode",
    "OperatorReport",
    "TaskReport",
    "TriggerResult",
    "TypeInformation",
    "WatermarkStrategy",
}
ERRORS = [OperatorError("it failed"), TypeMismatchError("no"), ExchangeError("gone"), CircuitOpenError("open")]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("protocol", [2, 5])
def test_values_of_public_classes_name_the_module_that_stays(value, protocol):
    payload = pickle.dumps(value, protocol)
    again = pickle.loads(payload)
    assert again == value
    assert type(again) is type(value)
    assert {n for n in names_in(pickle.dumps(value, 5)) if n.startswith("pillarbox")} <= NAMED


def test_these_are_all_public_classes_of_values():
    results = {name: getattr(pillarbox, name) for name in pillarbox.__all__}
    values = {
        name
        for name, member in results.items()
        if isinstance(member, type)
        and (is_dataclass(member) or issubclass(member, (tuple, Enum)) or "__reduce__" in vars(member))
        if not issubclass(member, Exception)
    }
    assert values == {type(value).__name__ for value in VALUES} | OF_PROGRAMS


@pytest.mark.parametrize("error", ERRORS, ids=lambda value: type(value).__name__)
def test_errors_in_state_keep_what_they_say(error):
    error.at(operator="op", key=("k", 1))
    payload = pickle.dumps(error, 5)
    again = pickle.loads(payload)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert "('k', 1)" in str(again)
    assert names_in(payload) == {"pillarbox._unpickle.make_error"}


def test_a_users_own_error_is_the_users():
    class Mine(OperatorError):
        pass

    sys.modules[__name__].Mine = Mine  # type: ignore[attr-defined]
    Mine.__qualname__ = "Mine"
    assert names_in(pickle.dumps(Mine("x"), 5)) == {f"{__name__}.Mine"}


# -- unreadable checkpoints --


class Task:
    def __init__(self, store=None, *, states=("a", "b"), operator="op"):
        self.store = MemoryChunkStore() if store is None else store
        self.backend = KeyedStateBackend(operator)
        kinds = {"m": MapStateDescriptor}
        self.states = {name: self.backend.get_state(kinds.get(name, ValueStateDescriptor)(name)) for name in states}
        self.backend.seal()
        self.log = StateLog(LogIdentity(operator, 3, 4, 128), self.backend)
        self.sync = self.log.sync(self.store)

    def put(self, key, **values):
        self.backend.set_current_key(key)
        for name, value in values.items():
            self.states[name].update(value)
        return self

    def commit(self, **task_state):
        self.log.commit(self.store, task_state)
        return self


@dataclass
class Payment:
    amount: float = 1.0


@pytest.fixture
def _gone(monkeypatch):
    module: Any = ModuleType("payments")
    module.Payment = type("Payment", (), {"__module__": "payments"})
    monkeypatch.setitem(sys.modules, "payments", module)
    return module


@pytest.mark.usefixtures("_gone")
@pytest.mark.parametrize("size", [1, 700_000])
def test_a_class_that_is_gone_is_named_with_state_and_key(_gone, size):
    task = Task()
    task.put("eve", a=1, b=2)
    task.put("ann", a=3, b={"paid": [_gone.Payment()], "filling": bytes(size)})
    task.commit()
    del _gone.Payment
    whose = "a key with much state" if size > 1 else "the key 'ann'"
    with pytest.raises(CheckpointMismatchError) as caught:
        Task(task.store)
    sentence = (
        f"operator 'op', subtask 3: the checkpoint holds, in the value state 'b' of {whose}, payments.Payment,"
        " which cannot be found (AttributeError: ...): restore it, or, if it has moved, call"
        " env.add_class_alias('payments:Payment', ...); or start from a new checkpoint"
    )
    assert re.sub("Error: [^)]*", "Error: ...", str(caught.value)) == sentence


@pytest.mark.usefixtures("_gone")
def test_a_class_that_is_gone_in_keys_and_in_the_operators_own_state(_gone):
    with_key = Task().put(_gone.Payment(), a=1).commit()
    with_own = Task().commit(operators={"ask": [("request", [_gone.Payment()], None, 1, None)]})
    del _gone.Payment
    with pytest.raises(CheckpointMismatchError, match=r"in the key <.*>, payments\.Payment, which cannot be found"):
        Task(with_key.store)
    with pytest.raises(
        CheckpointMismatchError, match=r"in records that an operator had not finished, payments\.Paymen"
    ):
        Task(with_own.store)


class Picky:
    broken = False

    def __init__(self, x):
        self.x = x

    def __setstate__(self, state):
        if Picky.broken:
            raise ValueError("a field is missing")


def test_a_class_that_does_not_take_back_what_it_wrote(monkeypatch):
    task = Task()
    task.put(1, a=Picky(1)).commit()
    monkeypatch.setattr(Picky, "broken", True)
    with pytest.raises(CheckpointMismatchError) as caught:
        Task(task.store)
    assert "'op', subtask 3: chunk 1 of the state, of epoch 1, cannot be read: ValueError: a field is missing" in str(
        caught.value
    )


def test_a_head_is_plain_data_and_runs_nothing():
    task = Task().put(1, a=1).commit()
    body = pickle.dumps({"operator": pickle.loads, "subtask": 3}, 5)
    task.store.chunks[META] = b"pillarbox\x02\x00" + zlib.crc32(body).to_bytes(4, "little") + body
    with pytest.raises(CheckpointMismatchError, match=r"it refers to _pickle\.loads, but must contain only plain data"):
        Task(task.store)


# -- later versions --


def test_kinds_that_came_later_are_refused():
    task = Task().put(1, a=1).commit()
    in_head = task.store.copy()
    payload = in_head.chunks[META]
    body = pickle.dumps({**pickle.loads(payload[15:]), "unheard_of": {}}, 5)
    in_head.chunks[META] = payload[:11] + zlib.crc32(body).to_bytes(4, "little") + body
    with pytest.raises(
        CheckpointMismatchError, match="holds 'unheard_of', which this version of pillarbox does not know: upd"
    ):
        Task(in_head)
    in_chunk = task.store.copy()
    in_chunk.chunks[1] = chunk = pickle.dumps({**pickle.loads(in_chunk.chunks[1]), "later": ()}, 5)
    head = read_head(payload, task.log.contents.identity)
    body = pickle.dumps({**pickle.loads(payload[15:]), "newest": (len(chunk), zlib.crc32(chunk), 1)}, 5)
    assert head.newest is not None
    in_chunk.chunks[META] = payload[:11] + zlib.crc32(body).to_bytes(4, "little") + body
    with pytest.raises(CheckpointMismatchError, match="holds 'later', which this version of pillarbox does not know"):
        Task(in_chunk)


# -- damaged checkpoints --


@pytest.fixture
def log():
    task = Task()
    for epoch in range(4):
        for key in range(3):
            task.put((epoch, key), a=epoch, b="x" * 100)
        if epoch == 2:
            task.put("large", a=bytes(600_000))
        task.commit()
    assert sorted(task.store.chunks) == [-1, 0, 1, 2, 3, 4]
    return task


def cut(payload):
    return payload[:-7]


def altered(payload):
    middle = len(payload) // 2
    return payload[:middle] + bytes([payload[middle] ^ 16]) + payload[middle + 1 :]


def emptied(payload):
    return b""


@pytest.mark.parametrize("damage", [cut, altered, emptied])
@pytest.mark.parametrize("number", [-1, 1, 2, 3, 4])
def test_a_value_that_is_not_as_it_was_written(log, number, damage):
    store = log.store
    before = len(store.chunks[number])
    store.chunks[number] = damage(store.chunks[number])
    what, epoch = (f"chunk {number}", number) if number > 0 else ("large row 1", 3)
    length = "" if damage is altered else f", {len(store.chunks[number])} bytes where {before} were"
    with pytest.raises(CheckpointMismatchError) as caught:
        Task(store)
    assert str(caught.value) == (
        f"operator 'op', subtask 3: {what} of the state, of epoch {epoch}, is not as it was written (its digest does"
        f" not fit{length}): the checkpoint is damaged; start from an older copy of it, or from a new one"
    )


@pytest.mark.parametrize("damage", [cut, altered])
def test_a_head_that_is_not_as_it_was_written(log, damage):
    log.store.chunks[META] = damage(log.store.chunks[META])
    with pytest.raises(
        CheckpointMismatchError, match="'op', subtask 3: the head of the state is not as it was written"
    ):
        Task(log.store)


@pytest.mark.parametrize("length", [0, 5, 9, 10, 11, 14, 15, 16, 40])
def test_a_head_that_was_cut(log, length):
    log.store.chunks[META] = log.store.chunks[META][:length]
    with pytest.raises(
        CheckpointMismatchError, match=r"^operator 'op', subtask 3: the head of the state is not as it was written"
    ):
        Task(log.store)


@pytest.mark.parametrize("bits", [1, 3, 0x80])
def test_a_head_of_which_any_byte_is_altered(log, bits):
    head = log.store.chunks[META]
    for index in range(len(head)):
        log.store.chunks[META] = head[:index] + bytes([head[index] ^ bits]) + head[index + 1 :]
        with pytest.raises(CheckpointMismatchError, match=r"^operator 'op', subtask 3: the "):
            Task(log.store)


@pytest.mark.parametrize("body", [[], {}, {"newest": 5}, {"operator": "op"}, 5, None])
def test_a_head_of_another_shape(log, body):
    payload = pickle.dumps(body, 5)
    log.store.chunks[META] = log.store.chunks[META][:11] + zlib.crc32(payload).to_bytes(4, "little") + payload
    with pytest.raises(CheckpointMismatchError, match="the head of the state is not as it was written"):
        Task(log.store)


@pytest.mark.parametrize("numbers", [[META], [1], [-1], "all"])
def test_values_of_another_subtask(log, numbers):
    backend = KeyedStateBackend("op")
    states = {name: backend.get_state(ValueStateDescriptor(name)) for name in ("a", "b")}
    backend.seal()
    other = StateLog(LogIdentity("op", 2, 4, 128), backend)
    store = MemoryChunkStore()
    other.sync(store)
    for epoch in range(4):
        backend.set_current_key(epoch)
        states["a"].update(bytes(600_001) if epoch == 2 else epoch)
        other.commit(store, {})
    for number in store.chunks if numbers == "all" else numbers:
        log.store.chunks[number] = store.chunks[number]
    says = {
        "[0]": "state of subtask 2 in the place of subtask 3",
        "all": "state of subtask 2 in the place of subtask 3",
        "[1]": "subtask 3: chunk 1 of the state, of epoch 1, is not as it was written",
        "[-1]": "subtask 3: large row 1 of the state, of epoch 3, is not as it was written",
    }
    with pytest.raises(CheckpointMismatchError, match=says[str(numbers)]):
        Task(log.store)


@pytest.mark.parametrize("number", [-1, 1, 3, 4])
def test_a_value_that_is_missing(log, number):
    log.store.remove(number)
    what = f"chunk {number} of the state, of epoch {number}" if number > 0 else "large row 1 of the state, of epoch 3"
    with pytest.raises(
        CheckpointMismatchError, match=f"'op', subtask 3: {what} and \\d+ bytes, is missing in the check"
    ):
        Task(log.store)


@pytest.mark.parametrize(("source", "target"), [(1, 2), (2, 1), (4, 3), (3, 1)])
def test_a_chunk_in_the_place_of_another(log, source, target):
    log.store.chunks[target] = log.store.chunks[source]
    with pytest.raises(
        CheckpointMismatchError, match=f"chunk {target} of the state, of epoch {target}, is not as it was"
    ):
        Task(log.store)


def test_a_chunk_of_another_attempt_at_the_same_epoch(log):
    first, second = Task(log.store.copy()), Task(log.store.copy())
    first.put((0, 0), a=1).commit()
    second.put((0, 0), a=2).commit()
    assert len(first.store.chunks[5]) == len(second.store.chunks[5])
    first.store.chunks[5] = second.store.chunks[5]
    with pytest.raises(CheckpointMismatchError, match="chunk 5 of the state, of epoch 5, is not as it was written"):
        Task(first.store)


def test_a_head_that_is_older_than_the_log(log):
    before = log.store.chunks[META]
    log.put("new", a=1).commit()
    log.store.chunks[META] = before
    with pytest.raises(CheckpointMismatchError, match="its head does not know of chunk 5"):
        Task(log.store)


def test_all_that_was_written_is_read_back(log):
    again = Task(log.store)
    assert again.sync is Sync.LOADED
    assert {key: row[2:] for key, row in again.backend.rows.items()} == {
        key: row[2:] for key, row in log.backend.rows.items()
    }


def test_a_large_row_outlives_states_that_are_added(log):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SPARE_CHUNKS", 1)
        patch.setattr(limits, "GATHERING", 1)
        more = Task(log.store, states=("c", "b", "a"))
        for epoch in range(8):
            more.put("hot", c=epoch).commit()
    assert min(log.store.chunks.keys() - {META, -1}) > 4
    again = Task(log.store, states=("a", "b", "c"))
    assert again.backend.rows["large"][2:] == [bytes(600_000), None, None]
    again.put("large", a=1).commit()
    assert -1 not in log.store.chunks
