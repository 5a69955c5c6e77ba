"""Processing time (T6): the manual clock, the system's clock, and an operator's view of either."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pillarbox.time import (
    ManualProcessingTimeService,
    ProcessingTimeServiceImpl,
    ServiceState,
    SystemProcessingTimeService,
    processing_time_delay,
    system_clock_ms,
)

PATIENCE = 60.0  # seconds that no test comes near, unless it fails


def never(timestamp):
    raise AssertionError(f"the timer for {timestamp} fired")


def end(service):
    """Shut a service of the system's clock down, and wait for its thread."""
    service.shutdown()
    if service._thread is not None:
        service._thread.join(PATIENCE)
        assert not service._thread.is_alive()


class Log:
    """A callback that notes when it is called."""

    def __init__(self):
        self.calls = []

    def __call__(self, timestamp):
        self.calls.append(timestamp)


@pytest.mark.parametrize(
    ("timestamp", "now", "delay"),
    [(10, 10, 1), (11, 10, 2), (9, 10, 0), (-5, 10, 0), (2**63 - 1, 0, 2**63)],
)
def test_t6_a_timer_fires_when_the_clock_has_passed_it(timestamp, now, delay):
    assert processing_time_delay(timestamp, now) == delay


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

    def test_what_is_past_waits_for_the_clock_to_be_set(self):
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
        assert self.service.state is ServiceState.QUIESCED
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
        assert self.service.state is ServiceState.SHUTDOWN
        assert waiting.cancelled()
        with pytest.raises(RuntimeError, match="shut down"):
            self.service.register_timer(1, never)
        self.service.shutdown()
        assert self.service.quiesce().done()
        assert self.service.state is ServiceState.SHUTDOWN

    def test_shut_down_after_quiesced(self):
        self.service.quiesce()
        self.service.shutdown()
        assert self.service.state is ServiceState.SHUTDOWN

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
    """The manual clock against a plain list that is sorted anew each time."""

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


ManualMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestManualAgainstItsModel = ManualMachine.TestCase


class TestSystem:
    """No test sleeps: each waits for an event that the scheduler thread sets."""

    def setup_method(self):
        self.errors = []
        self.failed = threading.Event()
        self.service = SystemProcessingTimeService(self.on_error)

    def teardown_method(self):
        end(self.service)

    def on_error(self, error):
        self.errors.append(error)
        self.failed.set()

    def test_the_clock_is_the_systems(self):
        before = time.time_ns() // 1_000_000
        now = self.service.current_processing_time()
        assert before <= now <= system_clock_ms()

    def test_the_thread_starts_with_the_first_timer_and_is_a_daemon(self):
        assert self.service._thread is None
        threads: Future[threading.Thread] = Future()
        self.service.register_timer(0, lambda t: threads.set_result(threading.current_thread()))
        thread = threads.result(PATIENCE)
        assert thread is self.service._thread
        assert thread.daemon
        assert thread.name == "pillarbox-timers"

    def test_t6_the_clock_has_passed_the_timestamp_when_a_timer_fires(self):
        for distance in (-1000, 0, 1, 5):
            fired: Future[tuple[int, int]] = Future()

            def fire(t, fired=fired):
                fired.set_result((t, time.monotonic_ns()))

            start = time.monotonic_ns()
            timestamp = system_clock_ms() + distance
            timer = self.service.register_timer(timestamp, fire)
            called_with, at = fired.result(PATIENCE)
            assert called_with == timestamp
            # The wait is the distance and 1 ms, less than 1 ms of which was over at the start. It
            # is measured by the monotonic clock, so the test does it too.
            assert at - start >= max(distance, 0) * 1_000_000
            self.wait_until_done(timer)

    def wait_until_done(self, timer):
        # A callback that was called may not have returned yet: the next one comes after it.
        passed = threading.Event()
        self.service.register_timer(0, lambda t: passed.set())
        assert passed.wait(PATIENCE)
        assert timer.done()

    def test_an_earlier_timer_overtakes_one_that_is_waited_for(self):
        fired = threading.Event()
        self.service.register_timer(system_clock_ms() + 3_600_000, never)
        self.service.register_timer(2**63 - 1, never)
        self.service.register_timer(0, lambda t: fired.set())
        assert fired.wait(PATIENCE)
        assert self.service.num_active_timers == 2

    def test_timers_run_in_order_and_one_at_a_time(self):
        calls: list[int] = []
        ended = threading.Event()
        begin = threading.Event()
        self.service.register_timer(0, lambda t: begin.wait(PATIENCE))
        now = system_clock_ms() + 5
        for timestamp in (now + 3, now + 1, now + 2):
            self.service.register_timer(timestamp, calls.append)
        self.service.register_timer(now + 10, lambda t: ended.set())
        begin.set()
        assert ended.wait(PATIENCE)
        assert calls == [now + 1, now + 2, now + 3]

    def test_a_cancelled_timer_does_not_fire(self):
        ended = threading.Event()
        timer = self.service.register_timer(system_clock_ms() + 20, never)
        assert timer.cancel()
        self.service.register_timer(system_clock_ms() + 30, lambda t: ended.set())
        assert ended.wait(PATIENCE)
        assert not self.errors
        assert self.service.num_active_timers == 0

    def test_t6_errors_go_to_the_handler_and_the_thread_lives_on(self):
        def fail(timestamp):
            raise SystemExit(timestamp)

        timer = self.service.register_timer(7, fail)
        assert self.failed.wait(PATIENCE)
        assert [repr(error) for error in self.errors] == ["SystemExit(7)"]
        self.wait_until_done(timer)

    def test_a_handler_that_fails_itself_is_logged(self, caplog):
        def handle(error):
            raise ValueError("the handler's own")

        service = SystemProcessingTimeService(handle)
        ended = threading.Event()
        service.register_timer(0, never)
        service.register_timer(0, lambda t: ended.set())
        assert ended.wait(PATIENCE)
        assert "the handler's own" in caplog.text
        end(service)

    def test_t6_quiesced_while_a_callback_runs(self):
        started, go_on = threading.Event(), threading.Event()

        def slow(timestamp):
            started.set()
            assert go_on.wait(PATIENCE)

        timer = self.service.register_timer(0, slow)
        waiting = self.service.register_timer(0, never)
        assert started.wait(PATIENCE)
        future = self.service.quiesce()
        assert not future.done()
        assert not timer.done()
        assert waiting.cancelled()
        late = self.service.register_timer(0, never)
        go_on.set()
        future.result(PATIENCE)
        assert timer.done()
        assert not late.done()
        assert not self.errors

    def test_t6_quiesced_and_shut_down_without_a_timer(self):
        assert self.service.quiesce().done()
        self.service.shutdown()
        with pytest.raises(RuntimeError, match="shut down"):
            self.service.register_timer(0, never)

    def test_t6_shut_down_ends_the_thread(self):
        waiting = self.service.register_timer(system_clock_ms() + 3_600_000, never)
        thread = self.service._thread
        assert thread is not None
        self.service.shutdown()
        assert waiting.cancelled()
        thread.join(PATIENCE)
        assert not thread.is_alive()

    def test_many_threads_register_and_cancel(self):
        fired: list[int] = []
        ended = threading.Event()
        kept = []

        def work(number):
            for i in range(200):
                timer = self.service.register_timer(system_clock_ms() + i % 7, fired.append)
                if i % 2 and timer.cancel():
                    continue
                kept.append(timer)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        self.service.register_timer(system_clock_ms() + 20, lambda t: ended.set())
        assert ended.wait(PATIENCE)
        assert len(fired) == len(kept)
        assert all(timer.done() for timer in kept)


class Mailbox:
    """Takes callbacks as a mailbox would, and runs them when the test says so."""

    def __init__(self):
        self.mails = []
        self.closed = False

    def defer(self, callback, timestamp):
        if self.closed:
            raise RuntimeError("the mailbox is closed")
        self.mails.append((callback, timestamp))

    def run(self):
        mails, self.mails = self.mails, []
        for callback, timestamp in mails:
            callback(timestamp)


class TestOperatorsView:
    def setup_method(self):
        self.clock = ManualProcessingTimeService()
        self.mailbox = Mailbox()
        self.service = ProcessingTimeServiceImpl(self.clock, self.mailbox.defer)
        self.other = ProcessingTimeServiceImpl(self.clock, self.mailbox.defer)
        self.log = Log()

    def test_t6_callbacks_are_deferred_with_their_timestamp(self):
        timer = self.service.register_timer(10, self.log)
        self.clock.advance(50)
        assert self.service.current_processing_time() == 50
        assert self.log.calls == []
        assert not timer.done()
        assert self.service.num_pending_callbacks == 1
        self.mailbox.run()
        assert self.log.calls == [10]
        assert timer.done()
        assert not timer.cancelled()
        assert self.service.num_pending_callbacks == 0

    def test_a_mail_can_be_named_after_its_callback(self):
        def flush(timestamp):
            pass

        self.service.register_timer(10, flush)
        self.clock.advance(10)
        assert "flush" in str(self.mailbox.mails[0][0])
        assert "flush" in repr(self.mailbox.mails[0][0])

    def test_cancelling_before_its_time(self):
        timer = self.service.register_timer(10, never)
        assert timer.cancel()
        assert timer.cancelled()
        assert timer.done()
        assert not timer.cancel()
        assert self.clock.num_active_timers == 0

    def test_cancelling_while_its_mail_waits(self):
        timer = self.service.register_timer(10, never)
        self.clock.advance(10)
        assert timer.cancel()
        future = self.service.quiesce()
        assert not future.done()
        self.mailbox.run()
        assert future.done()

    def test_a_timer_that_runs_or_has_run_cannot_be_cancelled(self):
        answers = []
        timer = self.service.register_timer(10, lambda t: answers.append((timer.cancel(), timer.done())))
        self.clock.advance(10)
        self.mailbox.run()
        assert answers == [(False, False)]
        assert not timer.cancel()
        assert not timer.cancelled()

    def test_t6_one_operator_is_quiesced_while_others_go_on(self):
        waiting = self.service.register_timer(20, never)
        self.service.register_timer(10, self.log)
        self.other.register_timer(20, self.log)
        self.clock.advance(10)
        future = self.service.quiesce()
        assert self.service.state is ServiceState.QUIESCED
        assert self.service.quiesce() is future
        assert not future.done()  # a mail is under way
        late = self.service.register_timer(0, never)
        self.clock.advance(10)
        assert not future.done()
        self.mailbox.run()
        assert self.log.calls == [10, 20]
        assert future.done()
        assert not late.done()
        assert waiting.cancelled()  # its time came, for nothing
        assert self.clock.state is ServiceState.ALIVE
        assert self.other.state is ServiceState.ALIVE

    def test_t6_quiesced_with_nothing_under_way(self):
        assert self.service.quiesce().done()
        assert self.service.quiesce().done()

    def test_t6_quiesced_by_its_own_callback(self):
        futures = []

        def close(timestamp):
            futures.append(self.service.quiesce())
            assert not futures[0].done()

        self.service.register_timer(0, close)
        self.clock.advance(0)
        self.mailbox.run()
        assert futures[0].done()

    def test_t6_shut_down_leaves_the_clock_alone(self):
        self.service.register_timer(10, self.log)
        self.clock.advance(10)
        self.service.shutdown()
        assert self.service.state is ServiceState.SHUTDOWN
        with pytest.raises(RuntimeError, match="shut down"):
            self.service.register_timer(0, never)
        future = self.service.quiesce()
        assert self.service.state is ServiceState.SHUTDOWN
        assert not future.done()
        self.mailbox.run()
        assert future.done()
        assert self.log.calls == [10]
        assert self.clock.state is ServiceState.ALIVE

    def test_a_callback_that_raises_fails_its_mail_and_is_not_pending(self):
        def fail(timestamp):
            raise KeyError("mine")

        timer = self.service.register_timer(10, fail)
        self.clock.advance(10)
        future = self.service.quiesce()
        with pytest.raises(KeyError, match="mine"):
            self.mailbox.run()
        assert future.done()
        assert timer.done()

    def test_a_closed_mailbox_is_the_error_of_the_clock(self):
        timer = self.service.register_timer(10, never)
        self.mailbox.closed = True
        with pytest.raises(RuntimeError, match="the mailbox is closed"):
            self.clock.advance(10)
        assert self.service.num_pending_callbacks == 0
        assert timer.cancelled()
        assert self.service.quiesce().done()

    def test_when_the_clock_is_closed_its_timers_are_done(self):
        fired = self.service.register_timer(10, self.log)
        waiting = self.service.register_timer(20, never)
        self.clock.advance(10)
        self.clock.quiesce()
        assert waiting.done()
        assert not fired.done()  # its mail still comes
        self.mailbox.run()
        assert fired.done()
        assert not self.service.register_timer(30, never).done()
        self.clock.shutdown()
        with pytest.raises(RuntimeError, match="shut down"):
            self.service.register_timer(0, never)

    def test_t6_over_the_systems_clock_callbacks_run_in_the_mailbox_thread(self):
        posted = threading.Event()

        def defer(callback, timestamp):
            self.mailbox.defer(callback, timestamp)
            posted.set()

        errors: list[BaseException] = []
        system = SystemProcessingTimeService(errors.append)
        service = ProcessingTimeServiceImpl(system, defer)
        threads = []
        service.register_timer(0, lambda t: threads.append(threading.current_thread()))
        assert posted.wait(PATIENCE)
        self.mailbox.run()
        assert threads == [threading.current_thread()]
        end(system)
        assert errors == []
