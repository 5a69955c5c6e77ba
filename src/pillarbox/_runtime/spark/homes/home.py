"""A home: the process in which the tasks of a state partition live from epoch to epoch.

| thread                 | what it does                                                                              |
| ---------------------- | ----------------------------------------------------------------------------------------- |
| main, or a guest's own | serves the relay of one guest (a level's tasks of one state partition), and nothing else  |
| ``door``               | lets relays and starters in, cuts off old relays, cancels epochs that nobody waits for,   |
|                        | ends the process                                                                          |

A home has one guest, whose thread is the main one. More share it where an executor may have no more homes.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import pickle
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import NoReturn

from pillarbox._elements import Buffer
from pillarbox._runtime.spark.homes import sockets, surroundings
from pillarbox._runtime.spark.homes.processes import Process, leave
from pillarbox._runtime.spark.homes.signals import EndSignal
from pillarbox._runtime.spark.homes.turn import Turn
from pillarbox._runtime.spark.homes.wire import ASK, Hello, HomeFacts, Kind, Visit
from pillarbox._runtime.spark.tasks.channel import Channel, LostError, close_in_forks
from pillarbox._runtime.spark.tasks.level_tasks import LevelTasks
from pillarbox._runtime.spark.tasks.residency import Residency
from pillarbox._state.chunks.head import META

# How long a home may take to close its functions when it has to end.
_LEAVE_SECONDS = 5.0
# How long a guest may take to leave the epoch of an attempt that is over. Then the process ends: user code hangs.
_CUT_OFF_SECONDS = 5.0
# After this time without a message, a relay is told that its epoch runs (seconds).
_WELCOME_SECONDS = 1.0
# How long who connects may take to say who it is.
_HELLO_SECONDS = 2.0
_HELLO_BYTES = 4096
# The door looks at the clock so often (milliseconds).
_TICK_MS = 500
_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP

Resting = Callable[[], AbstractContextManager[None]]
_log = logging.getLogger("pillarbox")


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
        self.is_new = True

    def get(self, number: int) -> bytes | None:
        if number == META and self._head is not None:
            return self._head
        with self._rest():
            found: bytes | None = self._channel.ask(Kind.GET, number, self.is_new)
        return found

    def put(self, number: int, value: bytes) -> None:
        self._head = None
        self._channel.post((Kind.PUT, number, value))

    def remove(self, number: int) -> None:
        self._channel.post((Kind.REMOVE, number))


class _Guest:
    """The tasks of one level and state partition, and the thread that they have.

    Args:
        clock: seconds, from any start.
        idle: how long a task stays that nobody asks for (seconds).
        turn: the right to run functions in this process.
        let_go: takes the connection of a relay whose visit has ended, from the guest's thread.
    """

    def __init__(
        self, clock: Callable[[], float], idle: float, turn: Turn, let_go: Callable[[Channel, _Guest], None]
    ) -> None:
        self._clock = clock
        self._residency = Residency(clock, idle=idle, stay=True, resting=turn.resting)
        self._turn = turn
        self._let_go = let_go
        self._tasks: LevelTasks | None = None
        # Guards what follows; the guest's thread waits for it.
        self._changed = threading.Condition()
        self._waiting: tuple[Visit, Channel] | None = None
        self._present: Channel | None = None
        self._newest = -1
        self._is_over = False
        self._last_used = self._began = clock()
        # Since when a relay waits for an attempt that was cut off to leave; None: none does.
        self._waits_since: float | None = None
        self._thread: int | None = None
        # The number of the first of Spark's tasks that came, and the last epoch.
        self.since: int | None = None
        self.epoch = 0

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
            self.since = visit.attempt if self.since is None else self.since
            self.epoch = max(self.epoch, visit.epoch)
            late = self._waiting
            self._waiting = visit, channel
            present = self._present
            if present is not None and self._waits_since is None:
                self._waits_since = self._clock()
            self._changed.notify_all()
        if present is not None:
            self.cut_off(present)
        if late is not None:
            _refuse(late[1])
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

    def welcome(self) -> None:
        """Tell the relay that its epoch runs, if it has been told nothing for some time."""
        with self._changed:
            present, began = self._present, self._began
        if present is not None and not present.has_sent and self._clock() - began > _WELCOME_SECONDS:
            with suppress(LostError):
                present.send((Kind.WELCOME,))

    def seconds_overdue(self) -> float:
        """For how long an attempt that was cut off has been running functions."""
        now = self._clock()
        with self._changed:
            if self._waits_since is not None and self._thread in self._turn.in_line:
                self._waits_since = now  # others run functions, and it waits for its turn
            return 0.0 if self._waits_since is None else now - self._waits_since

    @property
    def unused(self) -> float:
        """For how long no relay has been here (seconds)."""
        is_used = self._present is not None or self._waiting is not None
        return 0.0 if is_used else self._clock() - self._last_used

    @property
    def present(self) -> Channel | None:
        """The connection of the relay that is being served."""
        return self._present

    # -- the guest's thread --

    def live(self) -> None:
        """Serve one relay after the other, then close the tasks."""
        self._thread = threading.get_ident()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._waiting is not None)
                if self._is_over:
                    break
                assert self._waiting is not None
                visit, channel = self._waiting
                self._waiting, self._present, self._waits_since = None, channel, None
                self._began, channel.has_sent = self._clock(), False
            try:
                self._serve(visit, channel)
            except LostError:
                channel.close()  # its worker has ended, or a newer task of Spark's has come
            except BaseException:
                _log.exception("a home left a relay")
                channel.close()
            self._leave_visit()
            if not channel.is_lost:
                self._let_go(channel, self)
            self._residency.spare_the_collector()  # now nobody waits for it
        with self._turn.taken():
            self._residency.close_all()

    def _leave_visit(self) -> None:
        with self._changed:
            self._present = None
            self._last_used = self._clock()

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
        self._leave_visit()
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


def run_home(facts: HomeFacts, listening: socket.socket) -> NoReturn:
    """Be a home, in the main thread; the process ends with it.

    Args:
        listening: under its name.
    """
    _Home(facts, listening).run()


class _Home:
    """The process."""

    def __init__(self, facts: HomeFacts, listening: socket.socket) -> None:
        self._facts = facts
        self._listening = listening
        # Homes are known by who listens: that is this process from now on, not the starter.
        listening.listen(socket.SOMAXCONN)
        close_in_forks(listening)
        self._watched = [Process(*each) for each in facts.watched]
        self._polled: list[Process] = []
        # Connections that wait for a message, by number: of starters, and of relays that are not here.
        self._starters: dict[int, Channel] = {}
        self._idle: dict[int, tuple[Channel, _Guest]] = {}
        # Connections of relays that have left; their guests' threads put them here.
        self._left: deque[tuple[Channel, _Guest]] = deque()
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        self._guests: dict[str, _Guest] = {}
        self._turn = Turn()
        self._threads: list[threading.Thread] = []
        # Set when the first guest has come, or none will.
        self._has_begun = threading.Event()
        self._first: _Guest | None = None
        self._made_at = time.monotonic()
        self._ends_at: float | None = None

    def run(self) -> NoReturn:
        """Live, in the main thread; the process ends with it."""
        end_signal = EndSignal()
        threading.Thread(target=self._keep_door, args=(end_signal,), name="door", daemon=True).start()
        self._has_begun.wait()
        if self._first is not None:
            self._first.live()
        for thread in self._threads:
            thread.join()
        self._leave(0)

    def _let_go(self, channel: Channel, guest: _Guest) -> None:
        """Hand a connection back to the door, from a guest's thread."""
        self._left.append((channel, guest))
        with suppress(BlockingIOError):  # it has been woken often enough
            os.write(self._wakes, b"\0")

    def _leave(self, code: int) -> NoReturn:
        sockets.remove(self._facts.name)
        leave(code)

    # -- the door's thread --

    def _keep_door(self, end_signal: EndSignal) -> None:
        try:
            poll = select.poll()
            for each in (self._listening, self._woken, end_signal):
                poll.register(each, select.POLLIN)
            ends = set()
            for process in self._watched:
                file = process.watch()
                if file is None or process.has_ended():
                    self._polled.append(process)
                else:
                    ends.add(file)
                    poll.register(file, select.POLLIN)
            while True:
                self._look(poll, end_signal, ends)
        except BaseException:
            _log.exception("the door of a home")
            self._leave(1)

    def _look(self, poll: select.poll, end_signal: EndSignal, ends: set[int]) -> None:
        # (A connection that has just been closed has no number any more; an event of its successor does no harm.)
        present = [(guest, guest.present) for guest in self._guests.values()]
        served = {channel.fileno(): guest for guest, channel in present if channel is not None and not channel.is_lost}
        served.pop(-1, None)
        for number in served:
            poll.register(number, _GONE)
        events = poll.poll(_TICK_MS)
        for number in served:
            poll.unregister(number)
        for number, _ in events:
            if number == self._listening.fileno():
                self._let_in(poll)
            elif number == self._woken:
                os.read(self._woken, 4096)
            elif number == end_signal.fileno():
                if end_signal.has_come():
                    self._end()
            elif number in ends:
                self._end()
                poll.unregister(number)
                ends.discard(number)
            elif number in self._starters:
                self._answer_starter(number, poll)
            elif number in self._idle:
                poll.unregister(number)
                self._take_visit(*self._idle.pop(number))
            elif number in served:
                self._has_gone(served[number], number)
        while self._left:
            self._await_visit(*self._left.popleft(), poll)
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
                self._leave(1)
            return
        if any(process.has_ended() for process in self._polled):
            self._end()
        for guest in self._guests.values():
            guest.welcome()
            if guest.seconds_overdue() > _CUT_OFF_SECONDS:
                _log.warning("a function does not return, although its attempt is over: its process is ended")
                self._leave(1)
        if self._unused() > self._facts.idle:
            self._end()

    def _unused(self) -> float:
        """Return for how long nobody has visited this home (seconds); who never came counts, too."""
        return min((each.unused for each in self._guests.values()), default=time.monotonic() - self._made_at)

    def _end(self) -> None:
        """Let all guests close their tasks and end, and the process with them."""
        if self._ends_at is None:
            self._ends_at = time.monotonic() + _LEAVE_SECONDS
            for guest in self._guests.values():
                guest.end()
            self._has_begun.set()

    # -- who connects --

    def _let_in(self, poll: select.poll) -> None:
        channel: Channel | None = None
        try:
            channel = Channel(sockets.accept(self._listening, _HELLO_SECONDS))
            hello = Hello(**json.loads(channel.receive_bytes(_HELLO_BYTES)))
            if not hello.place:
                self._let_starter_in(channel, poll)
                return
            if not hmac.compare_digest(hello.secret.encode(), self._facts.secret.encode()):
                raise PermissionError("it does not know the secret of the query's plan")
        except (OSError, LostError, ValueError, TypeError) as error:
            if not isinstance(error, ConnectionError):  # such as of a starter that looks who listens
                _log.warning("a process was not let into a home: %s", error)
            if channel is not None:
                channel.close()
            return
        self._await_visit(channel, self._guest(hello.place), poll)

    def _await_visit(self, channel: Channel, guest: _Guest, poll: select.poll) -> None:
        self._idle[channel.fileno()] = channel, guest
        poll.register(channel, select.POLLIN)

    def _let_starter_in(self, channel: Channel, poll: select.poll) -> None:
        with suppress(LostError):  # it has ended since it came
            self._say_what_it_is(channel)
            self._starters[channel.fileno()] = channel
            poll.register(channel, select.POLLIN)

    def _take_visit(self, channel: Channel, guest: _Guest) -> None:
        try:
            if self._ends_at is not None:
                raise LostError
            channel.set_timeout(_HELLO_SECONDS)
            visit: Visit = channel.receive()
            channel.set_timeout(None)
            if not guest.offer(visit, channel):
                _refuse(channel)
        except LostError:
            channel.close()

    def _say_what_it_is(self, starter: Channel) -> None:
        guests = self._guests.values()
        firsts = [guest.since for guest in guests if guest.since is not None]
        facts = self._facts._replace(
            epoch=max([self._facts.epoch, *(guest.epoch for guest in guests)]),
            pid=os.getpid(),
            since=min(firsts, default=None),
            places=[*{*self._facts.places, *self._guests}],
            unused=self._unused(),
        )
        starter.send_bytes(json.dumps(facts._asdict()).encode())

    def _answer_starter(self, number: int, poll: select.poll) -> None:
        """Say to a starter what this home is, and what it does."""
        channel = self._starters[number]
        try:
            if channel.receive_bytes(len(ASK)) != ASK:
                raise LostError
            self._say_what_it_is(channel)
        except LostError:
            # It has ended. This home is the next one's.
            poll.unregister(number)
            del self._starters[number]
            channel.close()

    def _guest(self, place: str) -> _Guest:
        guest = self._guests.get(place)
        if guest is None:
            guest = self._guests[place] = _Guest(time.monotonic, self._facts.idle, self._turn, self._let_go)
            if self._first is None:
                self._first = guest
                self._has_begun.set()
            else:
                thread = threading.Thread(target=guest.live, name="guest", daemon=True)
                self._threads.append(thread)
                thread.start()
        return guest


def _refuse(channel: Channel) -> None:
    """Send a relay away, as a newer attempt has come."""
    with suppress(LostError):
        channel.send((Kind.LATE,))
    channel.close()
