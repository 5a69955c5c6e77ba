"""Runs a guest of a home process: the tasks of one state partition of one shuffle, in their own thread.

Between epochs, the thread runs the event loop of async keyed functions. If the executor already has its maximum number
of homes, several guests share a home, and only one guest runs functions at a time.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from pillarbox._elements.buffers import Buffer
from pillarbox._runtime.spark.homes import worker_environment
from pillarbox._runtime.spark.homes.wire import HomeEpochRequest, HomeMessageKind
from pillarbox._runtime.spark.tasks.channel import Channel, ChannelLostError
from pillarbox._runtime.spark.tasks.level_tasks import LevelTasks
from pillarbox._runtime.spark.tasks.residency import Residency
from pillarbox._state.chunks.head import META

_VISIT_SECONDS = 2.0
# A home that has sent nothing for this many seconds sends ``WELCOME``.
_WELCOME_SECONDS = 1.0

Resting = Callable[[], AbstractContextManager[None]]
_log = logging.getLogger("pillarbox")


class PartitionLock:
    """The lock that a home's thread holds while it runs user functions. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self.waiting: set[int] = set()

    @contextmanager
    def held(self) -> Iterator[None]:
        self._acquire(threading.get_ident())
        try:
            yield
        finally:
            self._release()

    @contextmanager
    def released(self) -> Iterator[None]:
        thread = threading.get_ident()
        if self._owner != thread:
            yield
            return
        self._release()
        try:
            yield
        finally:
            self._acquire(thread)

    def _acquire(self, thread: int) -> None:
        if not self._lock.acquire(blocking=False):
            self.waiting.add(thread)
            try:
                self._lock.acquire()
            finally:
                self.waiting.discard(thread)
        self._owner = thread

    def _release(self) -> None:
        self._owner = None
        self._lock.release()


class _Chunks:
    def __init__(self, channel: Channel, head: bytes | None, rest: Resting) -> None:
        self._channel = channel
        self._rest = rest
        self._head = head

    def get(self, number: int) -> bytes | None:
        if number == META and self._head is not None:
            return self._head
        with self._rest():
            value: bytes | None = self._channel.ask(HomeMessageKind.GET, number)
        return value

    def put(self, number: int, value: bytes) -> None:
        self._head = None
        self._channel.post((HomeMessageKind.PUT, number, value))

    def remove(self, number: int) -> None:
        self._channel.post((HomeMessageKind.REMOVE, number))


class PartitionTasks:
    """A guest's tasks, and the thread that runs them."""

    def __init__(self, clock: Callable[[], float], idle: float, turn: PartitionLock) -> None:
        self._clock = clock
        self._residency = Residency(clock, idle=idle, stay=True, resting=turn.released)
        self._turn = turn
        self._tasks: LevelTasks | None = None
        self._thread: int | None = None
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        # Guards the fields below.
        self._lock = threading.Lock()
        # Idle relay connections by descriptor.
        self._idle: dict[int, Channel] = {}
        self._waiting: tuple[HomeEpochRequest, Channel] | None = None
        self._present: Channel | None = None
        self._newest = -1
        self._is_over = False
        self._last_used = self._began = self._offered = clock()
        # When a relay began to wait for the end of a cancelled attempt.
        self._waits_since: float | None = None
        # The number of the first Spark task that requested an epoch.
        self.since: int | None = None
        self.epoch = 0

    # -- any thread --

    def take_visit(self, number: int) -> None:
        """Receive an epoch request from connection ``number`` (a descriptor), unless another thread has."""
        with self._lock:
            channel = self._idle.pop(number, None)
        if channel is None:
            return
        try:
            channel.set_timeout(_VISIT_SECONDS)
            visit: HomeEpochRequest = channel.receive()
            channel.set_timeout(None)
            if not self._offer(visit, channel):
                _refuse(channel)
        except ChannelLostError:
            channel.close()

    def _offer(self, visit: HomeEpochRequest, channel: Channel) -> bool:
        with self._lock:
            if self._is_over:
                raise ChannelLostError
            if visit.attempt < self._newest:
                return False
            self._newest = visit.attempt
            self.since = visit.attempt if self.since is None else self.since
            self.epoch = max(self.epoch, visit.epoch)
            late = self._waiting
            self._waiting = visit, channel
            self._offered, channel.has_sent = self._clock(), False
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
            with suppress(BlockingIOError):
                os.write(self._wakes, b"\0")

    # -- the door's thread --

    def add(self, channel: Channel) -> None:
        with self._lock:
            self._idle[channel.fileno()] = channel
        self._wake()

    @property
    def watched(self) -> dict[int, bool]:
        """Return the descriptors of the connections to watch, each with whether it requested the running epoch."""
        with self._lock:
            if self._present is None or self._present.is_lost:
                return {}
            return {self._present.fileno(): True, **dict.fromkeys(self._idle, False)}

    def cancel_epoch(self, number: int) -> None:
        with self._lock:
            present = self._present
        if present is not None and present.fileno() == number:
            self._cut_off(present)

    def _cut_off(self, channel: Channel) -> None:
        channel.cut()
        with self._lock:  # the next relay's epoch must not start in between
            if self._present is channel and self._tasks is not None:
                self._tasks.cancel()

    def end(self) -> None:
        with self._lock:
            self._is_over = True
            present = self._present
        if present is not None:
            self._cut_off(present)
        self._wake()

    def welcome(self) -> None:
        with self._lock:
            relay, began = self._present, self._began
            if relay is None and self._waiting is not None:
                relay, began = self._waiting[1], self._offered
        if relay is not None and not relay.has_sent and self._clock() - began > _WELCOME_SECONDS:
            with suppress(ChannelLostError):
                relay.send((HomeMessageKind.WELCOME,))

    def seconds_overdue(self) -> float:
        """Return how long a cancelled attempt's functions have kept running (seconds), or 0."""
        now = self._clock()
        with self._lock:
            if self._waits_since is not None and self._thread in self._turn.waiting:
                self._waits_since = now
            return 0.0 if self._waits_since is None else now - self._waits_since

    @property
    def unused(self) -> float:
        """Return the seconds since the last worker disconnected, or 0 while one is connected."""
        is_used = self._present is not None or self._waiting is not None
        return 0.0 if is_used else self._clock() - self._last_used

    # -- the guest's thread --

    def live(self) -> None:
        self._thread = threading.get_ident()
        while (waiting := self._await_visit()) is not None:
            visit, channel = waiting
            try:
                self._serve(visit, channel)
            except ChannelLostError:
                self._close(channel)  # the worker has ended, or a newer attempt has begun
            except BaseException:
                _log.exception("a home process closes the connection to a Spark task because of an error")
                self._close(channel)
            self._leave_visit(channel)
            self._residency.spare_the_collector()
        with self._turn.held():
            self._residency.close_all()

    def _close(self, channel: Channel) -> None:
        with self._lock:
            self._idle = {number: idle for number, idle in self._idle.items() if idle is not channel}
        channel.close()

    def _await_visit(self) -> tuple[HomeEpochRequest, Channel] | None:
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
            for number, _ in poll.poll(self._run_loop((self._woken, *idle))):
                if number == self._woken:
                    os.read(self._woken, 4096)
                else:
                    self.take_visit(number)

    def _run_loop(self, numbers: Iterable[int]) -> int | None:
        """Run the event loop of async functions, if any, until a file descriptor in ``numbers`` is readable.

        Returns the timeout for the following poll: 0, or None (no limit) without an event loop.
        """
        loop = self._residency.event_loop
        if loop is None:
            return None
        with self._turn.held():
            loop.wait_for_files(numbers)
        return 0

    def _leave_visit(self, channel: Channel) -> None:
        with self._lock:
            if self._present is channel:
                self._present = None
                self._last_used = self._clock()
                if not channel.is_lost:
                    self._idle[channel.fileno()] = channel

    def _serve(self, visit: HomeEpochRequest, channel: Channel) -> None:
        if visit.environment is not None:
            worker_environment.enter(visit.environment, lambda number: channel.ask_bytes(HomeMessageKind.VALUE, number))
        if self._tasks is None:
            self._tasks = LevelTasks(pickle.loads(channel.ask_bytes(HomeMessageKind.LEVEL)), self._residency)
        try:
            with self._turn.held():
                wakes_up = self._run_epoch(visit, channel, self._tasks)
                updates = worker_environment.take_updates()
        except BaseException as error:
            worker_environment.drop()
            if channel.is_lost:
                raise ChannelLostError from None
            # An input thread may still use this connection.
            channel.send((HomeMessageKind.FAILED, type(error).__name__, str(error)))
            raise ChannelLostError from None
        self._leave_visit(channel)
        channel.send((HomeMessageKind.DONE, wakes_up, updates))

    def _run_epoch(self, visit: HomeEpochRequest, channel: Channel, tasks: LevelTasks) -> int | None:
        rest = self._turn.released
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
                    channel.post((HomeMessageKind.OUT, sent))
            except ChannelLostError:
                epoch.close()
                raise


def _buffers(answers: list[bytes], channel: Channel, rest: Resting) -> Iterator[list[Buffer]]:
    buffers: list[Buffer] | None
    for answer in answers:
        buffers = pickle.loads(answer)
        if buffers is None:
            return
        yield buffers
    while True:
        with rest():
            buffers = channel.ask(HomeMessageKind.MORE)
        if buffers is None:
            return
        yield buffers


def _refuse(channel: Channel) -> None:
    with suppress(ChannelLostError):
        channel.send((HomeMessageKind.LATE,))
    channel.close()
