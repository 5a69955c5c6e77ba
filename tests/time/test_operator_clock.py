"""An operator's view of its task's clock."""

from __future__ import annotations

import threading

import pytest

from pillarbox._time.clock import ClockState
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox._time.operator_clock import ProcessingTimeServiceImpl
from pillarbox._time.system_clock import SystemProcessingTimeService

PATIENCE = 60.0  # seconds, reached only on failure


def never(timestamp):
    raise AssertionError(f"the timer for {timestamp} fired")


def end(service):
    service.shutdown()
    if service._thread is not None:
        service._thread.join(PATIENCE)
        assert not service._thread.is_alive()


class Log:
    def __init__(self):
        self.calls = []

    def __call__(self, timestamp):
        self.calls.append(timestamp)


class Mailbox:
    """Receives callbacks, and runs them on request."""

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
        assert self.service._running == 1
        self.mailbox.run()
        assert self.log.calls == [10]
        assert timer.done()
        assert not timer.cancelled()
        assert self.service._running == 0

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
        assert self.service.state is ClockState.QUIESCED
        assert self.service.quiesce() is future
        assert not future.done()  # a mail is under way
        late = self.service.register_timer(0, never)
        self.clock.advance(10)
        assert not future.done()
        self.mailbox.run()
        assert self.log.calls == [10, 20]
        assert future.done()
        assert not late.done()
        assert waiting.cancelled()  # its time passed in vain
        assert self.clock.state is ClockState.ALIVE
        assert self.other.state is ClockState.ALIVE

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
        assert self.service.state is ClockState.SHUTDOWN
        with pytest.raises(RuntimeError, match="shut down"):
            self.service.register_timer(0, never)
        future = self.service.quiesce()
        assert self.service.state is ClockState.SHUTDOWN
        assert not future.done()
        self.mailbox.run()
        assert future.done()
        assert self.log.calls == [10]
        assert self.clock.state is ClockState.ALIVE

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
        assert self.service._running == 0
        assert timer.cancelled()
        assert self.service.quiesce().done()

    def test_closing_the_clock_ends_its_timers(self):
        fired = self.service.register_timer(10, self.log)
        waiting = self.service.register_timer(20, never)
        self.clock.advance(10)
        self.clock.quiesce()
        assert waiting.done()
        assert not fired.done()  # its mail is still pending
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
