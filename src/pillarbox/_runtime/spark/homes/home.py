"""A home: the process in which the tasks of a state partition live from epoch to epoch.

| thread                 | what it does                                                                              |
| ---------------------- | ----------------------------------------------------------------------------------------- |
| main, or a guest's own | waits for the relays of one guest and serves one at a time; see `guest.py`                |
| ``door``               | lets relays and starters connect; while an epoch runs, takes the visits of newer attempts |
|                        | and notices if its relay has gone; ends the process                                       |
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import select
import socket
import threading
import time
from contextlib import suppress
from typing import NoReturn

from pillarbox._runtime.spark.homes import sockets
from pillarbox._runtime.spark.homes.guest import Guest, Turn
from pillarbox._runtime.spark.homes.processes import Process, leave, watch_all
from pillarbox._runtime.spark.homes.signals import EndSignal
from pillarbox._runtime.spark.homes.wire import ASK, Hello, HomeFacts
from pillarbox._runtime.spark.tasks.channel import Channel, LostError, close_in_forks

# How long a home may take to close its functions when it has to end.
_LEAVE_SECONDS = 5.0
# How long a guest may take to leave the epoch of an attempt that is over. Then the process ends: user code hangs.
_CUT_OFF_SECONDS = 5.0
# How long who connects may take to say who it is.
_HELLO_SECONDS = 2.0
_HELLO_BYTES = 4096
# The door looks at the clock so often (milliseconds).
_TICK_MS = 500

_log = logging.getLogger("pillarbox")


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
        # Connections of starters, by number.
        self._starters: dict[int, Channel] = {}
        self._guests: dict[str, Guest] = {}
        self._turn = Turn()
        self._threads: list[threading.Thread] = []
        # Set when the first guest has come, or none will.
        self._has_begun = threading.Event()
        self._first: Guest | None = None
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

    def _leave(self, code: int) -> NoReturn:
        sockets.remove(self._facts.name)
        leave(code)

    # -- the door's thread --

    def _keep_door(self, end_signal: EndSignal) -> None:
        try:
            poll = select.poll()
            for each in (self._listening, end_signal):
                poll.register(each, select.POLLIN)
            files, self._polled = watch_all(self._watched)
            for file in files:
                poll.register(file, select.POLLIN)
            ends = set(files)
            while True:
                self._look(poll, end_signal, ends)
        except BaseException:
            _log.exception("the door of a home")
            self._leave(1)

    def _look(self, poll: select.poll, end_signal: EndSignal, ends: set[int]) -> None:
        # (A connection that has just been closed has no number any more; an event of its successor does no harm.)
        watched = {}
        for guest in self._guests.values():
            for number, is_present in guest.watched.items():
                watched[number] = guest, is_present
        watched.pop(-1, None)
        for number, (_, is_present) in watched.items():
            poll.register(number, sockets.GONE if is_present else select.POLLIN)
        events = poll.poll(_TICK_MS)
        for number in watched:
            poll.unregister(number)
        for number, _ in events:
            if number == self._listening.fileno():
                self._let_in(poll)
            elif number == end_signal.fileno():
                if end_signal.has_come():
                    self._end()
            elif number in ends:
                self._end()
                poll.unregister(number)  # it stays readable
            elif number in self._starters:
                self._answer_starter(number, poll)
            elif number in watched:
                guest, is_present = watched[number]
                guest.has_gone(number) if is_present else guest.take_visit(number)
        self._look_at_clock()

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
        try:
            if self._ends_at is not None:
                raise LostError
            channel.set_timeout(None)
            self._guest(hello.place).add(channel)
        except LostError:
            channel.close()

    def _let_starter_in(self, channel: Channel, poll: select.poll) -> None:
        with suppress(LostError):  # it has ended since it came
            self._say_what_it_is(channel)
            self._starters[channel.fileno()] = channel
            poll.register(channel, select.POLLIN)

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

    def _guest(self, place: str) -> Guest:
        guest = self._guests.get(place)
        if guest is None:
            guest = self._guests[place] = Guest(time.monotonic, self._facts.idle, self._turn)
            if self._first is None:
                self._first = guest
                self._has_begun.set()
            else:
                thread = threading.Thread(target=guest.live, name="guest", daemon=True)
                self._threads.append(thread)
                thread.start()
        return guest
