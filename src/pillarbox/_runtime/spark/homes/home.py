"""Runs a home, a process that keeps a state partition's tasks between epochs.

Each guest (see `partition_tasks.py`) has its own thread, which runs epochs for relays (connected workers). The first
guest uses the main thread. The ``door`` thread accepts connections, detects lost relays and newer attempts at a running
epoch, and ends the process.
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
from pillarbox._runtime.spark.homes.partition_tasks import PartitionLock, PartitionTasks
from pillarbox._runtime.spark.homes.processes import OsProcess, leave, watch_all
from pillarbox._runtime.spark.homes.signals import EndSignal
from pillarbox._runtime.spark.homes.wire import ASK, Hello, HomeDescription
from pillarbox._runtime.spark.tasks.channel import Channel, ChannelLostError, close_in_forks

_LEAVE_SECONDS = 5.0
_CUT_OFF_SECONDS = 5.0
_HELLO_SECONDS = 2.0
_HELLO_BYTES = 4096
_TICK_MS = 500

_log = logging.getLogger("pillarbox")


def run_home(facts: HomeDescription, listening: socket.socket) -> NoReturn:
    _Home(facts, listening).run()


class _Home:
    def __init__(self, facts: HomeDescription, listening: socket.socket) -> None:
        self._facts = facts
        self._listening = listening
        # listen() makes clients see this process's pid as their peer's.
        listening.listen(socket.SOMAXCONN)
        close_in_forks(listening)
        self._watched = [OsProcess(*process) for process in facts.watched]
        self._polled: list[OsProcess] = []
        # Connections to starters, by descriptor.
        self._starters: dict[int, Channel] = {}
        self._guests: dict[str, PartitionTasks] = {}
        self._turn = PartitionLock()
        self._threads: list[threading.Thread] = []
        self._has_begun = threading.Event()
        self._first: PartitionTasks | None = None
        self._created_at = time.monotonic()
        self._ends_at: float | None = None

    def run(self) -> NoReturn:
        end_signal = EndSignal()
        threading.Thread(target=self._run_door, args=(end_signal,), name="door", daemon=True).start()
        self._has_begun.wait()
        if self._first is not None:
            self._first.live()
        for thread in self._threads:
            thread.join()
        self._leave(0)

    def _leave(self, code: int) -> NoReturn:
        sockets.remove(self._facts.name)
        leave(code)

    def _run_door(self, end_signal: EndSignal) -> None:
        try:
            poll = select.poll()
            for pollable in (self._listening, end_signal):
                poll.register(pollable, select.POLLIN)
            files, self._polled = watch_all(self._watched)
            for file in files:
                poll.register(file, select.POLLIN)
            ends = set(files)
            while True:
                self._poll_once(poll, end_signal, ends)
        except BaseException:
            _log.exception("a home process ends because of an error in its listener")
            self._leave(1)

    def _poll_once(self, poll: select.poll, end_signal: EndSignal, ends: set[int]) -> None:
        # A closed connection has descriptor -1.
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
                self._accept(poll)
            elif number == end_signal.fileno():
                if end_signal.has_arrived():
                    self._end()
            elif number in ends:
                self._end()
                poll.unregister(number)  # it would stay readable
            elif number in self._starters:
                self._answer_starter(number, poll)
            elif number in watched:
                guest, is_present = watched[number]
                guest.cancel_epoch(number) if is_present else guest.take_visit(number)
        self._check_clock()

    def _check_clock(self) -> None:
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
                _log.warning("a function did not return after its task attempt was cancelled, so its home process ends")
                self._leave(1)
        if self._unused() > self._facts.idle:
            self._end()

    def _unused(self) -> float:
        return min((guest.unused for guest in self._guests.values()), default=time.monotonic() - self._created_at)

    def _end(self) -> None:
        if self._ends_at is None:
            self._ends_at = time.monotonic() + _LEAVE_SECONDS
            for guest in self._guests.values():
                guest.end()
            self._has_begun.set()

    def _accept(self, poll: select.poll) -> None:
        channel: Channel | None = None
        try:
            channel = Channel(sockets.accept(self._listening, _HELLO_SECONDS))
            hello = Hello(**json.loads(channel.receive_bytes(_HELLO_BYTES)))
            if not hello.place:
                self._accept_starter(channel, poll)
                return
            if not hmac.compare_digest(hello.secret.encode(), self._facts.secret.encode()):
                raise PermissionError("the query's secret is wrong")
        except (OSError, ChannelLostError, ValueError, TypeError) as error:
            if not isinstance(error, ConnectionError):
                _log.warning("a home process refused a connection: %s", error)
            if channel is not None:
                channel.close()
            return
        try:
            if self._ends_at is not None:
                raise ChannelLostError
            channel.set_timeout(None)
            self._guest(hello.place).add(channel)
        except ChannelLostError:
            channel.close()

    def _accept_starter(self, channel: Channel, poll: select.poll) -> None:
        with suppress(ChannelLostError):
            self._send_facts(channel)
            self._starters[channel.fileno()] = channel
            poll.register(channel, select.POLLIN)

    def _send_facts(self, starter: Channel) -> None:
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
        channel = self._starters[number]
        try:
            if channel.receive_bytes(len(ASK)) != ASK:
                raise ChannelLostError
            self._send_facts(channel)
        except ChannelLostError:
            # The next starter adopts this home.
            poll.unregister(number)
            del self._starters[number]
            channel.close()

    def _guest(self, digest: str) -> PartitionTasks:
        guest = self._guests.get(digest)
        if guest is None:
            guest = self._guests[digest] = PartitionTasks(time.monotonic, self._facts.idle, self._turn)
            if self._first is None:
                self._first = guest
                self._has_begun.set()
            else:
                thread = threading.Thread(target=guest.live, name="guest", daemon=True)
                self._threads.append(thread)
                thread.start()
        return guest
