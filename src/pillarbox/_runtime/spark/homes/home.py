"""A home: the process in which the tasks of a state partition live from epoch to epoch.

| thread                 | what it does                                                                              |
| ---------------------- | ----------------------------------------------------------------------------------------- |
| main, or a guest's own | runs the tasks of one guest (a level's tasks of one state partition), and nothing else    |
| ``door``               | lets relays in, cuts off old ones, cancels epochs that nobody waits for, ends the process |

A home has one guest, whose thread is the main one. More share it where an executor may have no more homes.
"""

from __future__ import annotations

import hmac
import logging
import os
import pickle
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

from pillarbox._elements import Buffer
from pillarbox._runtime.spark.homes import surroundings
from pillarbox._runtime.spark.homes.signals import EndSignal
from pillarbox._runtime.spark.homes.sockets import listen, peer_pid
from pillarbox._runtime.spark.homes.wire import Kind, Visit
from pillarbox._runtime.spark.tasks.channel import Channel, LostError, close_in_forks
from pillarbox._runtime.spark.tasks.leaving import flush_output, run_exit_handlers
from pillarbox._runtime.spark.tasks.level_tasks import LevelTasks
from pillarbox._runtime.spark.tasks.residency import Residency
from pillarbox._runtime.spark.tasks.task_facts import TaskFacts

#: How long a home may take to close its functions when it has to end.
LEAVE_SECONDS = 5.0
# How long a guest may take to leave the epoch of an attempt that is over. Then the process ends: user code hangs.
_CUT_OFF_SECONDS = 5.0
# How long a relay may take to say who it is.
_HELLO_SECONDS = 5.0
_SECRET_BYTES = 64
_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP

_log = logging.getLogger("pillarbox")


class HomeFacts(NamedTuple):
    """What a home is told when it begins.

    Attributes:
        name: the name of its socket.
        secret: what relays have to know.
        idle: for how long it lives without a relay (seconds).
    """

    name: str
    secret: str
    idle: float


class _Chunks:
    """A subtask's chunks in Spark's state, which only the relay reaches."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.is_new = True

    def get(self, number: int) -> bytes | None:
        found: bytes | None = self._channel.ask(Kind.GET, number, self.is_new)
        return found

    def put(self, number: int, value: bytes) -> None:
        self._channel.send((Kind.PUT, number, value))

    def remove(self, number: int) -> None:
        self._channel.send((Kind.REMOVE, number))


class _Guest:
    """The tasks of one level and state partition, and the thread that they have.

    Args:
        clock: seconds, from any start.
        idle: how long a task stays that nobody asks for (seconds).
    """

    def __init__(self, clock: Callable[[], float], idle: float) -> None:
        self._clock = clock
        self._residency = Residency(clock, idle=idle, stay=True)
        self._tasks: LevelTasks | None = None
        # Guards what follows; the guest's thread waits for it.
        self._changed = threading.Condition()
        self._waiting: tuple[Visit, Channel] | None = None
        self._present: Channel | None = None
        self._newest = -1
        self._is_over = False
        self.last_used = clock()
        # Since when a relay waits for an attempt that was cut off to leave; None: none does.
        self.waits_since: float | None = None

    # -- the door's thread --

    def offer(self, visit: Visit, channel: Channel) -> bool:
        """Let a relay be served; return whether it is the newest. One that is served is cut off.

        Raises:
            LostError: it has gone, or the guest has.
        """
        with self._changed:
            if self._is_over:
                raise LostError
            if visit.attempt < self._newest:
                return False
            self._newest = visit.attempt
            late = self._waiting
            self._waiting = visit, channel
            present = self._present
            if present is not None and self.waits_since is None:
                self.waits_since = self._clock()
            self._changed.notify_all()
        if present is not None:
            self.cut_off(present)
        if late is not None:
            refuse(late[1])
        return True

    def cut_off(self, channel: Channel) -> None:
        """Let a relay go, and cancel its epoch, if one is running."""
        channel.cut()
        with self._changed:  # no other relay gets its turn meanwhile
            if self._present is channel and self._tasks is not None:
                self._tasks.cancel()

    def end(self) -> None:
        """Let the guest's thread close its tasks and end."""
        with self._changed:
            self._is_over = True
            present = self._present
            self._changed.notify_all()
        if present is not None:
            self.cut_off(present)

    @property
    def is_asked(self) -> bool:
        """Whether a relay is here, or waits."""
        return self._present is not None or self._waiting is not None

    @property
    def present(self) -> Channel | None:
        """The connection of the relay that is being served."""
        return self._present

    # -- the guest's thread --

    def live(self) -> None:
        """Serve one relay after the other, then close the tasks."""
        while True:
            with self._changed:
                self._present = None
                self.last_used = self._clock()
                self._changed.wait_for(lambda: self._is_over or self._waiting is not None)
                if self._is_over:
                    break
                assert self._waiting is not None
                visit, channel = self._waiting
                self._waiting, self._present, self.waits_since = None, channel, None
            try:
                self._serve(visit, channel)
            except LostError:
                pass  # the task of Spark's has ended, or a newer one has come
            except BaseException:
                _log.exception("a home left a relay")
            finally:
                channel.close()
            self._residency.spare_the_collector()  # now nobody waits for it
        self._residency.close_all()

    def _serve(self, visit: Visit, channel: Channel) -> None:
        surroundings.enter(visit.surroundings, lambda number: _value(channel, number))
        channel.send((Kind.WELCOME, self._tasks is not None))
        if self._tasks is None:
            self._tasks = LevelTasks(pickle.loads(channel.receive_bytes()), self._residency)
        while True:
            epoch = channel.receive()
            try:
                wakes_up = self._run_epoch(channel, *epoch)
                added = surroundings.taken()
            except BaseException as error:
                surroundings.drop()
                if channel.is_lost:
                    raise LostError from None
                channel.send((Kind.FAILED, type(error).__name__, str(error)))
            else:
                channel.send((Kind.DONE, wakes_up, added))

    def _run_epoch(self, channel: Channel, place: tuple[int, int], facts: TaskFacts) -> int | None:
        assert self._tasks is not None
        epoch = self._tasks.run_epoch(place, facts, _buffers(channel), _Chunks(channel))
        while True:
            try:
                sent = next(epoch)
            except StopIteration as end:
                wakes_up: int | None = end.value
                return wakes_up
            try:
                channel.send((Kind.OUT, sent))
            except LostError:
                epoch.close()
                raise


def _value(channel: Channel, number: int) -> bytes:
    channel.send((Kind.VALUE, number))
    return channel.receive_bytes()


def _buffers(channel: Channel) -> Iterator[list[Buffer]]:
    """Return the buffers that a relay has, each when it is asked for."""
    while (found := channel.ask(Kind.MORE)) is not None:
        yield found


class Home:
    """The process.

    Args:
        lifeline: the reading end of a pipe, whose other end the starter has: when that ends, so does the home.
        ready: is called when relays may come.
    """

    def __init__(self, facts: HomeFacts, lifeline: int, ready: Callable[[], None]) -> None:
        self._facts = facts
        self._lifeline = lifeline
        self._ready = ready
        self._guests: dict[str, _Guest] = {}
        self._threads: list[threading.Thread] = []
        # Set when the first guest has come, or none will.
        self._has_begun = threading.Event()
        self._first: _Guest | None = None
        self._ends_at: float | None = None

    def run(self) -> NoReturn:
        """Live, in the main thread; the process ends with it."""
        end_signal = EndSignal()
        listening = listen(self._facts.name)
        close_in_forks(listening)
        door = threading.Thread(target=self._keep_door, args=(listening, end_signal), name="door", daemon=True)
        door.start()
        self._ready()
        self._has_begun.wait()
        if self._first is not None:
            self._first.live()
        for thread in self._threads:
            thread.join()
        leave(0)

    # -- the door's thread --

    def _keep_door(self, listening: socket.socket, end_signal: EndSignal) -> None:
        try:
            while True:
                self._look(listening, end_signal)
        except BaseException:
            _log.exception("the door of a home")
            leave(1)

    def _look(self, listening: socket.socket, end_signal: EndSignal) -> None:
        poll = select.poll()
        poll.register(listening, select.POLLIN)
        poll.register(end_signal, select.POLLIN)
        poll.register(self._lifeline, select.POLLIN)
        # (A connection that has just been closed has no number any more; an event of its successor does no harm.)
        served = {guest.present.fileno(): guest for guest in self._guests.values() if guest.present is not None}
        for number in served:
            if number >= 0:
                poll.register(number, _GONE)
        for number, _ in poll.poll(200):
            if number == listening.fileno():
                self._let_in(listening)
            elif number == self._lifeline or (number == end_signal.fileno() and end_signal.has_come()):
                self._end()
                poll.unregister(number)
                time.sleep(0.05)
            elif number in served:
                self._has_gone(served[number], number)
        self._look_at_clock()

    def _has_gone(self, guest: _Guest, number: int) -> None:
        """Cancel an epoch whose relay has gone."""
        present = guest.present
        if present is not None and present.fileno() == number:
            guest.cut_off(present)
            time.sleep(0.01)

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        if self._ends_at is not None:
            if now > self._ends_at:
                leave(1)
            return
        for guest in self._guests.values():
            if guest.waits_since is not None and now - guest.waits_since > _CUT_OFF_SECONDS:
                _log.warning("a function does not return, although its attempt is over: its process is ended")
                leave(1)
        used = [now if each.is_asked else each.last_used for each in self._guests.values()]
        if used and now - max(used) > self._facts.idle:
            self._end()

    def _end(self) -> None:
        """Let all guests close their tasks and end, and the process with them."""
        if self._ends_at is None:
            self._ends_at = time.monotonic() + LEAVE_SECONDS
            for guest in self._guests.values():
                guest.end()
            self._has_begun.set()

    def _let_in(self, listening: socket.socket) -> None:
        try:
            connected, _ = listening.accept()
            peer_pid(connected)
        except OSError as error:
            _log.warning("a process was not let into a home: %s", error)
            return
        connected.settimeout(_HELLO_SECONDS)
        channel = Channel(connected)
        try:
            told = channel.receive_bytes(_SECRET_BYTES)
            if not hmac.compare_digest(told, self._facts.secret.encode()):
                raise LostError("it does not know the secret")
            visit: Visit = channel.receive()
        except LostError as error:
            _log.warning("a process was not let into a home: %s", error)
            channel.close()
            return
        try:
            if self._ends_at is not None:
                raise LostError
            channel.set_timeout(None)
            if not self._guest(visit.place).offer(visit, channel):
                refuse(channel)
        except LostError:
            channel.close()

    def _guest(self, place: str) -> _Guest:
        guest = self._guests.get(place)
        if guest is None:
            guest = self._guests[place] = _Guest(time.monotonic, self._facts.idle)
            if self._first is None:
                self._first = guest
                self._has_begun.set()
            else:
                thread = threading.Thread(target=guest.live, name="guest", daemon=True)
                self._threads.append(thread)
                thread.start()
        return guest


def refuse(channel: Channel) -> None:
    """Send a relay away, as a newer attempt has come."""
    try:
        channel.send((Kind.LATE, False))
    except LostError:
        pass
    channel.close()


def leave(status: int) -> NoReturn:
    """End the process, without waiting for threads of the user's."""
    if status == 0:
        run_exit_handlers()
    flush_output()
    os._exit(status)
