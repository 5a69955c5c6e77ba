"""Flink's mailbox: a single thread runs everything that touches a task, one action at a time.

The lowest layer of pillarbox, independent of streams. Any thread can put mails (queued actions) into a
:class:`TaskMailbox`. The thread of a :class:`MailboxProcessor` runs the mails, alternating with a default action::

    def process_input(controller):
        record = source.poll()
        if record is not None:
            handle(record)
        elif source.is_finished():
            controller.all_actions_completed()
        else:
            source.on_data(controller.suspend_default_action().resume)

    processor = MailboxProcessor(process_input)
    executor = processor.get_main_mailbox_executor()
    executor.execute(flush, "flush after %d seconds", 5)  # from any thread
    processor.run_mailbox_loop()
"""

from pillarbox.mailbox._default_action import (
    MailboxController,
    MailboxDefaultAction,
    PeriodTimer,
    Suspension,
)
from pillarbox.mailbox._mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions
from pillarbox.mailbox._mailbox_executor import MailboxExecutor, RejectedExecutionError
from pillarbox.mailbox._mailbox_processor import MailboxProcessor
from pillarbox.mailbox._metrics import (
    LatencyStatistics,
    MailboxMetrics,
    MailboxStatistics,
    ProbeScheduler,
)
from pillarbox.mailbox._task_mailbox import (
    MailboxClosedError,
    MailboxState,
    State,
    TaskMailbox,
    WrongThreadError,
)

__all__ = [
    "MAX_PRIORITY",
    "MIN_PRIORITY",
    "LatencyStatistics",
    "Mail",
    "MailOptions",
    "MailboxClosedError",
    "MailboxController",
    "MailboxDefaultAction",
    "MailboxExecutor",
    "MailboxMetrics",
    "MailboxProcessor",
    "MailboxState",
    "MailboxStatistics",
    "PeriodTimer",
    "ProbeScheduler",
    "RejectedExecutionError",
    "State",
    "Suspension",
    "TaskMailbox",
    "WrongThreadError",
]
