"""Measures a mailbox: numbers of mails, latency and idle time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from pillarbox.mailbox._mailbox_executor import RejectedExecutionError

if TYPE_CHECKING:
    from pillarbox.mailbox._mailbox_executor import MailboxExecutor
    from pillarbox.mailbox._task_mailbox import TaskMailbox

#: ``schedule(delay, callback)``: call ``callback`` after ``delay`` seconds, in any thread.
ProbeScheduler = Callable[[float, Callable[[], None]], object]

# As in Flink (DescriptiveStatisticsHistogram(10)).
_KEPT_LATENCIES = 10


@final
@dataclass(frozen=True)
class LatencyStatistics:
    """Waiting times of the latest probe mails, in seconds."""

    count: int
    last: float
    #: Statistics of the latest ten.
    minimum: float
    mean: float
    maximum: float


@final
@dataclass(frozen=True)
class MailboxStatistics:
    """The result of :meth:`MailboxMetrics.statistics`."""

    mails_processed: int
    mails_waiting: int
    #: In seconds.
    idle_time: float
    #: ``None`` before the first measurement.
    latency: LatencyStatistics | None


@final
class MailboxMetrics:
    """Measures one mailbox and its loop. Flink: ``MailboxMetricsController``.

    Latency is the waiting time of probe mails, which are added at an interval, starting with the first real mail. Idle
    time is the time that the loop waited for mail because its default action was suspended.

    The mailbox thread writes without a lock. Any thread may read.

    Args:
        schedule: calls a function after a delay. If None, latency is not measured.
        interval: seconds from the execution of a probe to the next probe.
        clock: returns monotonic time (seconds).
    """

    __slots__ = (
        "_clock",
        "_executor",
        "_idle_since",
        "_idle_time",
        "_interval",
        "_latencies",
        "_latency_count",
        "_mailbox",
        "_run",
        "_schedule",
        "mails_processed",
        "start_pending",
    )

    #: Includes probes and control mails.
    mails_processed: int

    #: Whether probes wait for the first real mail.
    start_pending: bool

    def __init__(
        self,
        schedule: ProbeScheduler | None = None,
        *,
        interval: float = 1.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if interval <= 0:
            raise ValueError(f"interval= must be positive, not {interval}")
        self._schedule = schedule
        self._interval = interval
        self._clock = clock
        self._mailbox: TaskMailbox | None = None
        self._executor: MailboxExecutor | None = None
        self.mails_processed = 0
        self.start_pending = False
        self._latencies: deque[float] = deque(maxlen=_KEPT_LATENCIES)
        self._latency_count = 0
        self._idle_time = 0.0
        self._idle_since: float | None = None
        # Counts runs of the loop, so that a probe can detect a suspension.
        self._run = 0

    # Reading: any thread.

    @property
    def mails_waiting(self) -> int:
        """The number of waiting mails."""
        return 0 if self._mailbox is None else self._mailbox.size()

    @property
    def idle_time(self) -> float:
        """Seconds the loop has spent without work, including the current wait."""
        since = self._idle_since
        return self._idle_time + (0.0 if since is None else max(0.0, self._clock() - since))

    @property
    def latency(self) -> LatencyStatistics | None:
        """Waiting times of the latest probe mails, or ``None`` before the first measurement."""
        latencies = list(self._latencies)
        if not latencies:
            return None
        return LatencyStatistics(
            count=self._latency_count,
            last=latencies[-1],
            minimum=min(latencies),
            mean=sum(latencies) / len(latencies),
            maximum=max(latencies),
        )

    @property
    def is_latency_measurement_started(self) -> bool:
        """Whether probes have started."""
        return self._executor is not None and self._schedule is not None and not self.start_pending

    def statistics(self) -> MailboxStatistics:
        """Return a snapshot of all measurements."""
        return MailboxStatistics(
            mails_processed=self.mails_processed,
            mails_waiting=self.mails_waiting,
            idle_time=self.idle_time,
            latency=self.latency,
        )

    def _bind(self, mailbox: TaskMailbox, executor: MailboxExecutor) -> None:
        if self._mailbox is not None:
            raise RuntimeError("these metrics belong to another mailbox processor")
        self._mailbox = mailbox
        self._executor = executor
        self.start_pending = self._schedule is not None

    def _loop_entered(self) -> None:
        self._run += 1

    def _start(self) -> None:
        self.start_pending = False
        self._schedule_probe()

    def _idle_started(self) -> None:
        self._idle_since = self._clock()

    def _idle_ended(self) -> None:
        if self._idle_since is not None:
            since, self._idle_since = self._idle_since, None
            self._idle_time += max(0.0, self._clock() - since)

    def _schedule_probe(self) -> None:
        assert self._schedule is not None
        self._schedule(self._interval, self._send_probe)

    def _send_probe(self) -> None:
        assert self._executor is not None
        run, sent = self._run, self._clock()

        def probe() -> None:
            if run == self._run:
                self._latencies.append(self._clock() - sent)
                self._latency_count += 1
            self._schedule_probe()

        try:
            self._executor.execute(probe, "measure mailbox latency")
        except RejectedExecutionError:
            pass  # the task is ending
