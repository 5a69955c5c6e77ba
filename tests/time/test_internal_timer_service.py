"""Timers by key and namespace, compared with a sorted set."""

from __future__ import annotations

import datetime
import math
import pickle

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from pillarbox._errors import CheckpointMismatchError, ProgramError
from pillarbox._state.chunks.head import META, LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.timers import HeapTimers
from pillarbox._state.log.state_log import StateLog
from pillarbox._time.internal_timer_service import InternalTimerService, InternalTimeServiceManager
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP

KEYS = st.sampled_from(["k1", "k2", "k3"])
TIMES = st.integers(0, 20)
NAMESPACES = st.sampled_from(["w1", (0, 10), 2])


class Timers:
    """A timer service with its dependencies, which records fired timers and may act when a timer fires."""

    def __init__(self, namespaced=False, now=0):
        self.backend = KeyedStateBackend("op")
        self.clock = ManualProcessingTimeService(now)
        self.fired = []
        self.meanwhile = lambda timestamp, namespace: None
        self.service = InternalTimerService("timers", self.backend, self.clock, self, namespaced=namespaced)
        self.backend.seal()

    def on_event_time(self, timestamp, namespace):
        self.fired.append(("event", timestamp, self.backend.key, namespace))
        self.meanwhile(timestamp, namespace)

    def flush(self):
        pass

    def on_processing_time(self, timestamp, namespace):
        self.fired.append(("processing", timestamp, self.backend.key, namespace))
        self.meanwhile(timestamp, namespace)

    def call(self, method, key, timestamp, namespace=None):
        self.backend.set_current_key(key)
        getattr(self.service, f"{method}_time_timer")(namespace, timestamp)

    def rows(self):
        return {row[1]: row for table in self.backend.tables for row in table.every_row()}

    def take(self):
        fired, self.fired = self.fired, []
        return fired


@pytest.fixture
def timers():
    return Timers()


class TimerServiceMachine(RuleBasedStateMachine):
    @initialize(namespaced=st.booleans())
    def begin(self, namespaced):
        self.namespaced = namespaced
        self.timers = Timers(namespaced)
        self.set: dict[str, set[tuple[int, str, str | None]]] = {"event": set(), "processing": set()}
        # When the epoch began; timers that wait for an overdue timer of their key.
        self.began = -1
        self.held: set[tuple[int, str, str | None]] = set()

    @property
    def waiting(self):
        return {timer for timer in self.set["processing"] if timer[0] <= self.began or timer in self.held}

    @rule()
    def begin_epoch(self):
        self.end_epoch()
        self.began = self.timers.clock.current_processing_time()
        self.timers.service.begin_epoch(self.began)
        assert self.timers.take() == []
        self.check()

    @rule()
    def end_epoch(self):
        expected, self.held = self.waiting, set()
        self.timers.service.fire_overdue_processing_time_timers()
        self.set["processing"] -= expected
        self.check_took("processing", expected)

    @rule(
        domain=st.sampled_from(["event", "processing"]),
        register=st.booleans(),
        key=KEYS,
        timestamp=TIMES,
        namespace=NAMESPACES,
    )
    def change(self, domain, register, key, timestamp, namespace):
        namespace = namespace if self.namespaced else None
        self.timers.call(f"{'register' if register else 'delete'}_{domain}", key, timestamp, namespace)
        timer = (timestamp, key, namespace)
        (self.set[domain].add if register else self.set[domain].discard)(timer)
        self.check()

    @rule(limit=TIMES)
    def watermark(self, limit):
        self.timers.service.advance_watermark(limit)
        self.check_fired("event", limit)

    @rule(step=st.integers(0, 5))
    def clock(self, step):
        self.timers.clock.advance(step)
        due: set[tuple[int, str]] = set()
        for timer in sorted(self.set["processing"] - self.waiting, key=str):
            if timer[0] <= self.timers.clock.current_processing_time():
                busy = {waiting[1] for waiting in self.waiting}
                (self.held if timer[1] in busy else due).add(timer)
        self.set["processing"] -= due
        self.check_took("processing", due)

    @rule()
    def written_and_read(self):
        self.end_epoch()
        for timers in (self.timers.service.event_timers, self.timers.service.processing_timers):
            assert isinstance(timers, HeapTimers)
            rows = self.timers.rows()
            timers.clear()
            timers.load(list(rows), list(rows.values()))
        self.check()

    def check_fired(self, domain, limit):
        due = {timer for timer in self.set[domain] if timer[0] <= limit}
        self.set[domain] -= due
        self.check_took(domain, due)

    def check_took(self, domain, due):
        fired = self.timers.take()
        assert sorted(fired, key=str) == sorted(((domain, *timer) for timer in due), key=str)
        assert [timer[1] for timer in fired] == sorted(timer[1] for timer in fired)
        self.check()

    def check(self):
        service, clock = self.timers.service, self.timers.clock
        assert service.num_event_time_timers() == len(self.set["event"])
        assert service.num_processing_time_timers() == len(self.set["processing"])
        earliest = min((timer[0] for timer in self.set["processing"]), default=None)
        assert service.next_processing_time_timer() == earliest
        earliest = min((timer[0] for timer in self.set["processing"] - self.waiting), default=None)
        # At most one timer is scheduled, and not later than the earliest.
        scheduled = clock.active_timer_timestamps()
        assert len(scheduled) <= 1
        if earliest is not None and earliest > clock.current_processing_time():
            assert scheduled and scheduled[0] <= earliest
        for row in self.timers.rows().values():
            assert all(stamps is None or type(stamps) is not set or len(stamps) > 1 for stamps in row[2:])


TestTimerServiceModel = TimerServiceMachine.TestCase


def test_t3_the_same_timer_fires_once(timers):
    for _ in range(3):
        timers.call("register_event", "k", 5)
    timers.service.advance_watermark(5)
    assert timers.take() == [("event", 5, "k", None)]
    timers.service.advance_watermark(6)
    assert timers.take() == []


def test_t9_timers_are_per_key_and_domain(timers):
    timers.call("register_event", "a", 5)
    timers.call("register_event", "b", 5)
    timers.call("register_processing", "a", 5)
    timers.call("delete_event", "a", 5)
    timers.service.advance_watermark(10)
    assert timers.take() == [("event", 5, "b", None)]
    timers.clock.set_current_time(5)
    assert timers.take() == [("processing", 5, "a", None)]


def test_deleting_what_is_not_there_does_nothing(timers):
    timers.call("register_event", "a", 5)
    for key, timestamp in (("a", 4), ("b", 5)):
        timers.call("delete_event", key, timestamp)
        timers.call("delete_processing", key, timestamp)
    assert timers.service.num_event_time_timers() == 1


def test_t5_timers_registered_while_firing_fire_too(timers):
    def again(timestamp, namespace):
        if timestamp in (4, 6):
            timers.service.register_event_time_timer(None, timestamp + 2)
            timers.service.register_event_time_timer(None, timestamp - 3)  # in the past, and next

    timers.meanwhile = again
    timers.call("register_event", "k", 4)
    timers.call("register_event", "k", 11)
    timers.service.advance_watermark(10)
    assert [timer[1] for timer in timers.take()] == [4, 1, 6, 3, 8]
    assert timers.service.num_event_time_timers() == 1


def test_a_timer_set_again_at_its_own_time_fires_again(timers):
    left = [3]

    def again(timestamp, namespace):
        left[0] -= 1
        if left[0]:
            timers.service.register_event_time_timer(None, timestamp)

    timers.meanwhile = again
    timers.call("register_event", "k", 5)
    timers.service.advance_watermark(5)
    assert len(timers.take()) == 3
    assert timers.service.num_event_time_timers() == 0


@pytest.mark.parametrize("again", [False, True])
def test_deleting_a_timer_of_the_same_time_while_firing(again):
    timers = Timers(namespaced=True)

    def delete_other(timestamp, namespace):
        if namespace == "first":
            timers.service.delete_event_time_timer("second", 5)
            if again:
                timers.service.register_event_time_timer("second", 5)

    timers.meanwhile = delete_other
    timers.call("register_event", "k", 5, "first")
    timers.call("register_event", "k", 5, "second")
    timers.service.advance_watermark(5)
    assert [timer[3] for timer in timers.take()] == (["first", "second"] if again else ["first"])
    assert timers.service.num_event_time_timers() == 0
    assert timers.backend.take_all_changes() == ([[], []], {})


def test_deleting_a_later_timer_while_firing(timers):
    timers.meanwhile = lambda timestamp, namespace: timers.service.delete_event_time_timer(None, 7)
    timers.call("register_event", "a", 5)
    timers.call("register_event", "a", 7)
    timers.call("register_event", "b", 7)
    timers.service.advance_watermark(9)
    assert timers.take() == [("event", 5, "a", None), ("event", 7, "b", None)]


def test_the_watermark_is_seen_by_the_timers_that_it_fires(timers):
    seen = []
    timers.meanwhile = lambda timestamp, namespace: seen.append(timers.service.current_watermark)
    assert timers.service.current_watermark == MIN_TIMESTAMP
    timers.call("register_event", "k", 5)
    timers.service.advance_watermark(8)
    assert seen == [8]


def test_t4_only_the_earliest_is_scheduled(timers):
    for timestamp, scheduled in ((50, [50]), (70, [50]), (30, [30]), (30, [30]), (60, [30])):
        timers.call("register_processing", "k", timestamp)
        assert timers.clock.active_timer_timestamps() == scheduled
    timers.clock.set_current_time(30)
    assert [timer[1] for timer in timers.take()] == [30]
    assert timers.clock.active_timer_timestamps() == [50]
    timers.clock.set_current_time(65)
    assert [timer[1] for timer in timers.take()] == [50, 60]
    assert timers.clock.active_timer_timestamps() == [70]


def test_t4_processing_time_timers_set_while_firing(timers):
    timers.meanwhile = lambda timestamp, namespace: (
        timers.service.register_processing_time_timer(None, timestamp + 10) if timestamp < 100 else None
    )
    timers.call("register_processing", "k", 75)
    timers.clock.set_current_time(90)
    assert [timer[1] for timer in timers.take()] == [75, 85]
    assert timers.clock.active_timer_timestamps() == [95]


def test_nothing_fires_while_unscheduled(timers):
    timers.call("register_processing", "k", 5)
    timers.service.unschedule()
    timers.clock.set_current_time(10)
    assert timers.take() == []
    timers.service.fire_due_processing_time_timers(timers.clock.current_processing_time())
    assert timers.take() == [("processing", 5, "k", None)]


def test_t2_the_same_name_gives_the_same_service(timers):
    manager = InternalTimeServiceManager(KeyedStateBackend("op"), timers.clock)
    first = manager.get_internal_timer_service("a", timers)
    assert manager.get_internal_timer_service("a", timers) is first
    assert manager.get_internal_timer_service("b", timers) is not first
    assert len(list(manager.services())) == 2
    manager.advance_watermark(5)
    assert {service.current_watermark for service in manager.services()} == {5}


def test_t2_services_of_one_operator_do_not_mix():
    backend, clock = KeyedStateBackend("op"), ManualProcessingTimeService()
    manager = InternalTimeServiceManager(backend, clock)
    seen = []

    class Note:
        def __init__(self, name):
            self.name = name

        def on_event_time(self, timestamp, namespace):
            seen.append((self.name, timestamp, namespace))

        def flush(self):
            pass

        def on_processing_time(self, timestamp, namespace):
            raise AssertionError

    plain = manager.get_internal_timer_service("plain", Note("plain"))
    windows = manager.get_internal_timer_service("windows", Note("windows"), namespaced=True)
    backend.seal()
    backend.set_current_key("k")
    plain.register_event_time_timer(None, 5)
    windows.register_event_time_timer("w", 5)
    windows.register_event_time_timer("v", 5)
    plain.delete_event_time_timer(None, 6)
    manager.advance_watermark(5)
    assert seen == [("plain", 5, None), ("windows", 5, "w"), ("windows", 5, "v")]


def test_a_hundred_thousand_timers_of_many_keys(timers):
    for key in range(25_000):
        for timestamp in range(4):
            timers.call("register_event", key, timestamp * 1000 + key % 7)
    assert timers.service.num_event_time_timers() == 100_000
    timers.service.advance_watermark(1999)
    assert len(timers.fired) == 50_000
    times = [timer[1] for timer in timers.fired]
    assert times == sorted(times)
    assert timers.service.num_event_time_timers() == 50_000


# -- values of timers --

NOT_TIMES = [
    None,
    "5",
    5.0,
    math.nan,
    True,
    np.True_,
    b"5",
    2**63,
    -(2**63) - 1,
    datetime.datetime(2026, 1, 1),
    np.float64(5),
]


@pytest.mark.parametrize("what", ["register", "delete"])
@pytest.mark.parametrize("domain", ["event", "processing"])
@pytest.mark.parametrize("timestamp", NOT_TIMES, ids=repr)
def test_a_timer_is_an_int_of_64_bits(timers, what, domain, timestamp):
    timers.call("register_event", "k", 5)
    with pytest.raises(ProgramError) as refused:
        timers.call(f"{what}_{domain}", "k", timestamp)
    text = str(refused.value)
    assert "operator 'op', key 'k'" in text and repr(timestamp) in text
    assert "milliseconds" in text or "has no time zone" in text
    assert ("ctx.timestamp() is None" in text) == (timestamp is None)
    assert timers.backend.rows["k"][2:] == [5, None]
    timers.service.advance_watermark(10)
    assert timers.take() == [("event", 5, "k", None)]


def test_a_timer_may_be_numpys_int(timers):
    timers.call("register_event", "k", np.int64(5))
    timers.call("register_processing", "k", np.uint32(7))
    assert list(map(type, timers.backend.rows["k"][2:])) == [int, int]
    timers.call("delete_event", "k", np.int32(5))
    timers.clock.set_current_time(7)
    assert timers.take() == [("processing", 7, "k", None)]


BAD = ["soon", 2.5, math.nan, datetime.datetime(2026, 1, 1), 2**70, True, np.int64(5), {6, "x"}, {7, None}]


@pytest.mark.parametrize("bad", BAD, ids=[f"{type(value).__name__} {index}" for index, value in enumerate(BAD)])
def test_a_timer_of_a_checkpoint_is_an_int_of_64_bits(timers, bad):
    """A timer of another type means that the file is damaged."""
    with pytest.raises(CheckpointMismatchError, match="operator 'op': the checkpoint holds a timer of key 'bad' at"):
        timers.backend.load(["a", "bad", "c"], [[0, "a", 5, None], [1, "bad", bad, None], [2, "c", {7, 8}, None]])


def test_a_start_looks_for_timers_only_where_some_row_has_one():
    store = MemoryChunkStore()

    def task():
        timers = Timers()
        log = StateLog(LogIdentity("op", 0, 1, 128), timers.backend, own_state=False)
        log.sync(store)
        return timers, log

    def without(log):
        log.commit(store, {})
        return pickle.loads(store.chunks[META][15:]).get("without_timers", [])

    timers, log = task()
    assert without(log) == ["timers/event", "timers/processing"]
    timers.call("register_event", "a", 5)
    timers.call("register_event", "b", 6)
    assert without(log) == ["timers/processing"]
    timers, log = task()
    looked = [timer.name for timer in timers.backend.timers if timer.queue.size]
    assert looked == ["timers/event"]
    # Loaded timers need no sorting for this.
    assert without(log) == ["timers/processing"]
    timers.call("register_processing", "a", 7)
    timers.service.advance_watermark(6)
    assert [timer[1:3] for timer in timers.take()] == [(5, "a"), (6, "b")]
    assert without(log) == ["timers/event"]
    timers, log = task()
    timers.service.schedule()
    timers.clock.set_current_time(7)
    assert timers.take() == [("processing", 7, "a", None)]
    timers.call("register_event", "a", 8)
    timers.call("delete_event", "a", 8)
    assert without(log) == ["timers/event", "timers/processing"]


def test_restored_timers_may_go_before_anything_is_asked_of_them(timers):
    timers.backend.load(["a", "b", "c"], [[0, "a", 5, None], [1, "b", 6, None], [2, "c", 7, None]])
    timers.backend.end_loading()
    timers.call("delete_event", "a", 5)
    timers.call("delete_event", "b", 6)
    timers.call("register_event", "b", 6)
    assert timers.service.num_event_time_timers() == 2
    timers.service.advance_watermark(10)
    assert [timer[1:3] for timer in timers.take()] == [(6, "b"), (7, "c")]


# -- the order within one timestamp --


def test_t5_an_earlier_timer_that_is_registered_meanwhile_comes_first(timers):
    def meanwhile(timestamp, namespace):
        if (timestamp, timers.backend.key) == (10, "a"):
            timers.call("register_event", "a", 7)
        if timestamp == 7:
            timers.call("register_event", "c", 3)
            timers.call("register_event", "d", 10)
            timers.call("register_event", "d", 12)

    timers.meanwhile = meanwhile
    for key in ("a", "b"):
        timers.call("register_event", key, 10)
    timers.call("register_event", "z", 11)
    timers.service.advance_watermark(11)
    fired = [(timer[1], timer[2]) for timer in timers.take()]
    assert fired == [(10, "a"), (7, "a"), (3, "c"), (10, "b"), (10, "d"), (11, "z")]
    assert timers.service.num_event_time_timers() == 1


def test_a_timer_that_fails_takes_no_other_along(timers):
    def meanwhile(timestamp, namespace):
        if timers.backend.key == "b":
            raise RuntimeError("boom")

    timers.meanwhile = meanwhile
    for key in ("a", "b", "c", "d"):
        timers.call("register_event", key, 10)
    with pytest.raises(RuntimeError, match="boom"):
        timers.service.advance_watermark(10)
    assert timers.service.num_event_time_timers() == 2
    timers.call("delete_event", "c", 10)
    timers.service.advance_watermark(10)
    assert [timer[2] for timer in timers.take()] == ["a", "b", "d"]
    assert timers.service.num_event_time_timers() == 0


def test_timers_are_counted_while_they_fire(timers):
    counts = []

    def meanwhile(timestamp, namespace):
        if timers.backend.key == "b":
            timers.call("delete_event", "d", 10)
            timers.call("delete_event", "c", 10)
            timers.call("register_event", "c", 10)
        counts.append(timers.service.num_event_time_timers())

    timers.meanwhile = meanwhile
    for key in ("a", "b", "c", "d"):
        timers.call("register_event", key, 10)
    timers.service.advance_watermark(10)
    assert [timer[2] for timer in timers.take()] == ["a", "b", "c"]
    assert counts == [3, 1, 0]


def test_a_large_bucket_that_is_overtaken_again_and_again(timers):
    def meanwhile(timestamp, namespace):
        if timestamp == 10:
            timers.call("register_event", timers.backend.key, 9)

    timers.meanwhile = meanwhile
    for key in range(20_000):
        timers.call("register_event", key, 10)
    timers.service.advance_watermark(10)
    fired = [(timer[1], timer[2]) for timer in timers.take()]
    assert fired == [(at, key) for key in range(20_000) for at in (10, 9)]


def test_processing_time_timers_that_would_never_fire_are_refused():
    """A Spark streaming query runs no-data epochs only if the program needs them."""
    backend = KeyedStateBackend("op")
    manager = InternalTimeServiceManager(backend, ManualProcessingTimeService(), fires=False)
    service = manager.get_internal_timer_service("timers", Timers())
    backend.seal()
    backend.set_current_key("k")
    with pytest.raises(ProgramError, match=r"operator 'op', key 'k': .* pass process\(\.\.\., processing_time=True\)"):
        service.register_processing_time_timer(None, 5)
    service.register_event_time_timer(None, 5)
    assert service.num_processing_time_timers() == 0
