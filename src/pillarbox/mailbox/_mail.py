"""A mail: one action that waits for its turn in the mailbox thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, final

#: The priority that every ``take`` without a wish of its own asks for: any mail will do.
MIN_PRIORITY = -1

#: The highest priority: every operator of a chain may run such a mail while it waits.
#: (Java's ``Integer.MAX_VALUE``, so that numbers in logs look the same.)
MAX_PRIORITY = 2**31 - 1


@final
class MailOptions:
    """How a mail wants to be treated. Immutable: ``DEFAULT``, or one of the two below.

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
        """Let the mail overtake all that are not urgent. Urgent mails keep their order.

        For mails that must not wait for a long batch, such as an unaligned checkpoint.
        """
        return _URGENT

    @staticmethod
    def deferrable() -> MailOptions:
        """Let the mail wait until no operator is in the middle of a record.

        It is not run by :meth:`MailboxExecutor.yield_` and :meth:`MailboxExecutor.try_yield`, so
        that a blocked operator (and the checkpoint after it) gets free as soon as possible.
        """
        return _DEFERRABLE

    def __repr__(self) -> str:
        kind = "urgent" if self.is_urgent else "deferrable" if self.is_deferrable else "DEFAULT"
        return f"MailOptions.{kind}"


MailOptions.DEFAULT = MailOptions(is_urgent=False, is_deferrable=False)
_URGENT = MailOptions(is_urgent=True, is_deferrable=False)
_DEFERRABLE = MailOptions(is_urgent=False, is_deferrable=True)

# A module constant is cheaper to look at, once per mail, than an attribute of a class.
_DEFAULT = MailOptions.DEFAULT


@final
class Mail:
    """An action bound to one operator of the chain, with a description for people.

    Any thread may create a mail; only the mailbox thread runs it.

    Args:
        command: what to do. A future-like command (one with a ``cancel`` method) can be cancelled
            while it waits, see :meth:`try_cancel`.
        priority: the chain index of the operator that the mail is for. It does not order the
            execution: it hides mails of upstream operators from an operator that waits for its own.
        description: a description of the mail, for debugging and errors; ``%``-style with ``args``.
        args: arguments of the description, formatted only when somebody looks.
        options: urgent, deferrable or neither.

    Flink: ``Mail``.
    """

    __slots__ = ("_args", "_command", "_description", "operator_priority", "options", "priority")

    #: How the mail wants to be treated.
    options: MailOptions

    #: The priority that counts: ``MIN_PRIORITY`` for a deferrable mail.
    priority: int

    #: The priority of the operator which the mail is for, deferrable or not.
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
        """Run the command; its errors go to the caller. Mailbox thread only."""
        self._command()

    def try_cancel(self) -> bool:
        """Cancel the command if it can be cancelled.

        Returns:
            whether the command was future-like and accepted it. ``False`` for plain functions and
            for futures that already run or are done.
        """
        cancel = getattr(self._command, "cancel", None)
        return bool(cancel()) if callable(cancel) else False

    def __str__(self) -> str:
        if not self._args:
            return self._description
        try:
            return self._description % self._args
        except (TypeError, ValueError, KeyError):
            # A description must never be the reason why an error report is lost.
            return f"{self._description} {self._args!r}"

    def __repr__(self) -> str:
        return f"<Mail {str(self)!r} priority={self.priority} {self.options!r}>"
