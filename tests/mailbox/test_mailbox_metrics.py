from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest

from pillarbox.mailbox import (
    LatencyStatistics,
    MailboxController,
    MailboxMetrics,
    MailboxProcessor,
    Suspension,
)


class ManualTime:
    """A clock, and a scheduler that follows it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self.reads = 0
        self.scheduled = 0

    def clock(self) -> float:
        self.reads += 1
        return self.now

    def schedule(self, delay: float, callback: Callable[[], None]) -> None:
        self.scheduled += 1
        heapq.heappush(self.due, (self.now + delay, self.scheduled, callback))

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while self.due and self.due[0][0] <= until:
            self.now, _, callback = heapq.heappop(self.due)
            callback()
        self.now = until


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


def idle(controller: MailboxController) -> None:
    controller.suspend_default_action()


def nothing() -> None:
    pass


def measured(time: ManualTime, interval: float = 1.0) -> MailboxProcessor:
    metrics = MailboxMetrics(time.schedule, interval=interval, clock=time.clock)
    processor = MailboxProcessor(idle, metrics=metrics)
    processor.run_mailbox_step()
    return processor


def test_m15_counts_mails(time: ManualTime) -> None:
    processor = measured(time)
    executor = processor.get_main_mailbox_executor()
    assert processor.metrics.mails_processed == 0
    executor.execute(nothing, "m")
    executor.execute(nothing, "m")
    assert processor.metrics.mails_waiting == 2
    processor.run_mailbox_step()
    assert processor.metrics.mails_processed == 1
    assert processor.metrics.mails_waiting == 1
    processor.drain()
    assert processor.metrics.mails_processed == 2
    assert processor.metrics.mails_waiting == 0


def test_m15_a_mail_that_fails_counts(time: ManualTime) -> None:
    processor = measured(time)
    processor.report_throwable(LookupError())
    with pytest.raises(LookupError):
        processor.run_mailbox_step()
    assert processor.metrics.mails_processed == 1


def test_m15_latency_is_measured_from_the_first_real_mail(time: ManualTime) -> None:
    processor = measured(time)
    metrics = processor.metrics
    executor = processor.get_main_mailbox_executor()
    processor.suspend()
    processor.run_mailbox_loop()  # a poison mail starts nothing
    assert not metrics.is_latency_measurement_started
    assert time.scheduled == 0

    executor.execute(nothing, "first real mail")
    processor.run_mailbox_step()
    assert metrics.is_latency_measurement_started
    assert time.scheduled == 1
    executor.execute(nothing, "second")
    processor.run_mailbox_step()
    assert time.scheduled == 1
    assert metrics.latency is None


def test_m15_latency_is_the_time_a_probe_waits(time: ManualTime) -> None:
    processor = measured(time, interval=10.0)
    metrics = processor.metrics
    processor.get_main_mailbox_executor().execute(nothing, "first real mail")
    processor.run_mailbox_step()

    time.advance(10.0)  # the probe is put
    assert metrics.mails_waiting == 1
    time.advance(0.25)
    processor.run_mailbox_step()
    assert metrics.latency == LatencyStatistics(1, 0.25, 0.25, 0.25, 0.25)

    time.advance(9.0)
    assert metrics.mails_waiting == 0  # the interval counts from the probe's execution
    time.advance(1.0)
    time.advance(0.75)
    processor.run_mailbox_step()
    assert metrics.latency == LatencyStatistics(2, 0.75, 0.25, 0.5, 0.75)


def test_m15_latency_forgets_the_old(time: ManualTime) -> None:
    processor = measured(time)
    processor.get_main_mailbox_executor().execute(nothing, "first real mail")
    processor.run_mailbox_step()
    for i in range(12):
        time.advance(1.0)
        time.now += i
        processor.run_mailbox_step()
    assert processor.metrics.latency == LatencyStatistics(12, 11.0, 2.0, 6.5, 11.0)


def test_m15_a_probe_that_meets_a_suspended_loop_is_not_counted(time: ManualTime) -> None:
    processor = measured(time)
    metrics = processor.metrics
    executor = processor.get_main_mailbox_executor()
    executor.execute(nothing, "first real mail")
    executor.execute(processor.suspend, "suspend")
    processor.run_mailbox_loop()
    time.advance(1.0)  # the probe is put while the loop is suspended
    time.advance(500.0)
    executor.execute(processor.suspend, "suspend")
    processor.run_mailbox_loop()
    assert metrics.latency is None
    assert time.scheduled == 2  # but the next one is on its way


def test_m15_probes_end_with_the_mailbox(time: ManualTime) -> None:
    processor = measured(time)
    processor.get_main_mailbox_executor().execute(nothing, "first real mail")
    processor.run_mailbox_step()
    processor.close()
    time.advance(1.0)
    assert time.due == []


def test_m15_idle_time_is_what_the_loop_waits(time: ManualTime, threads) -> None:
    metrics = MailboxMetrics(clock=time.clock)
    suspensions: list[Suspension] = []

    def action(controller: MailboxController) -> None:
        if suspensions:
            controller.all_actions_completed()
        else:
            suspensions.append(controller.suspend_default_action())

    processor = MailboxProcessor(action, metrics=metrics)
    executor = processor.get_main_mailbox_executor()

    def busy() -> None:
        time.now += 100.0

    def drive() -> None:
        threads.until(lambda: processor.mailbox._waiting)
        time.now += 3.0
        assert metrics.idle_time == 3.0  # the current wait counts
        executor.submit(busy, "work").result(threads.patience)
        threads.until(lambda: processor.mailbox._waiting)
        time.now += 4.0
        suspensions[0].resume()

    driving = threads.start(drive)
    processor.run_mailbox_loop()
    driving.result(threads.patience)
    assert metrics.idle_time == 7.0
    assert metrics.statistics().idle_time == 7.0
    assert metrics.statistics().mails_processed == metrics.mails_processed == 3
    assert metrics.statistics().mails_waiting == 0
    assert metrics.statistics().latency is None


def test_m15_costs_nothing_where_no_mail_comes(time: ManualTime) -> None:
    calls = 0

    def action(controller: MailboxController) -> None:
        nonlocal calls
        calls += 1
        if calls == 100:
            controller.all_actions_completed()

    metrics = MailboxMetrics(time.schedule, clock=time.clock)
    MailboxProcessor(action, metrics=metrics).run_mailbox_loop()
    assert calls == 100
    assert (time.reads, time.scheduled) == (0, 0)
    assert metrics.mails_processed == 1  # the mail that ended it


def test_m15_metrics_belong_to_one_processor(time: ManualTime) -> None:
    processor = measured(time)
    with pytest.raises(RuntimeError, match="another"):
        MailboxProcessor(idle, metrics=processor.metrics)
    with pytest.raises(ValueError, match="interval"):
        MailboxMetrics(time.schedule, interval=0.0)
    assert MailboxMetrics().mails_waiting == 0
