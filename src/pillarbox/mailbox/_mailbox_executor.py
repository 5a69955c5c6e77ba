"""``MailboxExecutor``, the operators' interface to a mailbox: submit actions, and yield to other mails."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar, final

from pillarbox.mailbox._mail import Mail, MailOptions, MailWaiter
from pillarbox.mailbox._task_mailbox import MailboxClosedError, TaskMailbox

if TYPE_CHECKING:
    from pillarbox.mailbox._mailbox_processor import MailboxProcessor

T = TypeVar("T")

_DEFAULT = MailOptions.DEFAULT


class RejectedExecutionError(RuntimeError):
    """The mailbox is quiesced or closed, so a command will never run. Java: ``RejectedExecutionException``."""


@final
class _FutureCommand(Future[T]):
    """A future that runs its command when it is called, like Java's ``FutureTask``."""

    def __init__(self, command: Callable[[], T]) -> None:
        super().__init__()
        self._command = command

    def __call__(self) -> None:
        if not self.set_running_or_notify_cancel():
            return  # cancelled while it waited
        command = self._command
        del self._command  # the future may outlive the command's objects
        try:
            result = command()
        except Exception as error:
            self.set_exception(error)
        except BaseException as error:
            # Ctrl-C and sys.exit() must reach the thread, too
            self.set_exception(error)
            raise
        else:
            self.set_result(result)


@final
class MailboxExecutor:
    """An operator's access to the mailbox: adds mails with the operator's priority, and runs waiting mails.

    Any thread may call ``execute`` and ``submit``. The other methods raise :class:`WrongThreadError` outside of the
    mailbox thread.

    An operator that must wait in the middle of a record yields: it runs its own mails and mails of downstream
    operators, but not of upstream operators, which could emit the next record before this record is finished.

    Flink: ``MailboxExecutorImpl``. Here, as Flink's documentation demands, :meth:`yield_` never runs deferrable mails.

    Args:
        priority: the priority of the executor's mails. A yield runs mails of at least this priority.
        processor: the processor whose default action :meth:`is_idle` checks.
    """

    __slots__ = ("_mailbox", "_priority", "_processor", "_put")

    def __init__(
        self,
        mailbox: TaskMailbox,
        priority: int,
        processor: MailboxProcessor | None = None,
    ) -> None:
        self._mailbox = mailbox
        self._put = mailbox.put
        self._priority = priority
        self._processor = processor

    @property
    def priority(self) -> int:
        """The priority of this executor's mails."""
        return self._priority

    def execute(
        self,
        command: Callable[[], object],
        description: str,
        *args: object,
        options: MailOptions = _DEFAULT,
    ) -> None:
        """Run ``command`` in the mailbox thread. An error of the command fails the loop.

        Args:
            description: ``%``-style, formatted with ``args`` on demand.

        Raises:
            RejectedExecutionError: the mailbox is quiesced or closed.
        """
        try:
            self._put(Mail(command, self._priority, description, *args, options=options))
        except MailboxClosedError as error:
            raise RejectedExecutionError(str(error)) from error

    def submit(
        self,
        command: Callable[[], T],
        description: str,
        *args: object,
        options: MailOptions = _DEFAULT,
    ) -> Future[T]:
        """Run ``command`` in the mailbox thread, and return a future of its result or error.

        An error does *not* fail the task. Closing the mailbox before the command runs cancels the future. Do not wait
        for it in the mailbox thread.

        Raises:
            RejectedExecutionError: the mailbox is quiesced or closed.
        """
        future = _FutureCommand(command)
        self.execute(future, description, *args, options=options)
        return future

    def yield_(self) -> None:
        """Wait for a mail of at least this executor's priority, and run it.

        Does not run deferrable mails. Errors of the mail propagate.

        Raises:
            MailboxClosedError: the mailbox is closed, or quiesced without such a mail.
        """
        self._mailbox._take(self._is_own).run()

    def yield_ignoring_deferrable(self) -> None:
        """Yield as :meth:`yield_` does, but also run deferrable mails.

        For an operator that finishes: no record is in progress, and all its mails must run. Flink:
        ``MailboxExecutorImpl.tryYieldIgnoringDeferrable``.
        """
        self._mailbox._take(lambda mail: mail.operator_priority >= self._priority).run()

    def try_yield(self) -> bool:
        """Yield as :meth:`yield_` does, but do not wait for a mail. Return whether a mail was run.

        Raises:
            MailboxClosedError: the mailbox is closed.
        """
        mail = self._mailbox._try_take(self._is_own)
        if mail is None:
            return False
        mail.run()
        return True

    def _is_own(self, mail: Mail) -> bool:
        return mail.priority >= self._priority and not mail.options.is_deferrable

    def wait_in(self, waiter: MailWaiter | None) -> None:
        """Wait for mail with ``waiter`` from now on, or block the thread if it is None."""
        self._mailbox.wait_in(waiter)

    def should_interrupt(self) -> bool:
        """Return whether a long computation in the mailbox thread should pause because mail is waiting."""
        return self._mailbox.has_mail()

    def is_idle(self) -> bool:
        """Return whether the open mailbox is empty and the default action is suspended.

        Raises:
            RuntimeError: the executor was created without a processor.
        """
        if self._processor is None:
            raise RuntimeError("this executor was created without a processor")
        return (
            not self._processor.is_default_action_available()
            and not self._mailbox.has_mail()
            and self._mailbox.state.is_accepting_mails
        )

    def __repr__(self) -> str:
        return f"<MailboxExecutor priority={self._priority} of {self._mailbox!r}>"
