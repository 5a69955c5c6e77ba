# SPDX-License-Identifier: Apache-2.0
"""``MailboxController``: lets a default action suspend or end the loop that calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, final, runtime_checkable

from pillarbox.mailbox._task_mailbox import MailboxClosedError

if TYPE_CHECKING:
    from pillarbox.mailbox._mailbox_processor import MailboxProcessor


@runtime_checkable
class PeriodTimer(Protocol):
    """Adds up the time between ``mark_start()`` and ``mark_end()``. Mailbox thread only. Flink: ``PeriodTimer``."""

    def mark_start(self) -> None: ...

    def mark_end(self) -> None: ...


@final
class Suspension:
    """A pause of the default action, ended by :meth:`resume`. Flink: ``MailboxDefaultAction.Suspension``.

    The suspension's timer runs while the loop has no work because of the pause.
    """

    __slots__ = ("_processor", "_timer", "_timer_runs")

    def __init__(self, processor: MailboxProcessor, timer: PeriodTimer | None) -> None:
        self._processor = processor
        self._timer = timer
        # Mailbox thread only.
        self._timer_runs = False
        self._start_timer()

    def resume(self) -> None:
        """Resume the default action, from any thread.

        Has no effect if the pause has ended or the mailbox accepts no mails.
        """
        processor = self._processor
        # Needs no lock, because a suspension never becomes current again.
        if processor._suspended_default_action is not self:
            return
        if processor.is_mailbox_thread():
            self._resume()
            if processor._mailbox._waiting:  # called by a signal handler while the loop waits
                processor._mailbox._wake()
            return
        try:
            processor._send_control_mail(self._resume, "resume default action")
        except MailboxClosedError:
            pass  # the loop is about to end

    def _resume(self) -> None:
        if self._processor._suspended_default_action is self:
            self._stop_timer()
            self._processor._set_default_action_suspension(None)

    def _start_timer(self) -> None:
        if self._timer is not None and not self._timer_runs:
            self._timer_runs = True
            self._timer.mark_start()

    def _stop_timer(self) -> None:
        if self._timer is not None and self._timer_runs:
            self._timer_runs = False
            self._timer.mark_end()


@final
class MailboxController:
    """Lets a default action control the loop that calls it. Flink: ``MailboxDefaultAction.Controller``."""

    __slots__ = ("_processor",)

    def __init__(self, processor: MailboxProcessor) -> None:
        self._processor = processor

    def suspend_default_action(self, timer: PeriodTimer | None = None) -> Suspension:
        """Stop calling the default action until the returned suspension is resumed. Mailbox thread only.

        Mails still run.

        Raises:
            WrongThreadError: called outside of the mailbox thread.
            RuntimeError: the default action is already suspended.
        """
        return self._processor._suspend_default_action(timer)

    def all_actions_completed(self) -> None:
        """End the loop permanently; see :meth:`MailboxProcessor.all_actions_completed`."""
        self._processor.all_actions_completed()


#: The action that the loop calls repeatedly. It should be short, because mails wait. Flink: ``MailboxDefaultAction``.
MailboxDefaultAction = Callable[[MailboxController], object]
