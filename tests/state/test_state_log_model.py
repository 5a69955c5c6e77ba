"""State backend and log against a plain dictionary: what was committed is what is read, whatever happens to workers."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pillarbox.state import (
    AggregateFunction,
    AggregatingStateDescriptor,
    HeapKeyedStateBackend,
    ListStateDescriptor,
    LogIdentity,
    MapStateDescriptor,
    MemoryChunkStore,
    ReducingStateDescriptor,
    StateLog,
    Sync,
    ValueStateDescriptor,
    state_log,
)
from pillarbox.state.log_head import META
from pillarbox.time import ManualProcessingTimeService
from pillarbox.time.internal_timer_service import InternalTimerService

CHUNK_ROWS, SPARE_CHUNKS, GATHERING, HISTORY = 4, 3, 2, 4
# Rows with more than some elements are large ones.
CHUNK_BYTES = 200

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
    st.tuples(st.just("event.register"), KEYS, TIMES, SMALL),
    st.tuples(st.just("event.delete"), KEYS, TIMES, SMALL),
    st.tuples(st.just("processing.register"), KEYS, TIMES, SMALL),
    st.tuples(st.just("read"), KEYS),
    st.tuples(st.just("fire"), TIMES),
    st.tuples(st.just("empty"), KEYS),
)


class Mean(AggregateFunction):
    def create_accumulator(self):
        return [0, 0]

    def add(self, value, accumulator):
        return [accumulator[0] + value, accumulator[1] + 1]

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]


class Resident:
    """A worker's copy of the state."""

    def __init__(self):
        self.fired = []
        self.backend = HeapKeyedStateBackend("op")
        self.timers = InternalTimerService("timers", self.backend, ManualProcessingTimeService(), self, namespaced=True)
        get = self.backend.get_state
        self.states = {
            "value": get(ValueStateDescriptor("value")),
            "list": get(ListStateDescriptor("list")),
            "map": get(MapStateDescriptor("map")),
            "reducing": get(ReducingStateDescriptor("reducing", lambda a, b: a + b)),
            "aggregating": get(AggregatingStateDescriptor("aggregating", Mean())),
        }
        self.backend.seal()
        self.log = StateLog(LogIdentity("op", 0, 1, 128), self.backend)

    def on_event_time(self, timestamp, namespace):
        self.fired.append((timestamp, self.backend.key, namespace))

    def on_processing_time(self, timestamp, namespace):
        raise AssertionError("the clock stands still")

    def apply(self, operation):
        name, *arguments = operation
        if name == "fire":
            self.fired = []
            self.timers.advance_watermark(arguments[0])
            return self.fired
        key, *arguments = arguments
        self.backend.set_current_key(key)
        kind, _, method = name.partition(".")
        if kind == "event":
            getattr(self.timers, f"{method}_event_time_timer")(arguments[1], arguments[0])
        elif kind == "processing":
            getattr(self.timers, f"{method}_processing_time_timer")(arguments[1], arguments[0])
        elif kind == "empty":
            for state in self.states.values():
                state.clear()
        elif kind != "read":
            getattr(self.states[kind], method)(*arguments)
        return None

    def view(self):
        """What the states answer, by key."""
        seen = {}
        for key in list(self.backend.rows):
            self.backend.set_current_key(key)
            states = self.states
            answer = {
                "value": states["value"].value(),
                "list": list(states["list"]),
                "map": dict(states["map"].items()),
                "reducing": states["reducing"].get(),
                "aggregating": states["aggregating"].get(),
            }
            if any(value not in (None, [], {}) for value in answer.values()):
                seen[key] = answer
        return seen


class Model:
    """The same in plain dictionaries."""

    def __init__(self):
        self.keys = {}
        self.event = set()
        self.processing = set()

    def apply(self, operation):
        name, *arguments = operation
        if name == "fire":
            due = {timer for timer in self.event if timer[0] <= arguments[0]}
            self.event -= due
            return sorted(due)
        key, *arguments = arguments
        row = self.keys.setdefault(key, {"value": None, "list": [], "map": {}, "reducing": None, "added": []})
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
            self.event.add((arguments[0], key, arguments[1]))
        elif name == "event.delete":
            self.event.discard((arguments[0], key, arguments[1]))
        elif name == "processing.register":
            self.processing.add((arguments[0], key, arguments[1]))
        elif name == "empty":
            del self.keys[key]
        elif name.endswith(".clear"):
            kind = name.partition(".")[0]
            row[kind] = {"list": [], "map": {}}.get(kind)
        return None

    def view(self):
        seen = {}
        for key, row in self.keys.items():
            answer = {kind: row[kind] for kind in ("value", "list", "map", "reducing")}
            answer["aggregating"] = sum(row["added"]) / len(row["added"]) if row["added"] else None
            if any(value not in (None, [], {}) for value in answer.values()):
                seen[key] = answer
        return seen

    @property
    def live(self):
        return len(self.view().keys() | {timer[1] for timer in self.event | self.processing})


class StateLogMachine(RuleBasedStateMachine):
    """Two workers take turns with one store. Attempts succeed, fail, or succeed without being committed."""

    @initialize()
    def begin(self):
        self.store = MemoryChunkStore()
        self.model = Model()
        self.residents = [Resident(), Resident()]
        self.epochs = 0
        self.most_live = 0

    def synced(self, index):
        """The worker, at the store's version."""
        resident = self.residents[index]
        if resident.log.sync(self.store) is Sync.DIVERGED:
            resident = self.residents[index] = Resident()
            assert resident.log.sync(self.store) in (Sync.LOADED, Sync.IN_STEP)
        return resident

    def check(self, resident, model):
        chunks = [pickle.loads(chunk) for number, chunk in self.store.chunks.items() if number > META]
        assert resident.log.chunks == len(chunks)
        assert resident.log._entries == sum(len(chunk["keys"]) for chunk in chunks)
        assert resident.log._ledger.log_bytes == sum(
            len(c) for number, c in self.store.chunks.items() if number != META
        )
        assert len(resident.log._large) == sum(number < META for number in self.store.chunks)
        assert resident.log._ledger._rows.sum() == len(resident.backend.rows)
        assert resident.view() == model.view()
        assert resident.timers.num_event_time_timers() == len(model.event)
        assert resident.timers.num_processing_time_timers() == len(model.processing)
        assert resident.timers.next_processing_time_timer() == min((t[0] for t in model.processing), default=None)

    def work(self, resident, model, operations):
        for operation in operations:
            outcome, expected = resident.apply(operation), model.apply(operation)
            if expected is not None:
                assert sorted(outcome) == expected
                assert [timer[0] for timer in outcome] == [timer[0] for timer in expected]

    @rule(index=st.integers(0, 1), operations=st.lists(OPERATIONS, max_size=12))
    def epoch(self, index, operations):
        resident = self.synced(index)
        self.check(resident, self.model)
        self.work(resident, self.model, operations)
        resident.log.commit(self.store, {"epoch": self.epochs})
        self.epochs += 1
        self.check(resident, self.model)
        assert resident.log.version == self.epochs
        assert len(resident.backend.rows) == self.model.live
        # What cleaning promises of the number of chunks (of bytes: test_state_log_bounds.py). It takes some epochs to
        # catch up with one that removes much.
        self.most_live = max(self.model.live, self.most_live - 1)
        assert resident.log.chunks <= SPARE_CHUNKS + GATHERING * self.most_live // CHUNK_ROWS + 4 + len(operations)

    @rule(index=st.integers(0, 1), operations=st.lists(OPERATIONS, min_size=1, max_size=6))
    def lost_epoch(self, index, operations):
        """An attempt goes through in the worker, but its writes are never committed."""
        resident = self.synced(index)
        self.work(resident, copy.deepcopy(self.model), operations)
        resident.log.commit(self.store.copy(), {"epoch": -1})
        assert resident.log.sync(self.store) is Sync.DIVERGED

    @rule(index=st.integers(0, 1), operations=st.lists(OPERATIONS, max_size=6))
    def failed_epoch(self, index, operations):
        """An attempt dies half-way, and the task with it."""
        resident = self.synced(index)
        self.work(resident, copy.deepcopy(self.model), operations)
        self.residents[index] = Resident()

    @rule()
    def cold_start(self):
        resident = Resident()
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


@pytest.fixture(autouse=True, scope="module")
def _small_chunks():
    """With small bounds, a short run of the machine reaches all that happens to logs of millions of rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_log, "_CHUNK_ROWS", CHUNK_ROWS)
        patch.setattr(state_log, "_SPARE_CHUNKS", SPARE_CHUNKS)
        patch.setattr(state_log, "_GATHERING", GATHERING)
        patch.setattr(state_log, "_SLACK_BYTES", 100)
        patch.setattr(state_log, "_CHUNK_BYTES", CHUNK_BYTES)
        patch.setattr(state_log, "_HISTORY", HISTORY)
        yield


TestStateLog = StateLogMachine.TestCase
TestStateLog.settings = settings(max_examples=60, stateful_step_count=30)
