"""States with a time-to-live, compared with plain Python over epochs, restarts and changes of configuration."""

from __future__ import annotations

import copy
import pickle
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    AggregateFunction,
    AggregatingStateDescriptor,
    Duration,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProgramError,
    ReducingStateDescriptor,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)
from pillarbox._runtime.spark.reading.state_columns import state_columns
from pillarbox._state.chunks.head import META, LogIdentity, read_head
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._state.log import large_collections, limits
from pillarbox._state.log.state_log import StateLog, Sync
from pillarbox._state.slots import FIRST_SLOT, STAMPS
from pillarbox.testing import ProcessingTime, ProgramTestHarness, StreamRecord, check_operator, harness_for, row
from tests.data import make_ttl as golden
from tests.data.make_checkpoint import load

LIVE = StateTtlConfig.UpdateType
SEEN = StateTtlConfig.StateVisibility
WRONG: Any = "EventTime"
KINDS = ("value", "list", "map", "sum", "mean")


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]


def descriptor_of(kind: str, ttl: StateTtlConfig | None = None) -> Any:
    descriptors: dict[str, Any] = {
        "value": lambda: ValueStateDescriptor("value", int),
        "list": lambda: ListStateDescriptor("list", int),
        "map": lambda: MapStateDescriptor("map", int, int),
        "sum": lambda: ReducingStateDescriptor("sum", lambda a, b: a + b, int),
        "mean": lambda: AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([Types.LONG(), Types.LONG()])),
    }
    descriptor = descriptors[kind]()
    if ttl is not None:
        descriptor.enable_time_to_live(ttl)
    return descriptor


class Task:
    """An operator's state in one worker.

    Args:
        late: whether states are declared after rows are read, or None for no declaration.
    """

    def __init__(
        self, store: MemoryChunkStore, configs: dict[str, StateTtlConfig | None], *, late: bool | None = False
    ) -> None:
        self.store = store
        self.backend = KeyedStateBackend("op")
        self._configs, self._late = configs, late
        if late is False:
            self.states = {kind: self.get_state(kind) for kind in KINDS}
        self.backend.seal()
        # With the type of the key, so that the state is plain.
        identity = LogIdentity("op", 0, 1, 128, key=KeyNote(columns=["k"], types=["bigint"]))
        self.log = StateLog(identity, self.backend, own_state=False)
        self.sync = self.log.sync(store)
        if late:
            self.states = {kind: self.get_state(kind) for kind in KINDS}

    def get_state(self, kind: str) -> Any:
        return self.backend.get_state(descriptor_of(kind, self._configs.get(kind)), late=bool(self._late))

    def keys_with(self, kind: str) -> list[Any]:
        return [key for key, row in self.backend.rows.items() if self.states[kind].is_readable(row)]

    def commit(self) -> None:
        self.log.commit(self.store, {})

    def call(self, key: int, kind: str, what: str, argument: int) -> Any:
        self.backend.set_current_key(key)
        state = self.states[kind]
        if what == "clear":
            return state.clear()
        if kind == "value":
            return state.update(argument) if what == "write" else state.value()
        if kind == "list":
            if what == "write":
                return state.add(argument)
            return state.update([argument, argument + 1]) if what == "rewrite" else list(state)
        if kind == "map":
            if what == "write":
                return state.put(argument % 4, argument)
            if what == "rewrite":
                return state.put_all({argument % 4: argument, 9: 9})
            if what == "remove":
                return state.remove(argument % 4)
            if what == "put":
                return state.put(argument, argument)
            if what == "look":
                return state.get(argument % 4), state.contains(argument % 3), state.is_empty()
            return list(state.items())
        return state.add(argument) if what == "write" else state.get()


class Model:
    """A plain Python model: (content, stamp) per value, element and entry. The stamp is None for older state."""

    def __init__(self) -> None:
        self.held: dict[Any, dict[Any, Any]] = defaultdict(dict)

    def call(self, now: int, ttl: StateTtlConfig | None, key: int, kind: str, what: str, argument: int) -> Any:
        slot = (key, kind)
        if ttl is None:
            alive: dict[Any, Any] = {name: (value, None) for name, (value, _) in self.held[slot].items()}
        else:
            # Earlier values are stamped at the end of the first epoch, and count from then on.
            alive = {
                name: (value, stamp)
                for name, (value, stamp) in self.held[slot].items()
                if stamp is None or stamp + ttl.millis > now
            }
        self.held[slot] = alive
        stamp = None if ttl is None else now
        on_read = what != "peek" and ttl is not None and ttl.update_type is LIVE.OnReadAndWrite
        if what == "clear":
            self.held[slot] = {}
            return None
        if kind in ("value", "sum", "mean"):
            (present, _) = alive.get(0, (None, None))
            if what == "write":
                if kind == "sum":
                    argument += present or 0
                elif kind == "mean":
                    total, count = present or (0, 0)
                    present = (total + argument, count + 1)
                alive[0] = (present if kind == "mean" else argument), stamp
                return None
            if on_read and alive:
                alive[0] = present, now
            if what == "peek":
                return bool(alive)
            return present[0] / present[1] if kind == "mean" and present else present
        if kind == "list":
            if what == "write":
                alive[max(alive, default=-1) + 1] = argument, stamp
            elif what == "rewrite":
                self.held[slot] = {0: (argument, stamp), 1: (argument + 1, stamp)}
            else:
                if on_read:
                    alive.update({name: (value, now) for name, (value, _) in alive.items()})
                return [value for value, _ in alive.values()]
            return None
        if what in ("write", "rewrite"):
            put = {argument % 4: argument, **({9: 9} if what == "rewrite" else {})}
            alive.update({name: (value, stamp) for name, value in put.items()})
        elif what == "remove":
            alive.pop(argument % 4, None)
        elif what == "look":
            result = alive.get(argument % 4, (None, None))[0], argument % 3 in alive, not alive
            if on_read:
                for name in {argument % 4, argument % 3} & alive.keys():
                    alive[name] = alive[name][0], now
            return result
        else:
            if on_read:
                alive.update({name: (value, now) for name, (value, _) in alive.items()})
            return [(name, value) for name, (value, _) in alive.items()]
        return None

    def forget_expired(self, now: int, configs: dict[str, StateTtlConfig | None]) -> None:
        for key, kind in [*self.held]:
            self.call(now, configs.get(kind), key, kind, "peek", 0)

    def end_epoch(self, now: int, configs: dict[str, StateTtlConfig | None]) -> None:
        for (_, kind), entries in self.held.items():
            ttl = configs.get(kind)
            for name, (value, stamp) in entries.items():
                entries[name] = value, None if ttl is None else now if stamp is None else stamp


CONFIGS = st.builds(
    StateTtlConfig,
    st.sampled_from([1, 50, 100, 1000]),
    update_type=st.sampled_from([LIVE.OnCreateAndWrite, LIVE.OnReadAndWrite]),
    cleanup_size=st.sampled_from([1, 5]),
)
PROGRAMS = st.dictionaries(st.sampled_from(KINDS), CONFIGS)
CALLS = st.tuples(
    st.integers(0, 3),
    st.sampled_from(KINDS),
    st.sampled_from(["write", "write", "write", "read", "look", "rewrite", "remove", "clear"]),
    st.integers(0, 50),
)
EPOCHS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 49, 50, 100, 1000]),
        st.lists(CALLS, max_size=8),
        st.sampled_from(["", "", "lost", "other worker", "other program"]),
        PROGRAMS,
    ),
    max_size=12,
)


@given(EPOCHS, PROGRAMS, st.booleans(), st.booleans())
def test_equal_to_plain_python(epochs, configs, large, late):
    with pytest.MonkeyPatch.context() as patch:
        if large:
            patch.setattr(large_collections, "_LARGE", 40)
        store = MemoryChunkStore()
        workers = [Task(store, configs, late=late)]
        model, now = Model(), 10_000
        for step, calls, event, following in epochs:
            now += step
            if event == "other program":
                # Expired values become live again with a longer time, until they are cleared. A restart clears them.
                task = Task(store, configs, late=late)
                task.backend.now = now
                task.commit()
                model.end_epoch(now, configs)
                model.forget_expired(now, configs)
                configs = following
                workers = [Task(store, configs, late=late)]
            elif event == "other worker":
                workers = [*workers[1:], *(() if len(workers) > 1 else (workers[0], Task(store, configs, late=late)))][
                    ::-1
                ]
            for attempt in range(1 + (event == "lost")):
                task = workers[0]
                if task.log.sync(store) is Sync.OUT_OF_STEP:
                    task = workers[0] = Task(store, configs, late=late)
                copy_of_model = copy.deepcopy(model.held)
                task.backend.now = now
                for key, kind, what, argument in calls:
                    result = task.call(key, kind, what, argument)
                    assert result == model.call(now, configs.get(kind), key, kind, what, argument), (kind, what)
                if event == "lost" and not attempt:
                    model.held = copy_of_model  # the attempt is lost with its worker, and repeated
                    workers = [Task(store, configs, late=late)]
            task.commit()
            model.end_epoch(now, configs)
            for kind in KINDS:
                readable = [key for key in range(4) if model.call(now, configs.get(kind), key, kind, "peek", 0)]
                assert sorted(task.keys_with(kind)) == readable, kind
        # When all states have expired, nothing remains.
        configs = dict.fromkeys(KINDS, StateTtlConfig(100))
        task = Task(store, configs, late=late)
        for _ in range(3):
            task.backend.now = now
            task.commit()
            now += 1000
        assert (len(task.backend.rows), task.backend.num_keys) == (0, 0)
        assert len(Task(store, configs, late=late).backend.rows) == 0


def test_a_state_that_is_declared_epochs_after_a_restart_has_its_stamps():
    store = MemoryChunkStore()
    task = Task(store, {"map": StateTtlConfig(100)}, late=True)
    task.call(1, "map", "write", 1)
    task.commit()
    task = Task(store, {}, late=None)
    task.backend.now = 99
    task.commit()
    for millis, result in ((100, []), (101, [(1, 1)]), (None, [(1, 1)])):
        store_now, configs = store.copy(), {"map": None if millis is None else StateTtlConfig(millis)}
        task = Task(store_now, configs, late=None)
        task.backend.now = 100
        task.commit()
        task.states = {"map": task.backend.get_state(descriptor_of("map", configs["map"]), late=True)}
        assert task.call(1, "map", "read", 0) == result
        task.commit()
        index = next(at for at, slot in enumerate(task.backend.slots, FIRST_SLOT) if slot.name.startswith(STAMPS))
        stamps = [row[index] for row in task.backend.every_row()]
        assert stamps == {100: [], 101: [{1: 0}], None: [None]}[millis]


def test_a_state_counts_from_its_last_access_whatever_the_config_was_then():
    store = MemoryChunkStore()
    task = Task(store, {"value": StateTtlConfig(1000)})
    task.backend.now = 0
    task.call(1, "value", "write", 7)
    task.commit()
    for millis, now, result in ((1000, 999, 7), (500, 500, None), (2000, 1999, 7), (None, 9999, 7)):
        task = Task(store.copy(), {"value": None if millis is None else StateTtlConfig(millis)})
        task.backend.now = now
        assert task.call(1, "value", "read", 0) == result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update_type", [LIVE.OnCreateAndWrite, LIVE.OnReadAndWrite])
def test_an_access_that_counts_is_in_the_checkpoint(kind, update_type):
    configs: dict[str, StateTtlConfig | None] = {kind: StateTtlConfig(100, update_type=update_type)}
    store = MemoryChunkStore()
    task = Task(store, configs)
    task.call(1, kind, "write", 1)
    task.commit()
    task.backend.now = 60
    written = task.call(1, kind, "read", 1)
    assert written
    task.commit()
    for worker in (task, Task(store, configs)):
        worker.backend.now = 120
        expired: Any = [] if kind in ("list", "map") else None
        assert worker.call(1, kind, "read", 1) == (written if update_type is LIVE.OnReadAndWrite else expired)


def test_a_time_to_live_that_is_switched_off_leaves_no_stamps():
    store = MemoryChunkStore()
    task = Task(store, dict.fromkeys(KINDS, StateTtlConfig(1000)))
    for kind in KINDS:
        task.call(1, kind, "write", 7)
    task.commit()
    assert sum(slot.name.startswith(STAMPS) for slot in task.backend.slots) == len(KINDS)
    task = Task(store, {})
    task.commit()
    task = Task(store, {})
    stamps = [index for index, slot in enumerate(task.backend.slots, FIRST_SLOT) if slot.name.startswith(STAMPS)]
    assert [task.backend.rows[1][slot] for slot in stamps] == [None] * len(stamps)
    task = Task(store, {"value": StateTtlConfig(10)})  # and on again: it counts from now on
    task.backend.now = 5000
    assert task.call(1, "value", "read", 0) == 7
    task.commit()
    task.backend.now = 5010
    assert task.call(1, "value", "read", 0) is None


def test_expired_state_that_is_not_cleaned_up_can_be_read_once():
    ttl = StateTtlConfig(
        100,
        state_visibility=SEEN.ReturnExpiredIfNotCleanedUp,
        cleanup_in_background=False,
    )
    task = Task(MemoryChunkStore(), dict.fromkeys(KINDS, ttl))
    for kind, written, empty in (("value", 1, None), ("list", [1], []), ("map", [(1, 1)], []), ("mean", 1.0, None)):
        task.backend.now = 0
        task.call(1, kind, "write", 1)
        task.backend.now = 100
        assert task.call(1, kind, "read", 0) == written
        assert task.call(1, kind, "read", 0) == empty
    task.backend.now = 0
    task.call(1, "map", "write", 2)
    task.backend.now = 100
    task.backend.set_current_key(1)
    assert task.states["map"][2] == 2 and 2 not in task.states["map"]
    task.backend.now = 0
    task.call(1, "sum", "write", 1)
    task.backend.now = 100
    task.call(1, "sum", "write", 1)  # folded into an expired value, as in Flink
    assert task.call(1, "sum", "read", 0) == 2


@pytest.mark.parametrize("ttl", [1_000, 5_000, 15_000, 19_999, 20_001, 100_000])
@pytest.mark.parametrize("large", [False, True])
def test_the_golden_log_with_stamps_is_read(ttl, large, monkeypatch):
    if large:
        monkeypatch.setattr(large_collections, "_LARGE", 60)
    (store,) = load(golden.PATH).values()
    assert any("elements" in pickle.loads(chunk) for number, chunk in store.chunks.items() if number > 0)
    expected = golden.expected(ttl, golden.END)
    for _ in range(2):
        timed = golden.Timed(store, ttl)
        assert timed.view(golden.END) == expected
        timed.log.commit(store, {})
    assert timed.backend.num_keys == sum(any(map(bool, held)) for held in expected.values())


def test_stamps_have_a_name_where_state_is_read_without_the_program():
    (store,) = load(golden.PATH).values()
    head = read_head(store.chunks[META], LogIdentity("timed", 0, 1, 128))
    names = {column.name for column in state_columns([head], ())}
    states = {"value", "elements", "entries", "sum"}
    assert names == states | {f"{name}_last_access" for name in states}


# -- cleaning --


def filled(keys: int, **options: Any) -> Task:
    task = Task(MemoryChunkStore(), {"value": StateTtlConfig(1000, **options)})
    task.backend.now = 0
    for key in range(keys):
        task.call(key, "value", "write", key)
    task.commit()
    return task


def test_keys_that_never_come_again_go_at_a_steady_pace():
    task = filled(1000)
    left = []
    for number in range(60):
        task.backend.now = 1000 + number // 60
        for key in range(10):
            task.call(2000 + 10 * number + key, "value", "write", 1)
        task.commit()
        left.append(sum(key < 1000 for key in task.backend.rows))
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise([1000, *left])) <= 50 + 1001 * 1001 // 1000


def test_without_traffic_all_keys_are_seen_within_the_time_to_live(monkeypatch):
    monkeypatch.setattr(limits, "SLACK_BYTES", 100)
    task = filled(1000)
    before = sum(map(len, task.store.chunks.values()))
    left = []
    for now in range(100, 2101, 100):
        task.backend.now = now
        task.commit()
        left.append(len(task.backend.rows))
    assert left[:9] == [1000] * 9
    assert all(80 <= before - after <= 120 for before, after in pairwise(left[9:19]))
    assert left[-1] == 0
    assert sum(map(len, task.store.chunks.values())) < before // 4


def test_without_cleanup_in_the_background_only_reads_clear():
    task = filled(10, cleanup_in_background=False)
    task.backend.now = 50_000
    task.commit()
    assert len(task.backend.rows) == 10
    assert task.call(3, "value", "read", 0) is None
    task.commit()
    assert len(task.backend.rows) == 9
    task = Task(task.store, {"value": StateTtlConfig(1000, cleanup_in_background=False)})
    task.backend.now = 50_000
    task.commit()
    assert len(task.backend.rows) == 9
    full = StateTtlConfig(1000, cleanup_in_background=False, cleanup_full_snapshot=True)
    task = Task(task.store, {"value": full})
    task.backend.now = 50_000
    task.commit()
    assert len(task.backend.rows) == 0


def test_a_large_map_is_cleaned_now_and_then_and_by_its_entries():
    task = Task(MemoryChunkStore(), {"map": StateTtlConfig(100_000)})
    looked = []
    state = task.states["map"]
    clean = state.clean

    def watched(tree):
        looked.append(task.backend.now)
        return clean(tree)

    state.clean = watched
    for entry in range(10_000):
        task.backend.now = entry
        task.call(1, "map", "put", entry)
        if entry % 40 == 39:
            task.commit()
    assert len(looked) < 100  # of 250 epochs
    task.call(1, "map", "put", 20_000)
    task.commit()
    assert task.log.bytes_written < 3000
    looked.clear()
    for now in range(20_000, 220_001, 10_000):
        task.backend.now = now
        task.commit()
    assert len(looked) <= 4 and len(task.backend.rows) == 0


# -- whole functions --


class Recent(KeyedProcessFunction):
    def __init__(self, update_type: Any = LIVE.OnCreateAndWrite) -> None:
        self.update_type = update_type

    def open(self, runtime_context):
        ttl = StateTtlConfig("1 minute", update_type=self.update_type)
        count, last, by = (
            ValueStateDescriptor("n", int, default=0),
            ListStateDescriptor("last"),
            MapStateDescriptor("by"),
        )
        for descriptor in (count, last, by):
            descriptor.enable_time_to_live(ttl)
        self.count = runtime_context.get_state(count)
        self.last = runtime_context.get_list_state(last)
        self.by = runtime_context.get_map_state(by)

    def process_element(self, word, ctx):
        self.count.update(self.count.value() + 1)
        self.last.add(word.number)
        self.by[word.number % 3] = word.number
        yield word.text, self.count.value(), list(self.last), sorted(self.by.items())


SCRIPT = [
    step
    for number in range(24)
    for step in (
        StreamRecord(row(text="ab"[number % 2], number=number), number),
        ProcessingTime([0, 20_000, 59_000, 61_000, 140_000][number * 5 // 24] + number),
    )
]


@pytest.mark.parametrize("update_type", [LIVE.OnCreateAndWrite, LIVE.OnReadAndWrite])
def test_the_laws_of_operators(update_type):
    check_operator(lambda **options: harness_for(Recent(update_type), key_by="text", **options), SCRIPT)


def test_an_epoch_that_is_run_again_does_the_same():
    def build(env, words):
        return words.key_by("text").process(Recent())

    snapshot = None
    with ProgramTestHarness(build, parallelism=2) as calm:
        for start in range(0, 40, 7):
            with ProgramTestHarness(build, parallelism=2, snapshot=snapshot) as rough:
                for number in range(start, start + 7):
                    for harness in (calm, rough):
                        harness.push("words", row(text="abc"[number % 3], number=number))
                        harness.set_processing_time(number * 7_000)
                    rough.fail_epoch()
                    assert rough.run_epoch()["output"] == calm.run_epoch()["output"]
                snapshot = rough.snapshot()
        # By then, each subtask has cleaned its state.
        for _ in range(3):
            calm.advance_processing_time(100_000)
            calm.run_epoch()
        assert sum(report.keys or 0 for report in calm._job.reports) == 0


# -- configs --


def test_the_builder_makes_what_keywords_make():
    built = (
        StateTtlConfig.new_builder(Time.hours(1))
        .set_update_type(LIVE.OnReadAndWrite)
        .set_state_visibility(SEEN.ReturnExpiredIfNotCleanedUp)
        .set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)
        .use_processing_time()
        .cleanup_full_snapshot()
        .cleanup_incrementally(7, True)
        .cleanup_in_rocksdb_compact_filter(1000, Duration.of_days(30))
        .build()
    )
    assert built == StateTtlConfig(
        "1 hour",
        update_type=LIVE.OnReadAndWrite,
        state_visibility=SEEN.ReturnExpiredIfNotCleanedUp,
        cleanup_size=7,
        cleanup_full_snapshot=True,
    )
    assert hash(built) == hash(copy.copy(built)) and built.get_ttl() == Time.hours(1)
    plain = StateTtlConfig.new_builder(5).update_ttl_on_create_and_write().never_return_expired()
    assert plain.build() == StateTtlConfig(5)
    assert not plain.disable_cleanup_in_background().build().cleanup_in_background
    other = StateTtlConfig.new_builder(5).update_ttl_on_read_and_write().return_expired_if_not_cleaned_up().set_ttl(6)
    assert (other.build().get_update_type(), other.build().get_state_visibility(), other.build().millis) == (
        LIVE.OnReadAndWrite,
        SEEN.ReturnExpiredIfNotCleanedUp,
        6,
    )
    disabled = ValueStateDescriptor("v")
    disabled.enable_time_to_live(StateTtlConfig.new_builder(5).set_update_type(LIVE.Disabled).build())
    assert disabled.ttl_config is None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: StateTtlConfig(0), "the time-to-live of a state must be at least one millisecond, not 0"),
        (lambda: StateTtlConfig("-5 seconds"), "is negative, which a duration cannot be"),
        (lambda: StateTtlConfig("soon"), "'soon' is not a duration"),
        (lambda: StateTtlConfig(5, update_type=WRONG), "none of StateTtlConfig.UpdateType.Disabled"),
        (lambda: StateTtlConfig(5, cleanup_size=0), "at least 1, not 0"),
        (lambda: StateTtlConfig.new_builder(-1), "is negative, which a duration cannot be"),
        (lambda: StateTtlConfig.new_builder(5).cleanup_incrementally(0), "at least 1, not 0"),
        (
            lambda: StateTtlConfig.new_builder(5).set_ttl_time_characteristic(WRONG),
            "is measured in processing time, as in Flink, not in 'EventTime'",
        ),
        (lambda: ValueStateDescriptor("v").enable_time_to_live(WRONG), "takes a StateTtlConfig"),
    ],
)
def test_wrong_configs_are_refused(make, says):
    with pytest.raises(ProgramError) as caught:
        make()
    assert says in str(caught.value)


def test_states_that_go_otherwise_have_no_time_to_live():
    backend = KeyedStateBackend("op")
    timed = descriptor_of("map", StateTtlConfig(5))
    for declare in (
        lambda: backend.get_operator_state(timed),
        lambda: backend.get_state(timed, namespaced=True),
        lambda: backend.get_state(timed, namespaced=True, late=True),
    ):
        with pytest.raises(ProgramError, match="operator 'op': the map state 'map' has a time-to-live, which is for"):
            declare()
    state = backend.get_state(timed)
    assert backend.get_state(timed) is backend.get_state(descriptor_of("map")) is state
    with pytest.raises(ProgramError, match="declares the state 'map' twice, with another time-to-live"):
        backend.get_state(descriptor_of("map", StateTtlConfig(6)))
