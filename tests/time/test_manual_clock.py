"""The manual clock, alone and compared with a model."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pillarbox._time.clock import ClockState
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox._time.operator_clock import ProcessingTimeServiceImpl


def never(timestamp):
    raise AssertionError(f"the timer for {timestamp} fired")


class Log:
    def __init__(self):
        self.calls = []

    def __call__(self, timestamp):
        self.calls.append(timestamp)


class TestManual:
    def setup_method(self):
        self.service = ManualProcessingTimeService(1000)
        self.log = Log()

    def test_time_stands_still_until_it_is_set(self):
        assert self.service.current_processing_time() == 1000
        self.service.set_current_time(1500)
        self.service.advance(10)
        assert self.service.current_processing_time() == 1510
        self.service.set_current_time(5)
        assert self.service.current_processing_time() == 5
        with pytest.raises(ValueError, match="advance by -1 ms"):
            self.service.advance(-1)

    def test_t4_due_timers_run_in_order_of_time_then_of_registration(self):
        calls = []

        def note(number):
            return lambda t: calls.append((t, number))

        for number, timestamp in enumerate([1300, 1100, 1200, 1100, 1400]):
            self.service.register_timer(timestamp, note(number))
        self.service.set_current_time(1300)
        assert calls == [(1100, 1), (1100, 3), (1200, 2), (1300, 0)]
        assert self.service.active_timer_timestamps() == [1400]
        assert self.service.num_active_timers == 1

    def test_timers_that_are_registered_meanwhile_run_too(self):
        def again(timestamp):
            self.log(timestamp)
            if timestamp < 1500:
                self.service.register_timer(timestamp + 100, again)

        self.service.register_timer(1100, again)
        self.service.register_timer(1250, self.log)
        self.service.set_current_time(1400)
        assert self.log.calls == [1100, 1200, 1250, 1300, 1400]
        self.service.advance(100)
        assert self.log.calls[-1] == 1500

    def test_past_timers_fire_when_the_clock_is_set(self):
        timer = self.service.register_timer(10, self.log)
        assert self.log.calls == []
        self.service.advance(0)
        assert self.log.calls == [10]
        assert timer.done()
        assert not timer.cancelled()

    def test_cancelling(self):
        timer = self.service.register_timer(1100, never)
        other = self.service.register_timer(1100, self.log)
        assert not timer.done()
        assert timer.cancel()
        assert timer.done()
        assert timer.cancelled()
        assert not timer.cancel()
        assert self.service.num_active_timers == 1
        self.service.advance(100)
        assert self.log.calls == [1100]
        assert not other.cancel()

    def test_a_callback_may_cancel_one_that_is_due_as_well(self):
        self.service.register_timer(1100, lambda t: later.cancel())
        later = self.service.register_timer(1100, never)
        self.service.advance(100)
        assert later.cancelled()

    def test_a_running_timer_is_neither_done_nor_cancellable(self):
        states = []
        timer = self.service.register_timer(
            1100, lambda t: states.append((timer.done(), timer.cancel(), timer.cancelled()))
        )
        self.service.advance(100)
        assert states == [(False, False, False)]
        assert timer.done()

    def test_errors_come_out_and_the_rest_runs_the_next_time(self):
        def fail(timestamp):
            raise KeyError(timestamp)

        self.service.register_timer(1100, fail)
        self.service.register_timer(1100, self.log)
        with pytest.raises(KeyError, match="1100"):
            self.service.advance(500)
        assert self.log.calls == []
        self.service.advance(0)
        assert self.log.calls == [1100]

    def test_a_callback_may_set_the_clock(self):
        self.service.register_timer(1100, lambda t: self.service.set_current_time(1300))
        self.service.register_timer(1200, self.log)
        self.service.register_timer(1300, self.log)
        self.service.set_current_time(1100)
        assert self.log.calls == [1200, 1300]

    def test_t6_quiesced(self):
        waiting = self.service.register_timer(1100, never)
        future = self.service.quiesce()
        assert self.service.state is ClockState.QUIESCED
        assert future.done()
        assert self.service.quiesce() is future
        assert waiting.cancelled()
        assert self.service.num_active_timers == 0
        timer = self.service.register_timer(0, never)
        self.service.advance(1000)
        assert not timer.done()
        assert timer.cancel()
        assert timer.done()
        assert timer.cancelled()
        assert not timer.cancel()

    def test_t6_quiesced_by_a_callback(self):
        futures = []

        def close(timestamp):
            futures.append(self.service.quiesce())
            assert not futures[0].done()

        self.service.register_timer(1010, close)
        later = self.service.register_timer(1020, never)
        self.service.advance(100)
        assert futures[0].done()
        assert later.cancelled()

    def test_t6_shut_down(self):
        waiting = self.service.register_timer(1100, never)
        self.service.shutdown()
        assert self.service.state is ClockState.SHUTDOWN
        assert waiting.cancelled()
        with pytest.raises(RuntimeError, match="shut down"):
            self.service.register_timer(1, never)
        self.service.shutdown()
        assert self.service.quiesce().done()
        assert self.service.state is ClockState.SHUTDOWN

    def test_shut_down_after_quiesced(self):
        self.service.quiesce()
        self.service.shutdown()
        assert self.service.state is ClockState.SHUTDOWN

    def test_nobody_can_cancel_the_future_of_all(self):
        view = ProcessingTimeServiceImpl(self.service, lambda callback, t: callback(t))
        answers = []
        view.register_timer(1000, lambda t: answers.append(view.quiesce().cancel()))
        self.service.register_timer(1000, lambda t: answers.append(self.service.quiesce().cancel()))
        view.register_timer(1000, never)
        self.service.advance(0)
        assert answers == [False, False]

    def test_timers_keep_their_order_when_many_are_cancelled(self):
        times = [1000 + i * 37 % 300 for i in range(300)]
        timers = [self.service.register_timer(t, self.log) for t in times]
        for timestamp, timer in zip(times, timers, strict=True):
            if timestamp % 3:
                timer.cancel()
        assert self.service.num_active_timers == 100
        self.service.advance(300)
        assert self.log.calls == list(range(1002, 1300, 3))

    def test_none_is_active_after_the_end_whatever_was_cancelled(self):
        self.service.register_timer(1100, never).cancel()
        self.service.quiesce()
        assert self.service.num_active_timers == 0

    def test_a_handle_does_not_keep_its_callback(self):
        class Big:
            def __call__(self, timestamp):
                pass

        fired, waiting = Big(), Big()
        dead = [weakref.ref(fired), weakref.ref(waiting)]
        view = ProcessingTimeServiceImpl(self.service, lambda callback, t: callback(t))
        handles = [
            self.service.register_timer(1000, fired),
            view.register_timer(1000, fired),
            self.service.register_timer(1100, waiting),
        ]
        del fired, waiting
        self.service.advance(0)
        self.service.quiesce()
        gc.collect()
        assert [ref() for ref in dead] == [None, None]
        assert all(handle.done() for handle in handles)

    def test_cancelled_timers_leave_nothing_behind(self):
        class Big:
            def __call__(self, timestamp):
                pass

        first = Big()
        dead = weakref.ref(first)
        timers = [self.service.register_timer(10**9, first)]
        timers += [self.service.register_timer(10**9 + i, Big()) for i in range(1000)]
        del first
        timers[0].cancel()
        gc.collect()
        assert dead() is None  # at once, though the entry may wait for the clean-up
        for timer in timers[1:900]:
            timer.cancel()
        assert self.service.num_active_timers == 101
        assert len(self.service._heap) <= 2 * 101 + 1
        self.service.set_current_time(10**9 + 1000)
        assert self.service.num_active_timers == 0
        assert self.service._dead == 0


class ManualMachine(RuleBasedStateMachine):
    """The manual clock, compared with a list that is sorted at each step."""

    timers = Bundle("timers")

    def __init__(self):
        super().__init__()
        self.now = 0
        self.service = ManualProcessingTimeService()
        self.calls: list[tuple[int, int]] = []
        self.expected: list[tuple[int, int]] = []
        self.order = 0
        # [timestamp, order, name, what to register when called (a distance) or None]
        self.waiting: list[list[Any]] = []
        self.names = 0

    def new_name(self):
        self.names += 1
        return self.names

    def enter(self, timestamp, name, child=None):
        self.order += 1
        self.waiting.append([timestamp, self.order, name, child])

    @rule(target=timers, timestamp=st.integers(-5, 60), child=st.none() | st.integers(-5, 20))
    def register(self, timestamp, child):
        name = self.new_name()

        def callback(t):
            self.calls.append((t, name))
            if child is not None:
                self.service.register_timer(t + child, lambda u: self.calls.append((u, -name)))

        self.enter(timestamp, name, child=child)
        return name, self.service.register_timer(timestamp, callback)

    @rule(timer=consumes(timers))
    def cancel(self, timer):
        name, handle = timer
        there = [entry for entry in self.waiting if entry[2] == name]
        assert handle.done() == (not there)
        assert handle.cancel() == bool(there)
        assert handle.done()
        assert handle.cancelled() == bool(there)
        self.waiting = [entry for entry in self.waiting if entry[2] != name]

    @rule(step=st.integers(-10, 40))
    def set_clock(self, step):
        self.now += step
        while due := sorted(entry for entry in self.waiting if entry[0] <= self.now):
            entry = due[0]
            timestamp, _, name, child = entry
            self.waiting.remove(entry)
            self.expected.append((timestamp, name))
            if child is not None:
                self.enter(timestamp + child, -name)
        if step >= 0:
            self.service.advance(step)
        else:
            self.service.set_current_time(self.now)

    @invariant()
    def agrees(self):
        assert self.calls == self.expected
        assert self.service.num_active_timers == len(self.waiting)
        assert self.service.active_timer_timestamps() == sorted(e[0] for e in self.waiting)
        assert self.service.current_processing_time() == self.now


TestManualAgainstItsModel = ManualMachine.TestCase
