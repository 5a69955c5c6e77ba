"""The mailbox of one task. Many threads add mails, and one thread takes them."""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat, starmap
from typing import TypeVar, final

from pillarbox.mailbox._mail import MIN_PRIORITY, Mail, MailWaiter

T = TypeVar("T")

# Maximum wait (seconds). Until it ends, Python does not handle a signal that arrived just before the thread blocked.
_LONGEST_WAIT = 1.0


class MailboxState(enum.Enum):
    """State of a mailbox: OPEN, QUIESCED, CLOSED, in this order. Flink: ``TaskMailbox.State``."""

    #: Mails may be put and taken.
    OPEN = "OPEN"
    #: No new mails.
    QUIESCED = "QUIESCED"
    #: Mails can neither be put nor taken.
    CLOSED = "CLOSED"

    @property
    def is_accepting_mails(self) -> bool:
        """Whether mails can be put."""
        return self is MailboxState.OPEN


#: Flink's name.
State = MailboxState

_OPEN = MailboxState.OPEN
_QUIESCED = MailboxState.QUIESCED
_CLOSED = MailboxState.CLOSED


class MailboxClosedError(RuntimeError):
    """The mailbox is quiesced or closed, so it rejected the call. Flink: ``TaskMailbox.MailboxClosedException``."""


class WrongThreadError(RuntimeError):
    """A method that only the mailbox thread may call was called from another thread.

    Flink: the ``IllegalStateException`` of ``TaskMailboxImpl.checkIsMailboxThread``.
    """


@final
class TaskMailbox:
    """A queue with many writers and one reader, the *mailbox thread*.

    Mails are taken from three deques, in this order:

    1. *urgent*: urgent mails, in order of arrival;
    2. *batch*: mails that :meth:`create_batch` moved together; only the mailbox thread touches it;
    3. *queue*: all other mails.

    Any thread may call ``put``, ``put_first``, ``size``, ``run_exclusively``, ``state`` and ``is_mailbox_thread``. The
    other methods raise :class:`WrongThreadError` outside of the mailbox thread. Methods that put or take mails raise
    :class:`MailboxClosedError` if the state does not allow it.

    Signal handlers and finalizers may put mails, even if they interrupt the mailbox's own methods. The lock is
    therefore reentrant, and each change is a single deque call.

    Flink: ``TaskMailboxImpl``. If a quiesced mailbox has no matching mail, :meth:`take` raises; Flink would wait
    forever.

    Args:
        thread: the mailbox thread, by default the current thread.
        resting: returns a context manager to enter during waits, for example to release a lock.
    """

    __slots__ = (
        "_batch",
        "_in_use",
        "_lock",
        "_may_have_new_mail",
        "_queue",
        "_resting",
        "_state",
        "_thread",
        "_urgent",
        "_waiter",
        "_waiting",
        "_wakeup",
    )

    def __init__(
        self,
        thread: threading.Thread | None = None,
        *,
        resting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._resting = resting
        self._thread = threading.current_thread() if thread is None else thread
        # Held to put, and to change _state, _thread and _in_use. Taking needs no lock, because deque operations are
        # atomic. Reentrant, because run_exclusively runs functions that put.
        self._lock = threading.RLock()
        self._queue: deque[Mail] = deque()
        self._urgent: deque[Mail] = deque()
        # False only if both deques are empty. The loop reads it without the lock. Set before a mail is added, cleared
        # before mails are moved, under the lock.
        self._may_have_new_mail = False
        # Mailbox thread only. (size() reads its length.)
        self._batch: deque[Mail] = deque()
        self._state = _OPEN
        # `_wakeup` blocks take(). A held lock costs half of a threading.Condition, and is interruptible by signals.
        self._waiting = False
        self._wakeup = threading.Lock()
        self._wakeup.acquire()
        # Whether a processor drives this mailbox. If so, its thread cannot change.
        self._in_use = False
        # Replaces `_wakeup`.
        self._waiter: MailWaiter | None = None

    # Any thread.

    def is_mailbox_thread(self) -> bool:
        """Return whether the caller runs in the mailbox thread."""
        # Idents are reused after a thread has died.
        return threading.current_thread() is self._thread

    @property
    def state(self) -> MailboxState:
        """The mailbox's state. Can be outdated in other threads, outside of :meth:`run_exclusively`."""
        return self._state

    @property
    def has_new_mail(self) -> bool:
        """Whether a mail is waiting outside of the batch. Can be outdated in other threads."""
        return bool(self._queue or self._urgent)

    @property
    def has_new_urgent_mail(self) -> bool:
        """Whether an urgent mail is waiting. Can be outdated in other threads."""
        return bool(self._urgent)

    def size(self) -> int:
        """Return the number of waiting mails. Can be outdated in other threads."""
        with self._lock:
            return len(self._urgent) + len(self._batch) + len(self._queue)

    def put(self, mail: Mail) -> None:
        """Add ``mail`` to the end of the queue, or of the urgent mails if it is urgent."""
        with self._lock:
            if self._state is not _OPEN:
                raise self._rejected(mail)
            # First, because an interrupted put may wake needlessly, but must not leave a mail without a wake-up.
            if self._waiting:
                self._wake()
            self._may_have_new_mail = True
            (self._urgent if mail.options.is_urgent else self._queue).append(mail)

    def put_first(self, mail: Mail) -> None:
        """Add ``mail`` to the head of its deque. Flink: ``TaskMailboxImpl.putFirst``.

        The mailbox thread adds the mail to the batch, so it is taken directly after urgent mails. Other threads, which
        must not touch the batch, add it to the queue or to the urgent mails.
        """
        with self._lock:
            if self._state is not _OPEN:
                raise self._rejected(mail)
            if self._waiting:  # called by a signal handler that interrupted a take
                self._wake()
            if self.is_mailbox_thread():
                self._batch.appendleft(mail)
            else:
                self._may_have_new_mail = True
                (self._urgent if mail.options.is_urgent else self._queue).appendleft(mail)

    def run_exclusively(self, function: Callable[[], T]) -> T:
        """Run ``function`` under the mailbox lock and return its result. Flink: ``TaskMailboxImpl.runExclusively``.

        During the call, no other thread can put mails, quiesce or close, so ``function`` must be short.
        """
        with self._lock:
            return function()

    # Mailbox thread only.

    def has_mail(self) -> bool:
        """Return whether any mail is waiting."""
        self._check_is_mailbox_thread()
        return bool(self._batch or self._queue or self._urgent)

    def create_batch(self) -> bool:
        """Move the queued mails to the end of the batch, under a single lock.

        Returns:
            Whether the batch or the urgent deque has mail.
        """
        self._check_is_mailbox_thread()
        self._check_not_closed()
        if self._may_have_new_mail:
            self._fill_batch()
        return bool(self._batch or self._urgent)

    def try_take_from_batch(self) -> Mail | None:
        """Return the next mail of the batch, or ``None`` if it is empty.

        Urgent mails are returned first. If the batch is then empty, the queue is moved into it, so that urgent mails do
        not starve other mails (FLINK-39898).
        """
        self._check_is_mailbox_thread()
        self._check_not_closed()
        if self._urgent and not self._batch:
            self._fill_batch()
        return self._poll_batch()

    def try_take(self, priority: int = MIN_PRIORITY) -> Mail | None:
        """Return the first mail whose priority is at least ``priority``, or ``None``."""
        return self._try_take(lambda mail: mail.priority >= priority)

    def take(self, priority: int = MIN_PRIORITY) -> Mail:
        """Wait for a mail whose priority is at least ``priority``, and return the first.

        In the main thread, Ctrl-C ends the wait.

        Raises:
            MailboxClosedError: the mailbox is closed, or quiesced without such a mail.
        """
        return self._take(lambda mail: mail.priority >= priority)

    def drain(self) -> list[Mail]:
        """Remove and return all mails, in the order that :meth:`take` would return them."""
        self._check_is_mailbox_thread()
        mails: list[Mail] = []
        self._drain_into(mails)
        return mails

    def quiesce(self) -> None:
        """Stop accepting mails. Waiting mails can still be taken. No effect if closed."""
        self._check_is_mailbox_thread()
        with self._lock:
            if self._state is _OPEN:
                self._state = _QUIESCED
                if self._waiting:
                    self._wake()

    def close(self) -> list[Mail]:
        """Close the mailbox and wake waiting threads.

        Returns:
            The mails that were waiting. A second call returns [], unless the first call was interrupted.
        """
        self._check_is_mailbox_thread()
        with self._lock:
            # First, so that no mail is added after the drain.
            self._state = _CLOSED
            # A take waits only if this is a signal handler.
            if self._waiting:
                self._wake()
            return self.drain()

    def wait_in(self, waiter: MailWaiter | None) -> None:
        """Wait for mail with ``waiter`` from now on, or block the thread if it is None."""
        self._check_is_mailbox_thread()
        with self._lock:
            self._waiter = waiter

    def bind_to_current_thread(self) -> None:
        """Make the calling thread the mailbox thread.

        With a processor, use :meth:`MailboxProcessor.rebind_to_current_thread`.

        Raises:
            RuntimeError: a processor's loop runs on this mailbox, or a thread waits in :meth:`take`.
        """
        with self._lock:
            if self._in_use or self._waiting:
                raise RuntimeError(
                    f"the mailbox is in use by {self._thread.name!r}: suspend its loop before another thread takes it"
                    " over"
                )
            self._thread = threading.current_thread()

    # For this package.

    def _enter(self) -> bool:
        with self._lock:
            # Under the lock, so that a concurrent bind_to_current_thread happens before or after.
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
            self._may_have_new_mail = False
            _move(self._queue, self._batch)
            if self._urgent:
                self._may_have_new_mail = True

    def _drain_into(self, mails: list[Mail] | deque[Mail]) -> None:
        with self._lock:
            for source in (self._urgent, self._batch, self._queue):
                _move(source, mails)

    def _poll_batch(self) -> Mail | None:
        """Take a mail from the batch, without checks that the loop has already made."""
        try:
            if self._urgent:
                return self._urgent.popleft()
            return self._batch.popleft() if self._batch else None
        except IndexError:
            return None  # a signal handler has just closed the mailbox

    def _put_back(self, mails: Iterable[Mail]) -> None:
        self._batch.extendleft(reversed(list(mails)))

    def _try_take(self, fits: Callable[[Mail], bool]) -> Mail | None:
        self._check_is_mailbox_thread()
        self._check_not_closed()
        mail = _remove_first(self._urgent, fits)
        if mail is None:
            return _remove_first(self._batch, fits) or _remove_first(self._queue, fits)
        if not self._batch:
            self._fill_batch()
        return mail

    def _take(self, fits: Callable[[Mail], bool]) -> Mail:
        while True:
            mail = self._try_take(fits)
            if mail is not None:
                return mail
            try:
                self._announce_wait()
                # Earlier puts woke no thread, so look again.
                mail = self._try_take(fits)
                if mail is not None:
                    return mail
                self._block()
            finally:
                self._waiting = False

    def _await_new_mail(self, is_over: Callable[[], bool]) -> None:
        """Wait until there is mail or ``is_over`` returns True. May return earlier."""
        try:
            self._announce_wait()
            if not (self._batch or self._queue or self._urgent or is_over()):
                self._block()
        finally:
            self._waiting = False

    def _block(self) -> None:
        if self._waiter is not None:
            self._waiter.wait()
            return
        with self._resting():
            self._wakeup.acquire(True, _LONGEST_WAIT)

    def _announce_wait(self) -> None:
        with self._lock:
            if self._state is not _OPEN:
                raise MailboxClosedError(
                    f"the mailbox is {self._state.name} without a matching mail, and accepts no new ones"
                )
            self._wakeup.acquire(False)  # already held, unless an earlier wait was cut short
            self._waiting = True

    def _wake(self) -> None:
        """Wake the thread that waits in :meth:`take`. Called under the lock, or in a signal handler."""
        if self._waiter is not None:
            self._waiter.wake()
        try:
            self._wakeup.release()
        except RuntimeError:
            pass  # already awake
        self._waiting = False

    def _check_is_mailbox_thread(self) -> None:
        if threading.current_thread() is not self._thread:
            raise WrongThreadError(
                f"thread {threading.current_thread().name!r} may not call this, only the mailbox thread"
                f" {self._thread.name!r}: in other threads, call MailboxExecutor.execute()"
            )

    def _check_not_closed(self) -> None:
        if self._state is _CLOSED:
            raise MailboxClosedError("the mailbox is CLOSED and empty")

    def _rejected(self, mail: Mail) -> MailboxClosedError:
        return MailboxClosedError(f"the mailbox is {self._state.name} and rejects the mail {str(mail)!r}")

    def __repr__(self) -> str:
        return f"<TaskMailbox {self._state.name} of {self._thread.name!r}, {self.size()} mails>"


def _move(source: deque[Mail], target: list[Mail] | deque[Mail]) -> None:
    """Move all mails to the end of ``target``, in one step that a signal handler cannot interrupt."""
    target.extend(starmap(source.popleft, repeat((), len(source))))


def _remove_first(mails: deque[Mail], fits: Callable[[Mail], bool]) -> Mail | None:
    try:
        for index in range(len(mails)):
            mail = mails[index]
            if fits(mail):
                # By identity, in one step.
                mails.remove(mail)
                return mail
    except (IndexError, ValueError):
        pass  # a signal handler has just closed the mailbox
    return None
