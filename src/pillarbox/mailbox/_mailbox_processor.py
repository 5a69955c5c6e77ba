"""The loop that drives a task, alternating between mails and one default action."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import final

from pillarbox.mailbox._default_action import (
    MailboxController,
    MailboxDefaultAction,
    PeriodTimer,
    Suspension,
)
from pillarbox.mailbox._mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions
from pillarbox.mailbox._mailbox_executor import MailboxExecutor
from pillarbox.mailbox._metrics import MailboxMetrics
from pillarbox.mailbox._task_mailbox import (
    MailboxClosedError,
    MailboxState,
    TaskMailbox,
    WrongThreadError,
)

_log = logging.getLogger(__name__)


@final
class MailboxProcessor:
    """Alternates between a mailbox's mails and a default action, in one thread.

    Operators need no locks, because only this thread runs them. Timers, checkpoints and asynchronous results arrive as
    mails, never in the middle of a record.

    A processor is open until :meth:`prepare_close` (which stops new mails) and :meth:`close`. As a context manager, it
    closes itself.

    Any thread may call ``suspend``, ``all_actions_completed``, ``report_throwable``, ``get_..._executor`` and
    ``is_...``. The other methods raise :class:`WrongThreadError` outside of the mailbox thread.

    Flink: ``MailboxProcessor``.

    Args:
        default_action: called with a :class:`MailboxController` whenever no mail is waiting. Its errors end the loop.
        mailbox: by default, a new mailbox of the calling thread.
        metrics: by default, new metrics without latency.
    """

    __slots__ = (
        "_controller",
        "_default_action",
        "_mailbox",
        "_mailbox_loop_running",
        "_metrics",
        "_needs_attention",
        "_suspended",
        "_suspended_default_action",
    )

    def __init__(
        self,
        default_action: MailboxDefaultAction,
        mailbox: TaskMailbox | None = None,
        metrics: MailboxMetrics | None = None,
    ) -> None:
        self._default_action = default_action
        self._mailbox = TaskMailbox() if mailbox is None else mailbox
        self._controller = MailboxController(self)
        # Permanently False after all_actions_completed.
        self._mailbox_loop_running = True
        # Whether the loop must be left, or is not running.
        self._suspended = False
        # The current pause of the default action. Other threads may compare it.
        self._suspended_default_action: Suspension | None = None
        # Combines both flags, for a single check per round.
        self._needs_attention = False
        self._metrics = MailboxMetrics() if metrics is None else metrics
        self._metrics._bind(self._mailbox, self.get_main_mailbox_executor())

    # Any thread.

    @property
    def mailbox(self) -> TaskMailbox:
        return self._mailbox

    @property
    def metrics(self) -> MailboxMetrics:
        return self._metrics

    def get_main_mailbox_executor(self) -> MailboxExecutor:
        """Return an executor with the lowest priority, for the task itself."""
        return self.get_mailbox_executor(MIN_PRIORITY)

    def get_mailbox_executor(self, priority: int) -> MailboxExecutor:
        """Return an executor whose mails have ``priority``, the chain index of an operator."""
        return MailboxExecutor(self._mailbox, priority, self)

    def is_mailbox_thread(self) -> bool:
        """Return whether the caller runs in the mailbox thread."""
        return self._mailbox.is_mailbox_thread()

    def is_mailbox_loop_running(self) -> bool:
        """Return whether the loop is running or can run again."""
        return self._mailbox_loop_running

    def is_default_action_available(self) -> bool:
        """Return whether the default action is not suspended."""
        return self._suspended_default_action is None

    def suspend(self) -> None:
        """Leave the loop before its next step. The loop can be run again.

        If the loop is not running, its next run returns immediately. No effect if the mailbox is quiesced or closed.
        """
        self._send_poison_mail(self._suspend_loop)

    def all_actions_completed(self) -> None:
        """End the loop permanently. Running it again does nothing.

        No effect if the mailbox is quiesced or closed.
        """
        self._send_poison_mail(self._complete_loop)

    def report_throwable(self, throwable: BaseException) -> None:
        """Make :meth:`run_mailbox_loop` raise ``throwable`` in the mailbox thread.

        Raises:
            MailboxClosedError: the mailbox no longer accepts mails. Its cause is ``throwable``.
        """

        def raise_it() -> None:
            raise throwable

        try:
            self._send_control_mail(raise_it, "report throwable %r", throwable)
        except MailboxClosedError as error:
            raise error from throwable

    # Mailbox thread.

    def run_mailbox_loop(self) -> None:
        """Alternate between mails and the default action until the loop ends.

        Each round runs the mails that were waiting at its beginning, and urgent mails; then it calls the default action
        once. While the default action is suspended, the loop waits for mail.

        The loop ends after :meth:`suspend` (and can run again) or :meth:`all_actions_completed`. An error of a mail or
        of the default action also ends it; remaining mails stay in the mailbox.

        Raises:
            MailboxClosedError: the mailbox is not open.
            RuntimeError: called from within the loop.
        """
        if not self._enter():
            return
        mailbox = self._mailbox
        batch = mailbox._batch
        default_action = self._default_action
        controller = self._controller
        # Measure only while the loop runs.
        self._metrics._loop_entered()
        self._start_timer()
        try:
            while True:
                if mailbox._may_have_new_mail or batch or self._needs_attention:
                    self._process_mails()
                    if self._suspended:
                        return
                default_action(controller)
        finally:
            self._stop_timer()
            mailbox._leave()

    def run_mailbox_step(self) -> bool:
        """Run one mail or, without mail, the default action. Return whether anything ran.

        For tests. Raises errors as :meth:`run_mailbox_loop` does.
        """
        if not self._enter():
            return False
        try:
            if self._mailbox.create_batch():
                self._stop_timer()
                self._run_mails(1)
                self._start_timer()
                return True
            if self._suspended_default_action is None:
                self._default_action(self._controller)
                return True
            return False
        finally:
            self._mailbox._leave()

    def drain(self) -> None:
        """Run all waiting mails, but not mails that they add.

        If a mail raises, later mails stay in the mailbox. If a mail closes the mailbox, later mails are cancelled.
        """
        self._mailbox._check_is_mailbox_thread()
        mails: deque[Mail] = deque()
        try:
            self._mailbox._drain_into(mails)
            while mails:
                self._metrics.mails_processed += 1
                mails.popleft().run()
        finally:
            if mails and self._mailbox.state is MailboxState.CLOSED:
                failure = _cancel(mails)
                if failure is not None:
                    _log.warning("could not cancel a mail of a closed mailbox", exc_info=failure)
            elif mails:
                self._mailbox._put_back(mails)

    def prepare_close(self) -> None:
        """Stop accepting mails, so that executors reject commands."""
        self._mailbox.quiesce()

    def close(self) -> None:
        """Close the mailbox and cancel the futures of its remaining mails.

        Raises:
            Exception: the first error of a cancellation, after all have been attempted.
        """
        dropped = self._mailbox.close()
        self._stop_timer()
        if not dropped:
            return
        _log.debug("closing the mailbox dropped mails: %s", dropped)
        first_error = _cancel(dropped)
        if first_error is not None:
            raise first_error

    def __enter__(self) -> MailboxProcessor:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def rebind_to_current_thread(self) -> None:
        """Make the calling thread the mailbox thread, while the loop is not running.

        In the next epoch, Spark may drive a task from another thread.

        Raises:
            RuntimeError: the loop is running.
        """
        self._mailbox.bind_to_current_thread()

    def _enter(self) -> bool:
        mailbox = self._mailbox
        mailbox._check_is_mailbox_thread()
        if not self._mailbox_loop_running:
            self._suspended = True
            return False
        if mailbox.state is not MailboxState.OPEN:
            raise MailboxClosedError(f"the mailbox is {mailbox.state.name}: its loop cannot run")
        if not mailbox._enter():
            raise RuntimeError("another caller is already running the mailbox loop")
        self._suspended = False
        self._update_needs_attention()
        return True

    def _process_mails(self) -> None:
        mailbox = self._mailbox
        if mailbox.create_batch():
            self._stop_timer()
            self._run_mails()
            self._start_timer()
        while self._suspended_default_action is not None and not self._suspended:
            if not mailbox.create_batch():
                self._await_mail()
                continue
            self._stop_timer()
            self._run_mails()
            self._start_timer()

    def _await_mail(self) -> None:
        metrics = self._metrics
        metrics._idle_started()
        try:
            self._mailbox._await_new_mail(self.is_default_action_available)
        finally:
            metrics._idle_ended()

    def _run_mails(self, limit: int = -1) -> None:
        poll = self._mailbox._poll_batch
        metrics = self._metrics
        while limit != 0 and not self._suspended:
            mail = poll()
            if mail is None:
                return
            metrics.mails_processed += 1
            mail.run()
            # Do not measure for a mail that ends the loop.
            if metrics.start_pending and not self._suspended:
                metrics._start()
            limit -= 1

    def _suspend_default_action(self, timer: PeriodTimer | None) -> Suspension:
        if not self._mailbox.is_mailbox_thread():
            raise WrongThreadError("only the mailbox thread may suspend the default action")
        if self._suspended_default_action is not None:
            raise RuntimeError("the default action has already been suspended")
        suspension = Suspension(self, timer)
        self._set_default_action_suspension(suspension)
        return suspension

    def _set_default_action_suspension(self, suspension: Suspension | None) -> None:
        self._suspended_default_action = suspension
        self._update_needs_attention()

    def _suspend_loop(self) -> None:
        self._suspended = True
        self._update_needs_attention()

    def _complete_loop(self) -> None:
        self._mailbox_loop_running = False
        self._suspend_loop()

    def _update_needs_attention(self) -> None:
        self._needs_attention = self._suspended or self._suspended_default_action is not None

    def _stop_timer(self) -> None:
        if self._suspended_default_action is not None:
            self._suspended_default_action._stop_timer()

    def _start_timer(self) -> None:
        if self._suspended_default_action is not None:
            self._suspended_default_action._start_timer()

    def _send_poison_mail(self, command: Callable[[], None]) -> None:
        def put_if_open() -> None:
            # Runs exclusively, so close() cannot happen between the check and the put.
            if self._mailbox.state is MailboxState.OPEN:
                self._send_control_mail(command, "poison mail")

        self._mailbox.run_exclusively(put_if_open)

    def _send_control_mail(self, command: Callable[[], None], description: str, *args: object) -> None:
        # Urgent mails keep their order, so an error reported before a suspension is raised before it.
        mail = Mail(command, MAX_PRIORITY, description, *args, options=MailOptions.urgent())
        self._mailbox.put(mail)


def _cancel(mails: Iterable[Mail]) -> Exception | None:
    first_error: Exception | None = None
    for mail in mails:
        try:
            mail.try_cancel()
        except Exception as error:
            if first_error is None:
                first_error = error
            else:
                _log.warning("could not cancel %s", mail, exc_info=error)
    return first_error
