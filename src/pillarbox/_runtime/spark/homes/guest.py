"""A guest of a home: the tasks of one level and state partition, and the thread in which they live.

A home has one guest, whose thread is the main one. More share it where a query may have no more homes on the executor:
then they run functions in turn, so these run one at a time in a process, as in a Python worker of Spark's.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from pillarbox._elements import Buffer
from pillarbox._runtime.spark.homes import surroundings
from pillarbox._runtime.spark.homes.wire import Kind, Visit
from pillarbox._runtime.spark.tasks.channel import Channel, LostError
from pillarbox._runtime.spark.tasks.level_tasks import LevelTasks
from pillarbox._runtime.spark.tasks.residency import Residency
from pillarbox._state.chunks.head import META

# How long a relay may take to send a visit that has begun to come (seconds).
_VISIT_SECONDS = 2.0
# After this time without a message, a relay is told that its epoch runs (seconds).
_WELCOME_SECONDS = 1.0

Resting = Callable[[], AbstractContextManager[None]]
_log = logging.getLogger("pillarbox")


class Turn:
    """The right to run functions in a home, which its guests have in turn. Any thread may call its methods.

    Attributes:
        in_line: the threads that wait for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self.in_line: set[int] = set()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the right meanwhile."""
        self._take(threading.get_ident())
        try:
            yield
        finally:
            self._give_away()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Give it away meanwhile, if the calling thread has it."""
        me = threading.get_ident()
        if self._owner != me:
            yield
            return
        self._give_away()
        try:
            yield
        finally:
            self._take(me)

    def _take(self, me: int) -> None:
        if not self._lock.acquire(blocking=False):
            self.in_line.add(me)
            try:
                self._lock.acquire()
            finally:
                self.in_line.discard(me)
        self._owner = me

    def _give_away(self) -> None:
        self._owner = None
        self._lock.release()


class _Chunks:
    """A subtask's chunks in Spark's state, which only the relay reaches.

    Args:
        head: the log's head, if the relay has read it already.
        rest: returns a context for waiting.
    """

    def __init__(self, channel: Channel, head: bytes | None, rest: Resting) -> None:
        self._channel = channel
        self._rest = rest
        self._head = head

    def get(self, number: int) -> bytes | None:
        if number == META and self._head is not None:
            return self._head
        with self._rest():
            found: bytes | None = self._channel.ask(Kind.GET, number)
        return found

    def put(self, number: int, value: bytes) -> None:
        self._head = None
        self._channel.post((Kind.PUT, number, value))

    def remove(self, number: int) -> None:
        self._channel.post((Kind.REMOVE, number))


class Guest:
    """The tasks of one level and state partition, and the thread that they have.

    Args:
        clock: seconds, from any start.
        idle: how long a task stays that nobody asks for (seconds).
        turn: the right to run functions in this process.
    """

    def __init__(self, clock: Callable[[], float], idle: float, turn: Turn) -> None:
        self._clock = clock
        self._residency = Residency(clock, idle=idle, stay=True, resting=turn.resting)
        self._turn = turn
        self._tasks: LevelTasks | None = None
        self._thread: int | None = None
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        # Guards what follows.
        self._lock = threading.Lock()
        # Connections of relays that are not here, by number; who takes one out reads from it.
        self._idle: dict[int, Channel] = {}
        self._waiting: tuple[Visit, Channel] | None = None
        self._present: Channel | None = None
        self._newest = -1
        self._is_over = False
        self._last_used = self._began = clock()
        # Since when a relay waits for an attempt that was cut off to leave; None: none does.
        self._waits_since: float | None = None
        # The number of the first of Spark's tasks that came, and the last epoch.
        self.since: int | None = None
        self.epoch = 0

    # -- any thread --

    def take_visit(self, number: int) -> None:
        """Receive the visit that has come through a connection, unless another thread has."""
        with self._lock:
            channel = self._idle.pop(number, None)
        if channel is None:
            return
        try:
            channel.set_timeout(_VISIT_SECONDS)
            visit: Visit = channel.receive()
            channel.set_timeout(None)
            if not self._offer(visit, channel):
                _refuse(channel)
        except LostError:
            channel.close()

    def _offer(self, visit: Visit, channel: Channel) -> bool:
        """Let a relay be served; return whether it is the newest. One that is served is cut off.

        Raises:
            LostError: it has gone, or the guest has.
        """
        with self._lock:
            if self._is_over:
                raise LostError
            if visit.attempt < self._newest:
                return False
            self._newest = visit.attempt
            self.since = visit.attempt if self.since is None else self.since
            self.epoch = max(self.epoch, visit.epoch)
            late = self._waiting
            self._waiting = visit, channel
            present = self._present
            if present is not None and self._waits_since is None:
                self._waits_since = self._clock()
        if present is not None:
            self._cut_off(present)
        if late is not None:
            _refuse(late[1])
        self._wake()
        return True

    def _wake(self) -> None:
        if threading.get_ident() != self._thread:
            with suppress(BlockingIOError):  # it has been woken often enough
                os.write(self._wakes, b"\0")

    # -- the door's thread --

    def add(self, channel: Channel) -> None:
        """Let a relay come when it has something to do."""
        with self._lock:
            self._idle[channel.fileno()] = channel
        self._wake()

    @property
    def watched(self) -> dict[int, bool]:
        """The connections to watch while an epoch runs, by number: whether it is the epoch's, or may bring a visit."""
        with self._lock:
            if self._present is None or self._present.is_lost:
                return {}
            return {self._present.fileno(): True, **dict.fromkeys(self._idle, False)}

    def has_gone(self, number: int) -> None:
        """Cancel the epoch whose relay has gone."""
        with self._lock:
            present = self._present
        if present is not None and present.fileno() == number:
            self._cut_off(present)

    def _cut_off(self, channel: Channel) -> None:
        """Let a relay go, and cancel its epoch, if one is running."""
        channel.cut()
        with self._lock:  # no other relay gets its turn meanwhile
            if self._present is channel and self._tasks is not None:
                self._tasks.cancel()

    def end(self) -> None:
        """Let the guest's thread close its tasks and end."""
        with self._lock:
            self._is_over = True
            present = self._present
        if present is not None:
            self._cut_off(present)
        self._wake()

    def welcome(self) -> None:
        """Tell the relay that its epoch runs, if it has been told nothing for some time."""
        with self._lock:
            present, began = self._present, self._began
        if present is not None and not present.has_sent and self._clock() - began > _WELCOME_SECONDS:
            with suppress(LostError):
                present.send((Kind.WELCOME,))

    def seconds_overdue(self) -> float:
        """For how long an attempt that was cut off has been running functions."""
        now = self._clock()
        with self._lock:
            if self._waits_since is not None and self._thread in self._turn.in_line:
                self._waits_since = now  # others run functions, and it waits for its turn
            return 0.0 if self._waits_since is None else now - self._waits_since

    @property
    def unused(self) -> float:
        """For how long no relay has been here (seconds)."""
        is_used = self._present is not None or self._waiting is not None
        return 0.0 if is_used else self._clock() - self._last_used

    # -- the guest's thread --

    def live(self) -> None:
        """Serve one relay after the other, then close the tasks."""
        self._thread = threading.get_ident()
        while (waiting := self._await_visit()) is not None:
            visit, channel = waiting
            try:
                self._serve(visit, channel)
            except LostError:
                self._close(channel)  # its worker has ended, or a newer task of Spark's has come
            except BaseException:
                _log.exception("a home left a relay")
                self._close(channel)
            self._leave_visit(channel)
            self._residency.spare_the_collector()  # now nobody waits for it
        with self._turn.taken():
            self._residency.close_all()

    def _close(self, channel: Channel) -> None:
        with self._lock:  # it may be known as one that stays
            self._idle = {number: each for number, each in self._idle.items() if each is not channel}
        channel.close()

    def _await_visit(self) -> tuple[Visit, Channel] | None:
        """Return who comes next; None: nobody will."""
        while True:
            with self._lock:
                if self._is_over:
                    return None
                waiting = self._waiting
                if waiting is not None:
                    self._waiting, self._present, self._waits_since = None, waiting[1], None
                    self._began, waiting[1].has_sent = self._clock(), False
                    return waiting
                idle = [*self._idle]
            poll = select.poll()
            for number in (self._woken, *idle):
                poll.register(number, select.POLLIN)
            for number, _ in poll.poll():
                if number == self._woken:
                    os.read(self._woken, 4096)
                else:
                    self.take_visit(number)

    def _leave_visit(self, channel: Channel) -> None:
        """Let a relay go, whose connection stays, unless that has been done."""
        with self._lock:
            if self._present is channel:
                self._present = None
                self._last_used = self._clock()
                if not channel.is_lost:
                    self._idle[channel.fileno()] = channel

    def _serve(self, visit: Visit, channel: Channel) -> None:
        if visit.surroundings is not None:
            surroundings.enter(visit.surroundings, lambda number: channel.ask_bytes(Kind.VALUE, number))
        if self._tasks is None:
            self._tasks = LevelTasks(pickle.loads(channel.ask_bytes(Kind.LEVEL)), self._residency)
        try:
            with self._turn.taken():
                wakes_up = self._run_epoch(visit, channel, self._tasks)
                taken = surroundings.taken()
        except BaseException as error:
            surroundings.drop()
            if channel.is_lost:
                raise LostError from None
            # (A thread that reads input may still wait for it, so this connection is over.)
            channel.send((Kind.FAILED, type(error).__name__, str(error)))
            raise LostError from None
        # The next visit, which another worker may bring at once, cuts nobody off.
        self._leave_visit(channel)
        channel.send((Kind.DONE, wakes_up, taken))

    def _run_epoch(self, visit: Visit, channel: Channel, tasks: LevelTasks) -> int | None:
        rest = self._turn.resting
        buffers, chunks = _buffers(visit.answers, channel, rest), _Chunks(channel, visit.head, rest)
        epoch = tasks.run_epoch(visit.subtask, visit.facts, buffers, chunks)
        while True:
            try:
                sent = next(epoch)
            except StopIteration as end:
                wakes_up: int | None = end.value
                return wakes_up
            try:
                with rest():
                    channel.post((Kind.OUT, sent))
            except LostError:
                epoch.close()
                raise


def _buffers(answers: list[bytes], channel: Channel, rest: Resting) -> Iterator[list[Buffer]]:
    """Return the buffers that a relay has, each when it is asked for.

    Args:
        answers: the first of them, which have come already.
    """
    found: list[Buffer] | None
    for answer in answers:
        found = pickle.loads(answer)
        if found is None:
            return
        yield found
    while True:
        with rest():
            found = channel.ask(Kind.MORE)
        if found is None:
            return
        yield found


def _refuse(channel: Channel) -> None:
    """Send a relay away, as a newer attempt has come."""
    with suppress(LostError):
        channel.send((Kind.LATE,))
    channel.close()
