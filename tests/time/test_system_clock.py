from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest

from pillarbox._time.system_clock import SystemProcessingTimeService, processing_time_delay, system_clock_ms

PATIENCE = 60.0  # seconds, reached only on failure


def never(timestamp):
    raise AssertionError(f"the timer for {timestamp} fired")


def end(service):
    service.shutdown()
    if service._thread is not None:
        service._thread.join(PATIENCE)
        assert not service._thread.is_alive()


@pytest.mark.parametrize(
    ("timestamp", "now", "delay"),
    [(10, 10, 1), (11, 10, 2), (9, 10, 0), (-5, 10, 0), (2**63 - 1, 0, 2**63)],
)
def test_t6_a_timer_fires_when_the_clock_has_passed_it(timestamp, now, delay):
    assert processing_time_delay(timestamp, now) == delay


class TestSystem:
    """Tests do not sleep, but wait for events that the scheduler thread sets."""

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
            # The wait is the distance and 1 ms, less than 1 ms of which had passed at the start. It is measured by the
            # monotonic clock, so the test does it too.
            assert at - start >= max(distance, 0) * 1_000_000
            self.wait_until_done(timer)

    def wait_until_done(self, timer):
        # The previous callback may not have returned yet.
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
        begin, ended = threading.Event(), threading.Event()
        self.service.register_timer(0, lambda t: begin.wait(PATIENCE))
        timer = self.service.register_timer(system_clock_ms() + 5, never)
        assert timer.cancel()
        self.service.register_timer(system_clock_ms() + 10, lambda t: ended.set())
        begin.set()
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
        timers = []

        def work(number):
            for i in range(200):
                timer = self.service.register_timer(system_clock_ms() + i % 7, fired.append)
                if i % 2 and timer.cancel():
                    continue
                timers.append(timer)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        self.service.register_timer(system_clock_ms() + 20, lambda t: ended.set())
        assert ended.wait(PATIENCE)
        assert len(fired) == len(timers)
        assert all(timer.done() for timer in timers)
