# SPDX-License-Identifier: Apache-2.0
"""The mailbox of one task: many threads put, one thread takes."""

from __future__ import annotations

import enum
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar, final

from pillarbox.mailbox.mail import MIN_PRIORITY, Mail

__all__ = ["MailboxClosedError", "MailboxState", "State", "TaskMailbox", "WrongThreadError"]

T = TypeVar("T")

# On Windows a thread that waits for a lock does not notice Ctrl-C, so it looks up once a second.
_LONGEST_WAIT = 1.0 if sys.platform == "win32" else -1.0


class MailboxState(enum.Enum):
    """Where a mailbox stands in its life, which only goes forward.

    Flink: ``TaskMailbox.State``.
    """

    #: Mails may be put and taken.
    OPEN = "OPEN"
    #: No new mails; those that are there may be taken.
    QUIESCED = "QUIESCED"
    #: Neither.
    CLOSED = "CLOSED"

    @property
    def is_accepting_mails(self) -> bool:
        """Whether ``put`` works."""
        return self is MailboxState.OPEN


#: Flink's name for it.
State = MailboxState

_OPEN = MailboxState.OPEN
_QUIESCED = MailboxState.QUIESCED
_CLOSED = MailboxState.CLOSED


class MailboxClosedError(RuntimeError):
    """The mailbox is quiesced or closed, and no longer does what was asked of it.

    Flink: ``TaskMailbox.MailboxClosedException``.
    """


class WrongThreadError(RuntimeError):
    """Something that belongs to the mailbox thread was called from another thread.

    Flink: the ``IllegalStateException`` of ``TaskMailboxImpl.checkIsMailboxThread``.
    """


@final
class TaskMailbox:
    """A queue with many writers and one reader, the *mailbox thread*.

    Mails are taken from three places, in this order:

    1. *urgent*: urgent mails, first come, first served; under the lock;
    2. *batch*: mails that :meth:`create_batch` moved over in one go; only the mailbox thread
       touches it, without the lock;
    3. *queue*: all else that was put; under the lock.

    Threads: ``put``, ``put_first``, ``size``, ``run_exclusively``, ``state`` and
    ``is_mailbox_thread`` may be called from any; everything else raises
    :class:`WrongThreadError` outside the mailbox thread.

    Flink: ``TaskMailboxImpl``. Two things differ. Urgent mails have a queue of their own instead of
    sitting in reverse order at the head of the common one; the order in which mails come out is
    that of Flink. And a blocking :meth:`take` on a quiesced mailbox that holds no fitting mail
    raises, where Flink would wait for a mail that can never come.

    Args:
        thread: the mailbox thread; by default the one that creates the mailbox.
    """

    __slots__ = (
        "_batch",
        "_in_use",
        "_lock",
        "_queue",
        "_state",
        "_thread",
        "_urgent",
        "_waiting",
        "_wakeup",
        "has_new_mail",
        "has_new_urgent_mail",
    )

    #: Whether the queue or the urgent queue holds mail. Written under the lock, read without it:
    #: see the note on lock-free reads in ``__init__``.
    has_new_mail: bool

    #: Whether the urgent queue holds mail. As ``has_new_mail``.
    has_new_urgent_mail: bool

    def __init__(self, thread: threading.Thread | None = None) -> None:
        self._thread = threading.current_thread() if thread is None else thread
        # Guards _queue, _urgent, _state (writes), _waiting, _in_use and both flags (writes).
        # Reentrant, because run_exclusively lends it to functions that put.
        self._lock = threading.RLock()
        self._queue: deque[Mail] = deque()
        self._urgent: deque[Mail] = deque()
        # Mailbox thread only, no lock. (size() looks at its length from outside: one atomic read.)
        self._batch: deque[Mail] = deque()
        self._state = _OPEN
        # Lock-free reads: each flag is one attribute that is written under the lock. With the GIL
        # a read is atomic; on a free-threaded build it may be stale for a moment. Stale True costs
        # one locking for nothing. Stale False delays the mail to the next look, never loses it:
        # the loop looks again every round, and a take that would block decides under the lock.
        self.has_new_mail = False
        self.has_new_urgent_mail = False
        # The blocked take. A lock that is always held serves as a binary semaphore: half the cost
        # of a threading.Condition, and interruptible by signals. Released once per _waiting.
        self._waiting = False
        self._wakeup = threading.Lock()
        self._wakeup.acquire()
        # Whether a processor is driving this mailbox right now; forbids a change of thread.
        self._in_use = False

    # -- any thread ------------------------------------------------------------------------------

    def is_mailbox_thread(self) -> bool:
        """Whether the caller runs in the mailbox thread."""
        # The thread object, not its ident: idents are used again when a thread has died.
        return threading.current_thread() is self._thread

    @property
    def state(self) -> MailboxState:
        """Where the mailbox stands in its life.

        Outside the mailbox thread it may be outdated as soon as it is read, except inside
        :meth:`run_exclusively`.
        """
        return self._state

    def size(self) -> int:
        """How many mails wait. Outside the mailbox thread it is a snapshot."""
        with self._lock:
            return len(self._urgent) + len(self._batch) + len(self._queue)

    def put(self, mail: Mail) -> None:
        """Add ``mail`` at the end; an urgent one behind the other urgent ones, before the rest.

        Raises:
            MailboxClosedError: the mailbox is quiesced or closed.
        """
        with self._lock:
            if self._state is not _OPEN:
                raise self._rejected(mail)
            if mail.options.is_urgent:
                self._urgent.append(mail)
                self.has_new_urgent_mail = True
            else:
                self._queue.append(mail)
            self.has_new_mail = True
            if self._waiting:
                self._wake()

    def put_first(self, mail: Mail) -> None:
        """Add ``mail`` at the head.

        From the mailbox thread it becomes the head of the batch: the next mail to be taken, but for
        urgent ones. From another thread it becomes the head of the queue, because the batch is not
        theirs to touch (an urgent mail: the head of the urgent ones), and wakes a waiting take.

        Raises:
            MailboxClosedError: the mailbox is quiesced or closed.

        Flink: ``TaskMailboxImpl.putFirst``.
        """
        if self.is_mailbox_thread():
            # Only this thread changes the state, so it needs no lock to read it.
            if self._state is not _OPEN:
                raise self._rejected(mail)
            self._batch.appendleft(mail)
            return
        with self._lock:
            if self._state is not _OPEN:
                raise self._rejected(mail)
            if mail.options.is_urgent:
                self._urgent.appendleft(mail)
                self.has_new_urgent_mail = True
            else:
                self._queue.appendleft(mail)
            self.has_new_mail = True
            if self._waiting:
                self._wake()

    def run_exclusively(self, function: Callable[[], T]) -> T:
        """Run ``function`` under the mailbox lock and return its result.

        Nobody else puts, and nobody quiesces or closes the mailbox, while it runs: "look at the
        state, then put" is one step. Keep it short, all writers wait.

        Flink: ``TaskMailboxImpl.runExclusively``.
        """
        with self._lock:
            return function()

    # -- mailbox thread only ---------------------------------------------------------------------

    def has_mail(self) -> bool:
        """Whether a mail waits, of any priority. Takes no lock.

        Raises:
            WrongThreadError: not called from the mailbox thread.
        """
        self._check_is_mailbox_thread()
        return bool(self._batch) or self.has_new_mail

    def create_batch(self) -> bool:
        """Move what was put into the batch, in one locking (none if nothing was put).

        What an earlier batch left over stays in front.

        Returns:
            whether :meth:`try_take_from_batch` will find a mail.

        Raises:
            WrongThreadError: not called from the mailbox thread.
            MailboxClosedError: the mailbox is closed.
        """
        self._check_is_mailbox_thread()
        self._check_not_closed()
        if self.has_new_mail:
            self._fill_batch()
        return bool(self._batch) or self.has_new_urgent_mail

    def try_take_from_batch(self) -> Mail | None:
        """The next mail of the batch, or ``None`` where the batch is used up.

        Urgent mails come first, whenever they were put. An urgent mail that finds the batch empty
        pulls the queue behind it into the batch, as in Flink (FLINK-39898): else a steady flow of
        urgent mails would leave the others behind.

        Raises:
            WrongThreadError: not called from the mailbox thread.
            MailboxClosedError: the mailbox is closed.
        """
        self._check_is_mailbox_thread()
        self._check_not_closed()
        if self.has_new_urgent_mail and not self._batch:
            self._fill_batch()
        return self._poll_batch()

    def try_take(self, priority: int = MIN_PRIORITY) -> Mail | None:
        """The first mail whose priority is at least ``priority``, or ``None``.

        Raises:
            WrongThreadError: not called from the mailbox thread.
            MailboxClosedError: the mailbox is closed.
        """
        return self._try_take(priority, skip_deferrable=False)

    def take(self, priority: int = MIN_PRIORITY) -> Mail:
        """The first mail whose priority is at least ``priority``; waits until there is one.

        Signals are handled while it waits (in the main thread), so Ctrl-C ends it.

        Raises:
            WrongThreadError: not called from the mailbox thread.
            MailboxClosedError: the mailbox is closed, or it is quiesced and holds no such mail, so
                that none can ever come.
        """
        return self._take(priority, skip_deferrable=False)

    def drain(self) -> list[Mail]:
        """Remove all mails and return them, in the order in which they would have been taken.

        Raises:
            WrongThreadError: not called from the mailbox thread.
        """
        self._check_is_mailbox_thread()
        with self._lock:
            mails = [*self._urgent, *self._batch, *self._queue]
            self._urgent.clear()
            self._batch.clear()
            self._queue.clear()
            self._update_flags()
            return mails

    def quiesce(self) -> None:
        """Take no more mails in. Those that are there can still be taken. No effect if closed.

        Raises:
            WrongThreadError: not called from the mailbox thread.
        """
        self._check_is_mailbox_thread()
        with self._lock:
            if self._state is _OPEN:
                self._state = _QUIESCED
                self._wake_if_waiting()

    def close(self) -> list[Mail]:
        """End the mailbox and wake whoever waits for it.

        Returns:
            the mails that were dropped; nothing on a second call.

        Raises:
            WrongThreadError: not called from the mailbox thread.
        """
        self._check_is_mailbox_thread()
        with self._lock:
            dropped = self.drain()
            self._state = _CLOSED
            # A take can only be waiting here if a signal handler closes the mailbox beneath it.
            self._wake_if_waiting()
            return dropped

    # -- changing the thread ---------------------------------------------------------------------

    def bind_to_current_thread(self) -> None:
        """Make the calling thread the mailbox thread.

        For tasks that stay alive while nothing drives them, and are then driven by another thread.
        Use :meth:`MailboxProcessor.rebind_to_current_thread` where there is a processor.

        Raises:
            RuntimeError: a processor's loop runs on this mailbox, or a take waits in it.
        """
        with self._lock:
            if self._in_use or self._waiting:
                raise RuntimeError(
                    f"the mailbox is in use by {self._thread.name!r}: "
                    "suspend its loop before another thread takes it over"
                )
            self._thread = threading.current_thread()

    # -- for the package -------------------------------------------------------------------------

    def _enter(self) -> bool:
        """Claim the mailbox for a processor's loop; False if it is claimed already."""
        with self._lock:
            # Under the lock, so that a concurrent bind_to_current_thread comes before or after.
            self._check_is_mailbox_thread()
            if self._in_use:
                return False
            self._in_use = True
            return True

    def _leave(self) -> None:
        with self._lock:
            self._in_use = False

    def _fill_batch(self) -> None:
        with self._lock:
            self._batch.extend(self._queue)
            self._queue.clear()
            self._update_flags()

    def _poll_batch(self) -> Mail | None:
        """As try_take_from_batch, with no checks: for the loop, which has made them once.

        It leaves the queue alone, so that mails which were put during a round wait for the next.
        """
        if self.has_new_urgent_mail:
            with self._lock:
                if self._urgent:
                    mail = self._urgent.popleft()
                    self._update_flags()
                    return mail
        batch = self._batch
        return batch.popleft() if batch else None

    def _put_back(self, mails: Iterable[Mail]) -> None:
        """Return mails that were taken but not run to the head of the batch, in their order."""
        self._batch.extendleft(reversed(list(mails)))

    def _try_take(self, priority: int, *, skip_deferrable: bool) -> Mail | None:
        self._check_is_mailbox_thread()
        self._check_not_closed()
        if self.has_new_urgent_mail:
            with self._lock:
                mail = _remove_first(self._urgent, priority, skip_deferrable)
                if mail is not None:
                    if not self._batch:
                        self._batch.extend(self._queue)
                        self._queue.clear()
                    self._update_flags()
                    return mail
        mail = _remove_first(self._batch, priority, skip_deferrable)
        if mail is not None or not self.has_new_mail:
            return mail
        with self._lock:
            mail = _remove_first(self._queue, priority, skip_deferrable)
            self._update_flags()
            return mail

    def _take(self, priority: int, *, skip_deferrable: bool) -> Mail:
        while True:
            mail = self._try_take(priority, skip_deferrable=skip_deferrable)
            if mail is not None:
                return mail
            with self._lock:
                # What came between the look and this line sits in urgent or queue: look again, now
                # with the lock, and announce the wait before it is given back.
                mail = _remove_first(self._urgent, priority, skip_deferrable)
                if mail is None:
                    mail = _remove_first(self._queue, priority, skip_deferrable)
                if mail is not None:
                    self._update_flags()
                    return mail
                self._announce_wait()
            self._wait()

    def _await_new_mail(self) -> None:
        """Wait until queue or urgent queue hold mail, or for a spurious reason; take nothing."""
        with self._lock:
            if self._queue or self._urgent:
                return
            self._announce_wait()
        self._wait()

    def _announce_wait(self) -> None:
        # Under the lock, in the mailbox thread.
        if self._state is not _OPEN:
            raise MailboxClosedError(f"the mailbox is {self._state.name} and holds no fitting mail: none can come")
        self._wakeup.acquire(False)  # already held, unless an earlier wait was cut short
        self._waiting = True

    def _wait(self) -> None:
        try:
            self._wakeup.acquire(True, _LONGEST_WAIT)
        finally:
            # Also when a signal handler raised. Then a wake-up may have been given and not used:
            # the next wait clears it.
            with self._lock:
                self._waiting = False

    def _wake(self) -> None:
        # Under the lock, and only if _waiting: so it is released at most once per wait.
        self._waiting = False
        self._wakeup.release()

    def _wake_if_waiting(self) -> None:
        if self._waiting:
            self._wake()

    def _update_flags(self) -> None:
        urgent = bool(self._urgent)
        self.has_new_urgent_mail = urgent
        self.has_new_mail = urgent or bool(self._queue)

    def _check_is_mailbox_thread(self) -> None:
        if threading.current_thread() is not self._thread:
            raise WrongThreadError(
                f"only the mailbox thread {self._thread.name!r} may do this, not {threading.current_thread().name!r}"
            )

    def _check_not_closed(self) -> None:
        if self._state is _CLOSED:
            raise MailboxClosedError("the mailbox is CLOSED: there is nothing to take")

    def _rejected(self, mail: Mail) -> MailboxClosedError:
        return MailboxClosedError(f"the mailbox is {self._state.name} and takes no more mails, so not {str(mail)!r}")

    def __repr__(self) -> str:
        return f"<TaskMailbox {self._state.name} of {self._thread.name!r}, {self.size()} mails>"


def _remove_first(mails: deque[Mail], priority: int, skip_deferrable: bool) -> Mail | None:
    """Remove and return the first mail of at least that priority."""
    for index, mail in enumerate(mails):
        if mail.priority >= priority and not (skip_deferrable and mail.options.is_deferrable):
            # Nearly always 0. Not deque.remove(mail): that would compare mails.
            if index == 0:
                mails.popleft()
            else:
                del mails[index]
            return mail
    return None
