"""A mail: one action that waits for its turn in the mailbox thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol, final

#: The lowest priority: ``take`` matches any mail.
MIN_PRIORITY = -1

#: The highest priority: every operator of a chain may run such a mail while it waits.
MAX_PRIORITY = 2**31 - 1


@final
class MailOptions:
    """Queueing options of a mail: ``DEFAULT``, :meth:`urgent` or :meth:`deferrable`. Immutable.

    Flink: ``MailboxExecutor.MailOptions``.
    """

    __slots__ = ("is_deferrable", "is_urgent")

    #: Neither urgent nor deferrable.
    DEFAULT: ClassVar[MailOptions]

    is_urgent: bool
    is_deferrable: bool

    def __init__(self, *, is_urgent: bool, is_deferrable: bool) -> None:
        self.is_urgent = is_urgent
        self.is_deferrable = is_deferrable

    @staticmethod
    def urgent() -> MailOptions:
        """Return options for an urgent mail, such as an unaligned checkpoint, which overtakes non-urgent mails.

        Urgent mails keep their order.
        """
        return _URGENT

    @staticmethod
    def deferrable() -> MailOptions:
        """Return options for a mail that waits until no operator is processing a record.

        :meth:`MailboxExecutor.yield_` and :meth:`MailboxExecutor.try_yield` skip such mails, so a blocked operator (and
        a checkpoint that waits for the operator) continues as soon as possible.
        """
        return _DEFERRABLE

    def __repr__(self) -> str:
        kind = "urgent" if self.is_urgent else "deferrable" if self.is_deferrable else "DEFAULT"
        return f"MailOptions.{kind}"


MailOptions.DEFAULT = MailOptions(is_urgent=False, is_deferrable=False)
_URGENT = MailOptions(is_urgent=True, is_deferrable=False)
_DEFERRABLE = MailOptions(is_urgent=False, is_deferrable=True)

# Cheaper to read than a class attribute.
_DEFAULT = MailOptions.DEFAULT


@final
class Mail:
    """An action for one operator of the chain, with a readable description. Flink: ``Mail``.

    Any thread may create a mail; only the mailbox thread runs it.

    Args:
        command: the action. If it has a ``cancel`` method, :meth:`try_cancel` calls it.
        priority: the chain index of the mail's operator. While an operator waits, mails of upstream operators (with
            lower priority) do not run. At other times, priorities have no effect.
        description: for debugging and errors; ``%``-style with ``args``, formatted on demand.
    """

    __slots__ = ("_args", "_command", "_description", "operator_priority", "options", "priority")

    options: MailOptions

    #: ``MIN_PRIORITY`` for a deferrable mail.
    priority: int

    #: Also for a deferrable mail.
    operator_priority: int

    def __init__(
        self,
        command: Callable[[], object],
        priority: int,
        description: str,
        *args: object,
        options: MailOptions = _DEFAULT,
    ) -> None:
        self._command = command
        self.operator_priority = priority
        self.priority = MIN_PRIORITY if options.is_deferrable else priority
        self._description = description
        self._args = args
        self.options = options

    def run(self) -> None:
        """Run the command. Its errors propagate. Mailbox thread only."""
        self._command()

    def try_cancel(self) -> bool:
        """Cancel the command if possible, and return whether it was cancelled.

        Plain functions and running or completed futures cannot be cancelled.
        """
        cancel = getattr(self._command, "cancel", None)
        return bool(cancel()) if callable(cancel) else False

    def __str__(self) -> str:
        if not self._args:
            return self._description
        try:
            return self._description % self._args
        except (TypeError, ValueError, KeyError):
            # A malformed description must not hide another error.
            return f"{self._description} {self._args!r}"

    def __repr__(self) -> str:
        return f"<Mail {str(self)!r} priority={self.priority} {self.options!r}>"


class MailWaiter(Protocol):
    """Waits for mail in the mailbox thread, and does other work until then."""

    def wait(self) -> None:
        """Wait for :meth:`wake`. May return earlier. Mailbox thread only."""

    def wake(self) -> None:
        """Make the current or next :meth:`wait` return. Called in any thread, under the mailbox's lock."""
