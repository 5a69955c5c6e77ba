"""The mailbox of one task: many threads put, one thread takes."""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat, starmap
from typing import TypeVar, final

from pillarbox.mailbox._mail import MIN_PRIORITY, Mail

T = TypeVar("T")

# Seconds after which a wait looks up: Python runs no handler for a signal that came just before a thread blocked (and
# on Windows none at all while it is blocked).
_LONGEST_WAIT = 1.0


class MailboxState(enum.Enum):
    """Where a mailbox stands in its life, which only goes forward.

    Flink: ``TaskMailbox.State``.
    """

    #: Mails may be put and taken.
    OPEN = "OPEN"
    #: No new mails; the waiting mails may be taken.
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
    """The mailbox is quiesced or closed, and no longer accepts the call.

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

    1. *urgent*: urgent mails, first come, first served;
    2. *batch*: mails that :meth:`create_batch` moved over in one go; only the mailbox thread
       touches it;
    3. *queue*: all else that was put.

    Threads: ``put``, ``put_first``, ``size``, ``run_exclusively``, ``state`` and
    ``is_mailbox_thread`` may be called from any; everything else raises
    :class:`WrongThreadError` outside the mailbox thread.

    Signal handlers and finalizers may put mails, also where they interrupt the mailbox itself, in
    whichever thread. They come between two steps of Python, and the lock, which is reentrant, does
    not keep them out. So each change here is one step: a mail goes in, comes out or moves over by
    one call of a deque's method, and the notes about the deques may only err on the safe side
    (``_may_have_new_mail``). An error of a handler (Ctrl-C) leaves the mailbox as it was before or after
    that step; only the mail that is just being handed to the taker may go with it.

    The package's other classes know the mailbox from inside: the processor reads the deques, and
    calls the methods of the section "for the package", which leave out checks that it has made.

    Flink: ``TaskMailboxImpl``. Two things differ. Urgent mails have a queue of their own instead of
    sitting in reverse order at the head of the common one; the order in which mails come out is
    Flink's order. And a blocking :meth:`take` on a quiesced mailbox that holds no fitting mail
    raises, where Flink would wait for a mail that can never come.

    Args:
        thread: the mailbox thread; by default the thread that creates the mailbox.
        resting: returns a context in which the mailbox thread waits, as one that gives away a lock.
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
        # Held to put, and to change _state, _thread and _in_use. Taking needs no lock: only the
        # mailbox thread takes, and each step of a deque is atomic by itself.
        # Reentrant, because run_exclusively lends it to functions that put.
        self._lock = threading.RLock()
        self._queue: deque[Mail] = deque()
        self._urgent: deque[Mail] = deque()
        # False only if both are empty: one attribute for the loop to look at, every round, without the
        # lock. Set before a mail goes in, cleared before mails come out, both under the lock.
        self._may_have_new_mail = False
        # Mailbox thread only. (size() looks at its length from outside: one atomic read.)
        self._batch: deque[Mail] = deque()
        self._state = _OPEN
        # The blocked take. A lock that is always held serves as a binary semaphore: half the cost
        # of a threading.Condition (0.2 against 0.4 microseconds to put with nobody waiting), and
        # interruptible by signals.
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

    @property
    def has_new_mail(self) -> bool:
        """Whether something was put that is not in the batch. Takes no lock.

        Outside the mailbox thread, and on a free-threaded build, it may be outdated. That delays
        a mail to the next look and never loses it: the loop looks again every round, and a take
        that would block looks once more when every put wakes it.
        """
        return bool(self._queue or self._urgent)

    @property
    def has_new_urgent_mail(self) -> bool:
        """Whether an urgent mail waits. As :attr:`has_new_mail`."""
        return bool(self._urgent)

    def size(self) -> int:
        """How many mails wait. Outside the mailbox thread it is a snapshot."""
        with self._lock:
            return len(self._urgent) + len(self._batch) + len(self._queue)

    def put(self, mail: Mail) -> None:
        """Add ``mail`` at the end; an urgent one after the other urgent ones, before the rest.

        Raises:
            MailboxClosedError: the mailbox is quiesced or closed.
        """
        with self._lock:
            if self._state is not _OPEN:
                raise self._rejected(mail)
            # Before the mail is put: an interrupted put then wakes for nothing, and does not
            # leave a mail that nobody is woken for.
            if self._waiting:
                self._wake()
            self._may_have_new_mail = True
            (self._urgent if mail.options.is_urgent else self._queue).append(mail)

    def put_first(self, mail: Mail) -> None:
        """Add ``mail`` at the head.

        From the mailbox thread it becomes the head of the batch: the next mail to be taken, but for
        urgent ones. From another thread it becomes the head of the queue, because the batch is not
        theirs to touch (an urgent mail: the head of the urgent ones), and wakes a waiting take.

        Raises:
            MailboxClosedError: the mailbox is quiesced or closed.

        Flink: ``TaskMailboxImpl.putFirst``.
        """
        with self._lock:
            if self._state is not _OPEN:
                raise self._rejected(mail)
            if self._waiting:  # also in the mailbox thread: a signal handler's, beneath a take
                self._wake()
            if self.is_mailbox_thread():
                self._batch.appendleft(mail)
            else:
                self._may_have_new_mail = True
                (self._urgent if mail.options.is_urgent else self._queue).appendleft(mail)

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
        return bool(self._batch or self._queue or self._urgent)

    def create_batch(self) -> bool:
        """Move the mails that were put into the batch, in one locking (none if nothing was put).

        Mails that are left from an earlier batch stay in front.

        Returns:
            whether :meth:`try_take_from_batch` will find a mail.

        Raises:
            WrongThreadError: not called from the mailbox thread.
            MailboxClosedError: the mailbox is closed.
        """
        self._check_is_mailbox_thread()
        self._check_not_closed()
        if self._may_have_new_mail:
            self._fill_batch()
        return bool(self._batch or self._urgent)

    def try_take_from_batch(self) -> Mail | None:
        """Return the next mail of the batch, or ``None`` if the batch is used up.

        Urgent mails come first, whenever they were put. An urgent mail that finds the batch empty
        pulls the rest of the queue into the batch, as in Flink (FLINK-39898): else a steady flow of
        urgent mails would leave the others behind.

        Raises:
            WrongThreadError: not called from the mailbox thread.
            MailboxClosedError: the mailbox is closed.
        """
        self._check_is_mailbox_thread()
        self._check_not_closed()
        if self._urgent and not self._batch:
            self._fill_batch()
        return self._poll_batch()

    def try_take(self, priority: int = MIN_PRIORITY) -> Mail | None:
        """Return the first mail whose priority is at least ``priority``, or ``None``.

        Raises:
            WrongThreadError: not called from the mailbox thread.
            MailboxClosedError: the mailbox is closed.
        """
        return self._try_take(lambda mail: mail.priority >= priority)

    def take(self, priority: int = MIN_PRIORITY) -> Mail:
        """Return the first mail whose priority is at least ``priority``; wait until there is one.

        Signals are handled while it waits (in the main thread), so Ctrl-C ends it.

        Raises:
            WrongThreadError: not called from the mailbox thread.
            MailboxClosedError: the mailbox is closed, or it is quiesced and holds no such mail, so
                that none can ever come.
        """
        return self._take(lambda mail: mail.priority >= priority)

    def drain(self) -> list[Mail]:
        """Remove all mails and return them, in the order in which they would have been taken.

        Raises:
            WrongThreadError: not called from the mailbox thread.
        """
        self._check_is_mailbox_thread()
        mails: list[Mail] = []
        self._drain_into(mails)
        return mails

    def quiesce(self) -> None:
        """Take no more mails in. Waiting mails can still be taken. No effect if closed.

        Raises:
            WrongThreadError: not called from the mailbox thread.
        """
        self._check_is_mailbox_thread()
        with self._lock:
            if self._state is _OPEN:
                self._state = _QUIESCED
                if self._waiting:
                    self._wake()

    def close(self) -> list[Mail]:
        """End the mailbox and wake the threads that wait for it.

        Returns:
            the mails that were dropped; nothing on a second call, unless the first was interrupted.

        Raises:
            WrongThreadError: not called from the mailbox thread.
        """
        self._check_is_mailbox_thread()
        with self._lock:
            # First, so that nothing comes in after the drain.
            self._state = _CLOSED
            # A take can only be waiting here if a signal handler closes the mailbox beneath it.
            if self._waiting:
                self._wake()
            return self.drain()

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
            self._may_have_new_mail = False
            _move(self._queue, self._batch)
            if self._urgent:
                self._may_have_new_mail = True

    def _drain_into(self, mails: list[Mail] | deque[Mail]) -> None:
        """Move all mails to the end of ``mails``, in the order in which they would be taken."""
        with self._lock:
            for source in (self._urgent, self._batch, self._queue):
                _move(source, mails)

    def _poll_batch(self) -> Mail | None:
        """As try_take_from_batch, with no checks: for the loop, which has made them once.

        It leaves the queue alone, so that mails which were put during a round wait for the next.
        """
        try:
            if self._urgent:
                return self._urgent.popleft()
            return self._batch.popleft() if self._batch else None
        except IndexError:
            return None  # a signal handler has closed the mailbox just now

    def _put_back(self, mails: Iterable[Mail]) -> None:
        """Return mails that were taken but not run to the head of the batch, in their order."""
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
                # Mails that are older than the announcement woke nobody.
                mail = self._try_take(fits)
                if mail is not None:
                    return mail
                with self._resting():
                    self._wakeup.acquire(True, _LONGEST_WAIT)
            finally:
                self._waiting = False

    def _await_new_mail(self, is_over: Callable[[], bool]) -> None:
        """Wait until there is mail, or ``is_over`` says, or for a spurious reason; take nothing."""
        try:
            self._announce_wait()
            if not (self._batch or self._queue or self._urgent or is_over()):
                with self._resting():
                    self._wakeup.acquire(True, _LONGEST_WAIT)
        finally:
            self._waiting = False

    def _announce_wait(self) -> None:
        """Ask to be woken by every put from now on."""
        with self._lock:
            if self._state is not _OPEN:
                raise MailboxClosedError(f"the mailbox is {self._state.name} and holds no fitting mail: none can come")
            self._wakeup.acquire(False)  # already held, unless an earlier wait was cut short
            self._waiting = True

    def _wake(self) -> None:
        """Wake the waiting take: under the lock, or in the mailbox thread (its signal handlers)."""
        try:
            self._wakeup.release()
        except RuntimeError:
            pass  # it is being woken already
        self._waiting = False

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


def _move(source: deque[Mail], target: list[Mail] | deque[Mail]) -> None:
    """Move all mails to the end of ``target``, as one step.

    Python runs no handler within ``extend``, nor does a mail ever sit in both or in neither. (What a
    finalizer puts meanwhile stays in ``source``.)
    """
    target.extend(starmap(source.popleft, repeat((), len(source))))


def _remove_first(mails: deque[Mail], fits: Callable[[Mail], bool]) -> Mail | None:
    """Remove and return the first mail that fits."""
    try:
        for index in range(len(mails)):
            mail = mails[index]
            if fits(mail):
                # By identity (mails do not compare), in one step, wherever it is by now. Nearly always the first.
                mails.remove(mail)
                return mail
    except (IndexError, ValueError):
        pass  # a signal handler has closed the mailbox just now
    return None
