"""State backend and log, compared with a plain dictionary. Reads always return committed state."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pillarbox import Types
from pillarbox._state.chunks.head import META, LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._state.log import large_collections, limits
from pillarbox._state.log import writer as log_writer
from pillarbox._state.log.cleaner import clean
from pillarbox._state.log.state_log import StateLog, Sync
from pillarbox._time.internal_timer_service import InternalTimerService
from pillarbox._time.manual_clock import ManualProcessingTimeService

pytestmark = pytest.mark.slow("a model")

CHUNK_ROWS, SPARE_CHUNKS, GATHERING = 4, 3, 2
# Rows with more elements than this are large.
CHUNK_BYTES = 200
# Maps and lists with more than one or two elements are large.
LARGE = 35

KEYS = st.integers(0, 7)
SMALL = st.integers(0, 3)
TIMES = st.integers(0, 12)
OPERATIONS = st.one_of(
    st.tuples(st.just("value.update"), KEYS, st.none() | SMALL),
    st.tuples(st.just("value.clear"), KEYS),
    st.tuples(st.just("list.add"), KEYS, SMALL),
    st.tuples(st.just("list.add_all"), KEYS, st.lists(SMALL, max_size=2)),
    st.tuples(st.just("list.update"), KEYS, st.lists(SMALL, max_size=2)),
    st.tuples(st.just("list.clear"), KEYS),
    st.tuples(st.just("map.put"), KEYS, SMALL, SMALL),
    st.tuples(st.just("map.put_all"), KEYS, st.dictionaries(SMALL, SMALL, max_size=2)),
    st.tuples(st.just("map.remove"), KEYS, SMALL),
    st.tuples(st.just("map.clear"), KEYS),
    st.tuples(st.just("reducing.add"), KEYS, SMALL),
    st.tuples(st.just("reducing.clear"), KEYS),
    st.tuples(st.just("aggregating.add"), KEYS, SMALL),
    st.tuples(st.just("event.register"), KEYS, TIMES),
    st.tuples(st.just("event.delete"), KEYS, TIMES),
    st.tuples(st.just("processing.register"), KEYS, TIMES),
    st.tuples(st.just("late.add"), KEYS, SMALL),
    st.tuples(st.just("read"), KEYS),
    st.tuples(st.just("fire"), TIMES),
    st.tuples(st.just("empty"), KEYS),
)
# In namespaces, each worker declares some states on first use, in a different order.
NAMESPACES = st.sampled_from([0, 1, (0, 5), "window"])
SPACE_OPERATIONS = st.one_of(
    st.tuples(st.just("value.update"), KEYS, NAMESPACES, st.none() | SMALL),
    st.tuples(st.just("list.add"), KEYS, NAMESPACES, SMALL),
    st.tuples(st.just("list.clear"), KEYS, NAMESPACES),
    st.tuples(st.just("reducing.add"), KEYS, NAMESPACES, SMALL),
    st.tuples(st.just("aggregating.add"), KEYS, NAMESPACES, SMALL),
    st.tuples(st.just("late map.put"), KEYS, NAMESPACES, SMALL, SMALL),
    st.tuples(st.just("late map.remove"), KEYS, NAMESPACES, SMALL),
    st.tuples(st.just("late list.add_all"), KEYS, NAMESPACES, st.lists(SMALL, min_size=1, max_size=30)),
    st.tuples(st.just("event.register"), KEYS, NAMESPACES, TIMES),
    st.tuples(st.just("event.delete"), KEYS, NAMESPACES, TIMES),
    st.tuples(st.just("processing.register"), KEYS, NAMESPACES, TIMES),
    st.tuples(st.just("merge"), KEYS, NAMESPACES, st.lists(NAMESPACES, unique=True, max_size=3)),
    st.tuples(st.just("read"), KEYS, NAMESPACES),
    st.tuples(st.just("empty"), KEYS, NAMESPACES),
)
EITHER = OPERATIONS | SPACE_OPERATIONS.map(lambda operation: ("space", operation))


class Mean(AggregateFunction):
    def create_accumulator(self):
        return [0, 0]

    def add(self, value, accumulator):
        return [accumulator[0] + value, accumulator[1] + 1]

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, accumulator_a, accumulator_b):
        return [a + b for a, b in zip(accumulator_a, accumulator_b)]


MERGING = ("list", "reducing", "aggregating", "late list")
EMPTY: tuple[Any, ...] = (None, [], {})


class Resident:
    def __init__(self, typed):
        self.fired = []
        self.backend = KeyedStateBackend("op")
        clock = ManualProcessingTimeService()
        self.timers = InternalTimerService("timers", self.backend, clock, self)
        self.windows = InternalTimerService("windows", self.backend, clock, self, namespaced=True)
        get = self.backend.get_state
        long, pair = (Types.LONG(), Types.LIST(Types.LONG())) if typed else (None, None)
        self.states = {
            "value": get(ValueStateDescriptor("value", long)),
            "list": get(ListStateDescriptor("list", long)),
            "map": get(MapStateDescriptor("map", long, long)),
            "reducing": get(ReducingStateDescriptor("reducing", lambda a, b: a + b, long)),
            "aggregating": get(AggregatingStateDescriptor("aggregating", Mean(), pair)),
        }
        self.space_states = {
            "value": get(ValueStateDescriptor("value", long), namespaced=True),
            "list": get(ListStateDescriptor("list", long), namespaced=True),
            "reducing": get(ReducingStateDescriptor("reducing", lambda a, b: a + b, long), namespaced=True),
            "aggregating": get(AggregatingStateDescriptor("aggregating", Mean(), pair), namespaced=True),
        }
        self.backend.seal()
        identity = LogIdentity("op", 0, 1, 128, key=KeyNote(columns=["k"], types=["bigint"]))
        self.log = StateLog(identity, self.backend, own_state=False)
        assert (self.log.reason_for_pickles is None) == typed

    def on_event_time(self, timestamp, namespace):
        # The contents of its own namespace are accessible.
        held = None if namespace is None else self.space_states["reducing"].get()
        self.fired.append((timestamp, self.backend.key, namespace, held))

    def flush(self):
        pass

    def on_processing_time(self, timestamp, namespace):
        raise AssertionError("the clock stands still")

    def apply(self, operation):
        name, *arguments = operation
        if name == "fire":
            self.fired = []
            self.timers.advance_watermark(arguments[0])
            self.windows.advance_watermark(arguments[0])
            return self.fired
        if name == "space":
            self.apply_in_space(*arguments[0])
            return None
        key, *arguments = arguments
        self.backend.set_current_key(key)
        kind, _, method = name.partition(".")
        if kind in ("event", "processing"):
            getattr(self.timers, f"{method}_{kind}_time_timer")(None, arguments[0])
        elif kind == "late":
            self.states["late"] = late = self.backend.get_state(ListStateDescriptor("late"), late=True)
            late.add(*arguments)
        elif kind == "empty":
            for state in self.states.values():
                state.clear()
        elif kind != "read":
            getattr(self.states[kind], method)(*arguments)
        return None

    def apply_in_space(self, name, key, namespace, *arguments):
        kind, _, method = name.partition(".")
        self.backend.set_current_key(key)
        self.backend.set_current_namespace(namespace)
        if kind in ("event", "processing"):
            getattr(self.windows, f"{method}_{kind}_time_timer")(namespace, arguments[0])
        elif kind == "merge":
            for merging in MERGING:
                self.space_state(merging).merge_namespaces(namespace, arguments[0])
        elif kind == "empty":
            for state in self.space_states.values():
                state.clear()
        elif kind != "read":
            getattr(self.space_state(kind), method)(*arguments)

    @property
    def num_rows(self):
        return len([*self.backend.every_row(), *self.backend.namespaces.every_row()])

    def space_state(self, kind):
        late = {"late map": MapStateDescriptor, "late list": ListStateDescriptor}.get(kind)
        if late is not None:
            self.space_states[kind] = self.backend.get_state(late(kind), namespaced=True, late=True)
        return self.space_states[kind]

    def view_of_spaces(self):
        seen = {}
        for key in list(self.backend.get_keys()):
            self.backend.set_current_key(key)
            for namespace in self.backend.get_namespaces():
                self.backend.set_current_namespace(namespace)
                answer = {
                    "value": self.space_state("value").value(),
                    "list": list(self.space_state("list")),
                    "reducing": self.space_state("reducing").get(),
                    "aggregating": self.space_state("aggregating").get(),
                    "late map": list(self.space_state("late map").items()),
                    "late list": list(self.space_state("late list")),
                }
                if any(value not in EMPTY for value in answer.values()):
                    seen[key, namespace] = answer
        return seen

    def view(self):
        seen = {}
        self.states["late"] = self.backend.get_state(ListStateDescriptor("late"), late=True)
        for key in list(self.backend.rows):
            self.backend.set_current_key(key)
            states = self.states
            answer = {
                "value": states["value"].value(),
                "list": list(states["list"]),
                "map": list(states["map"].items()),
                "reducing": states["reducing"].get(),
                "aggregating": states["aggregating"].get(),
                "late": list(states["late"]),
            }
            if any(value not in EMPTY for value in answer.values()):
                seen[key] = answer
        return seen


def nothing():
    return {"value": None, "list": [], "reducing": None, "added": [], "late map": {}, "late list": []}


class Model:
    """The committed state as dictionaries. A timer is (timestamp, key, namespace or None)."""

    def __init__(self):
        self.keys = {}
        self.spaces = {}
        self.event = set()
        self.processing = set()

    def apply(self, operation):
        name, *arguments = operation
        if name == "fire":
            due = {timer for timer in self.event if timer[0] <= arguments[0]}
            self.event -= due
            held = {timer: self.spaces.get(timer[1:], nothing())["reducing"] for timer in due}
            return [(*timer, held[timer]) for timer in due]
        if name == "space":
            return self.apply_in_space(*arguments[0])
        key, *arguments = arguments
        row = self.keys.setdefault(
            key, {"value": None, "list": [], "map": {}, "reducing": None, "added": [], "late": []}
        )
        if name == "value.update":
            row["value"] = arguments[0]
        elif name in ("list.add", "list.add_all"):
            row["list"] = row["list"] + (arguments if name == "list.add" else arguments[0])
        elif name == "list.update":
            row["list"] = list(arguments[0])
        elif name == "map.put":
            row["map"][arguments[0]] = arguments[1]
        elif name == "map.put_all":
            row["map"].update(arguments[0])
        elif name == "map.remove":
            row["map"].pop(arguments[0], None)
        elif name == "reducing.add":
            row["reducing"] = (row["reducing"] or 0) + arguments[0]
        elif name == "aggregating.add":
            row["added"].append(arguments[0])
        elif name == "event.register":
            self.event.add((arguments[0], key, None))
        elif name == "event.delete":
            self.event.discard((arguments[0], key, None))
        elif name == "processing.register":
            self.processing.add((arguments[0], key, None))
        elif name == "late.add":
            row["late"].append(arguments[0])
        elif name == "empty":
            del self.keys[key]
        elif name.endswith(".clear"):
            kind = name.partition(".")[0]
            row[kind] = {"list": [], "map": {}}.get(kind)
        return None

    def apply_in_space(self, name, key, namespace, *arguments):
        timer = (arguments[0], key, namespace) if name.startswith(("event", "processing")) else None
        space = self.spaces.setdefault((key, namespace), nothing())
        if name == "value.update":
            space["value"] = arguments[0]
        elif name == "list.add":
            space["list"].append(arguments[0])
        elif name == "list.clear":
            space["list"] = []
        elif name == "reducing.add":
            space["reducing"] = (space["reducing"] or 0) + arguments[0]
        elif name == "aggregating.add":
            space["added"].append(arguments[0])
        elif name == "late map.put":
            space["late map"][arguments[0]] = arguments[1]
        elif name == "late map.remove":
            space["late map"].pop(arguments[0], None)
        elif name == "late list.add_all":
            space["late list"] += arguments[0]
        elif name == "event.register":
            self.event.add(timer)
        elif name == "event.delete":
            self.event.discard(timer)
        elif name == "processing.register":
            self.processing.add(timer)
        elif name == "merge":
            sources = [self.spaces.get((key, source), nothing()) for source in arguments[0]]
            parts = [space] * (namespace not in arguments[0]) + sources
            merged = {
                kind: [element for part in parts for element in part[kind]] for kind in ("list", "added", "late list")
            }
            reduced = [part["reducing"] for part in parts if part["reducing"] is not None]
            for part in parts:
                part.update({"list": [], "added": [], "late list": [], "reducing": None})
            space.update(merged, reducing=sum(reduced) if reduced else None)
        elif name == "empty":
            del self.spaces[key, namespace]

    def view_of_spaces(self):
        return _seen(self.spaces, ("value", "list", "reducing", "late map", "late list"))

    def view(self):
        return _seen(self.keys, ("value", "list", "map", "reducing", "late"))

    @property
    def live(self):
        timers = self.event | self.processing
        keys = self.view().keys() | {key for _, key, namespace in timers if namespace is None}
        spaces = self.view_of_spaces().keys() | {(key, space) for _, key, space in timers if space is not None}
        return len(keys) + len(spaces)


def _seen(rows, kinds):
    seen = {}
    for whose, row in rows.items():
        # Maps have an order.
        answer = {kind: list(row[kind].items()) if isinstance(row[kind], dict) else row[kind] for kind in kinds}
        answer["aggregating"] = sum(row["added"]) / len(row["added"]) if row["added"] else None
        if any(value not in EMPTY for value in answer.values()):
            seen[whose] = answer
    return seen


class StateLogMachine(RuleBasedStateMachine):
    """Two workers take turns with one store. Attempts succeed, fail, or succeed without a commit."""

    # Whether the types of key and states are declared.
    typed = False

    @initialize()
    def begin(self):
        self.store = MemoryChunkStore()
        self.model = Model()
        self.residents = [Resident(self.typed), Resident(self.typed)]
        self.epochs = 0

    def synced(self, index):
        resident = self.residents[index]
        if resident.log.sync(self.store) is Sync.OUT_OF_STEP:
            resident = self.residents[index] = Resident(self.typed)
            assert resident.log.sync(self.store) in (Sync.LOADED, Sync.IN_STEP)
        return resident

    def check(self, resident, model):
        chunks = [pickle.loads(chunk) for number, chunk in self.store.chunks.items() if number > META]
        assert resident.log.chunks == len(chunks)
        spaces = [chunk.get("spaces", [[]])[0] for chunk in chunks]
        groups = [group for chunk in chunks for group in chunk.get("elements", ())]
        rows = sum(map(len, spaces)) + sum(len(chunk["keys"]) for chunk in chunks)
        assert resident.log.contents.head.entries == rows + sum(len(group[4]) for group in groups)
        assert resident.log.contents.ledger.log_bytes == sum(
            len(c) for number, c in self.store.chunks.items() if number != META
        )
        assert len(resident.log.contents.large_values) == sum(number < META for number in self.store.chunks)
        collections = [slot for slots in resident.log.contents.collections._of.values() for slot in slots.values()]
        assert all(
            0 <= entry < resident.log.contents.head.entry
            for collection in collections
            for entry in collection.written()
        )
        assert resident.log.contents.ledger.current == resident.num_rows + sum(
            len(collection.written()) for collection in collections
        )
        assert resident.view() == model.view()
        assert resident.view_of_spaces() == model.view_of_spaces()
        resident.log.contents.backend.take_all_changes()  # reads of absent values have created rows
        for service, of_spaces in ((resident.timers, False), (resident.windows, True)):
            event, processing = (
                [timer for timer in timers if (timer[2] is not None) == of_spaces]
                for timers in (model.event, model.processing)
            )
            assert service.num_event_time_timers() == len(event)
            assert service.num_processing_time_timers() == len(processing)
            assert service.next_processing_time_timer() == min((timer[0] for timer in processing), default=None)

    def work(self, resident, model, operations):
        for operation in operations:
            outcome, expected = resident.apply(operation), model.apply(operation)
            if expected is not None:
                assert sorted(outcome, key=repr) == sorted(expected, key=repr)
                for of_spaces in (False, True):
                    times = [timer[0] for timer in outcome if (timer[2] is not None) == of_spaces]
                    assert times == sorted(times)

    @rule(index=st.integers(0, 1), operations=st.lists(EITHER, max_size=12))
    def epoch(self, index, operations):
        resident = self.synced(index)
        self.check(resident, self.model)
        self.work(resident, self.model, operations)
        resident.log.commit(self.store, {"epoch": self.epochs})
        self.epochs += 1
        self.check(resident, self.model)
        assert resident.log.version == self.epochs
        assert resident.num_rows == self.model.live

    @rule(index=st.integers(0, 1), operations=st.lists(EITHER, min_size=1, max_size=6))
    def lost_epoch(self, index, operations):
        resident = self.synced(index)
        self.work(resident, copy.deepcopy(self.model), operations)
        resident.log.commit(self.store.copy(), {"epoch": -1})
        assert resident.log.sync(self.store) is Sync.OUT_OF_STEP

    @rule(index=st.integers(0, 1), operations=st.lists(EITHER, max_size=6))
    def failed_epoch(self, index, operations):
        resident = self.synced(index)
        self.work(resident, copy.deepcopy(self.model), operations)
        self.residents[index] = Resident(self.typed)

    @rule(index=st.integers(0, 1))
    def restart(self, index):
        self.residents[index] = Resident(self.typed)

    @rule()
    def cold_start(self):
        resident = Resident(self.typed)
        assert resident.log.sync(self.store) is (Sync.LOADED if self.epochs else Sync.IN_STEP)
        self.check(resident, self.model)
        if self.epochs:
            assert resident.log.task_state == {"epoch": self.epochs - 1}

    @invariant()
    def the_store_holds_what_the_log_says(self):
        numbers = sorted(self.store.chunks)
        if self.epochs:
            assert META in numbers
            chunks = [number for number in numbers if number > META]
            assert chunks == list(range(chunks[0], chunks[-1] + 1)) if chunks else True
        else:
            assert not numbers


def clean_and_check(contents, store, added, gone):
    """Clean the log, and check that it has few chunks or that cleaning has processed enough old chunks.

    Each epoch processes at least a part of a full chunk. The log therefore has at most the "few" chunks, plus the
    chunks that are added while all old chunks are processed. (Bounds in bytes: test_state_log_bounds.py.)
    """
    ledger = contents.ledger
    few = SPARE_CHUNKS + GATHERING * max(ledger.current // CHUNK_ROWS, ledger.live_bytes // CHUNK_BYTES)
    chunks = [
        (chunk, size / max(1, chunk.entries)) for chunk, size in zip(ledger.chunks, ledger._figures["bytes"].tolist())
    ]
    entries = [
        max(mean, 0 if chunk.sizes is None else float(chunk.sizes[index]))
        for chunk, mean in chunks
        for index in range(chunk.entries)
    ]
    assert len(entries) == contents.head.entries
    first = contents.head.entry - contents.head.entries
    start = contents.head.cleaned
    moved = clean(contents, store, added, gone)
    passed = entries[start : contents.head.entry - contents.head.entries - first + contents.head.cleaned]
    assert len(ledger.chunks) <= few or sum(passed) >= CHUNK_BYTES // GATHERING - 1e-6
    return moved


@pytest.fixture(autouse=True, scope="module")
def _small_chunks():
    """Small bounds, so that short runs reach the states of logs with millions of rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CHUNK_ROWS", CHUNK_ROWS)
        patch.setattr(limits, "SPARE_CHUNKS", SPARE_CHUNKS)
        patch.setattr(limits, "GATHERING", GATHERING)
        patch.setattr(limits, "SLACK_BYTES", 100)
        patch.setattr(limits, "CHUNK_BYTES", CHUNK_BYTES)
        patch.setattr(large_collections, "_LARGE", LARGE)
        patch.setattr(log_writer, "clean", clean_and_check)
        yield


TestStateLog = StateLogMachine.TestCase


class StateLogOfTypesMachine(StateLogMachine):
    """The state log machine with plain state."""

    typed = True


TestStateLogOfTypes = StateLogOfTypesMachine.TestCase
