"""The starter: one process for the workers of a daemon, which makes their homes, knows them all, and ends them.

Before the first home it imports what homes need, and forks it: nothing that it forks has run a function of the user's.
While it imports, it tells who asks to wait; nothing else takes long. So who gets no answer in two seconds kills it and
starts the next one, which adopts its homes. Workers keep their connections to it. A connection begins with the secret
of the executor's workers; then a request is a line of JSON, and so is its answer.

| request                                          | answer                                              |
| ------------------------------------------------ | --------------------------------------------------- |
| ``home``: see :class:`HomeRequest`               | name and process of the place's home, and how it    |
|                                                  | was had; ``refused``: why the run gets none         |
| ``fate``: a process                              | how that home ended, if it has                      |
| ``end``: a run of a query                        | how many homes it had, when they have ended         |
| ``holds``: a run that a worker holds tasks of    | nothing; the worker is told when the run ends       |
| ``over``: runs                                   | those that have ended                               |
| ``closed``: a run, by a worker                   | nothing                                             |

An answer ``wait`` means that another one follows, and ``error`` that the request cannot be met. ``end`` needs no
secret: a driver does not know it, and nothing but its own run ends.

A home ends with its run; with a newer run of the same query; when its partition has been elsewhere for some time; when
it has been idle for long; and with the executor or its daemon. So does the starter.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import time
import warnings
from collections import deque
from contextlib import suppress
from typing import Any, NoReturn

from pillarbox._runtime.spark.homes import sockets
from pillarbox._runtime.spark.homes.keeper import SIGNAL, start_python
from pillarbox._runtime.spark.homes.processes import Process, leave, watch_all
from pillarbox._runtime.spark.homes.starter_connections import (
    TICK_SECONDS,
    WAIT,
    Client,
    Ending,
    Greeter,
    HomeChannel,
    readable,
    send,
)
from pillarbox._runtime.spark.homes.table import (
    BadRequestError,
    HomeEntry,
    HomeRequest,
    RefusedError,
    Table,
    number_of,
    text_of,
    texts_of,
)
from pillarbox._runtime.spark.homes.wire import HomeFacts
from pillarbox._runtime.spark.tasks.channel import LostError

# A home that does not end by itself is killed a little later than it would end by itself.
_KILL_SECONDS = 6.0
# Without homes, the starter ends after this time (seconds).
_IDLE_SECONDS = 600.0
# So often homes are asked for their visits, which the starter does not see (seconds).
_ASK_SECONDS = 30.0
# How long the homes of an earlier starter have to say what they are (seconds). Homes that hang are killed.
_ADOPTION_SECONDS = 2.0
_LINE_BYTES = 1 << 16
# Of so many homes it is known how they ended.
_MOST_FATES = 64

_log = logging.getLogger("pillarbox")


class _Starter:
    """The process.

    Args:
        name: its own.
        lock: the file that holds the lock on the name.
        watched: the executor and its daemon, with whose end it ends.
    """

    def __init__(self, name: str, listening: socket.socket, lock: int, watched: list[Process]) -> None:
        self._name = name
        self._listening = listening
        self._lock = lock
        self._watched = watched
        self._selector = selectors.DefaultSelector()
        self._clients: dict[socket.socket, Client] = {}
        self._table = Table(time.monotonic, self._end_home)
        self._channels: dict[int, HomeChannel] = {}
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._fates: deque[tuple[int, str]] = deque(maxlen=_MOST_FATES)
        # Workers that hold tasks of a run, and those who wait for its end.
        self._holders: dict[str, set[Process]] = {}
        self._endings: list[Ending] = []
        self._last_asked = self._homes_asked_at = self._told_at = time.monotonic()
        self._has_imported = False
        # The processes whose end cannot be waited for.
        self._polled: list[Process] = []
        self._requests = {
            "home": self._home,
            "fate": self._fate_of,
            "holds": self._holds,
            "over": self._over,
            "closed": self._closed,
            "end": self._end_run,
        }

    def run(self, clients: list[socket.socket]) -> NoReturn:
        """Serve requests until the executor ends.

        Args:
            clients: who has connected already.
        """
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        os.set_blocking(woken, False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept)
        self._selector.register(woken, selectors.EVENT_READ, lambda: self._wake(woken))
        files, self._polled = watch_all(self._watched)
        for file in files:
            self._selector.register(file, selectors.EVENT_READ, self._end_all)
        for connected in clients:
            self._take(connected)
        while not (self._table.is_ending and not self._table.homes):
            for key, _ in self._selector.select(TICK_SECONDS):
                key.data()
            self._look_at_clock()
        leave(0)

    def _wake(self, woken: int) -> None:
        """Act on signals."""
        for number in os.read(woken, 4096):
            if number == signal.SIGTERM:
                self._end_all()
        self._reap()

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        if any(process.has_ended() for process in self._polled):
            self._end_all()
        self._reap()
        for home in self._table.homes.values():
            if home.kill_at is not None and now > home.kill_at:
                home.process.kill(signal.SIGKILL)
        if now - self._homes_asked_at > _ASK_SECONDS:
            self._homes_asked_at = now
            self._table.end_those_away()
            for channel in self._channels.values():
                channel.ask()
        self._answer_endings(now)
        if self._table.homes or any(map(self._living_holders, self._holders)):
            self._last_asked = now
        elif now - self._last_asked > _IDLE_SECONDS:
            self._end_all()

    def _living_holders(self, run: str) -> set[Process]:
        holders = self._holders.get(run, set())
        holders -= {process for process in holders if process.has_ended()}
        return holders

    def _end_all(self) -> None:
        """End all homes, and this process when they have ended: the executor has, or its daemon."""
        if self._table.is_ending:
            return
        self._table.end_all()
        # Later requests need another starter.
        for key in list(self._selector.get_map().values()):
            if key.data in (self._end_all, self._accept):  # what has ended would stay readable
                self._selector.unregister(key.fileobj)
        sockets.remove(self._name)
        self._listening.close()
        for connected in list(self._clients):
            self._close(connected)

    def _end_home(self, home: HomeEntry) -> None:
        """Let a home end."""
        home.kill_at = time.monotonic() + _KILL_SECONDS
        home.process.kill(signal.SIGTERM)

    def _reap(self) -> None:
        for pid, home in list(self._table.homes.items()):
            fate = self._fate(home)
            if fate is None:
                continue
            self._table.remove(home)
            self._fates.append((pid, fate))
            self._spawned.pop(pid, None)
            channel = self._channels.pop(pid, None)
            if channel is not None:
                self._forget_channel(channel)
            sockets.remove(home.name)

    def _fate(self, home: HomeEntry) -> str | None:
        """Return how the process of a home has ended; None: it lives."""
        pid = home.process.pid
        spawned = self._spawned.get(pid)
        if spawned is not None:
            code = spawned.poll()
        elif home.is_adopted:
            return "how is not known" if home.process.has_ended() else None
        else:
            ended, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
        if code is None:
            return None
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    # -- connections --

    def _accept(self) -> None:
        if self._table.is_ending:
            return
        try:
            connected, _ = self._listening.accept()
        except OSError as error:
            _log.warning("a process was refused homes: %s", error)
            return
        self._take(connected)

    def _take(self, connected: socket.socket) -> None:
        try:
            sockets.peer_pid(connected)
        except OSError as error:
            _log.warning("a process was refused homes: %s", error)
            connected.close()
            return
        connected.setblocking(False)
        self._clients[connected] = Client(connected)
        self._selector.register(connected, selectors.EVENT_READ, lambda: self._read(connected))

    def _read(self, connected: socket.socket) -> None:
        client = self._clients.get(connected)
        if client is None:
            return  # it was closed after this event
        try:
            found = connected.recv(_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            found = b""
        if not found or len(client.line) > _LINE_BYTES:
            self._close(connected)
            return
        *lines, client.line = (client.line + found).split(b"\n")
        for line in lines:
            if not client.has_begun:
                client.has_begun, client.knows_secret = True, sockets.is_secret(line)
                continue
            answer = self._answered(line, client)
            if answer is not None:
                send(connected, answer)

    def _close(self, connected: socket.socket) -> None:
        self._selector.unregister(connected)
        del self._clients[connected]
        connected.close()
        self._endings = [each for each in self._endings if each.client.connected is not connected]

    # -- requests --

    def _answered(self, line: bytes, client: Client) -> dict[str, Any] | None:
        """Return the answer; None: it comes later."""
        self._last_asked = time.monotonic()
        try:
            told = json.loads(line)
            kind = text_of(told, "request")
            answers = self._requests.get(kind)
            if answers is None:
                raise BadRequestError("there is no such request")
            if kind != "end" and not client.knows_secret:
                raise BadRequestError("who asks does not know the secret of this executor's workers")
            return answers(told, client)
        except RefusedError as error:
            return {"home": "", "pid": 0, "refused": str(error)}
        except (BadRequestError, ValueError) as error:
            return {"error": f"the process that makes homes does not understand a request: {error}"}
        except OSError as error:
            return {"error": f"no home can be made: {error}"}

    def _holds(self, told: dict[str, Any], client: Client) -> dict[str, Any]:
        self._holders.setdefault(text_of(told, "run"), set()).add(Process.of(int(number_of(told, "pid"))))
        return {}

    def _over(self, told: dict[str, Any], client: Client) -> dict[str, Any]:
        return {"over": [run for run in texts_of(told, "runs") if self._table.is_over(run)]}

    def _closed(self, told: dict[str, Any], client: Client) -> dict[str, Any]:
        self._holders.get(text_of(told, "run"), set()).discard(Process.of(int(number_of(told, "pid"))))
        return {}

    def _fate_of(self, told: dict[str, Any], client: Client) -> dict[str, Any]:
        pid = int(number_of(told, "pid"))
        self._reap()
        return {"fate": next((fate for each, fate in reversed(self._fates) if each == pid), None)}

    def _end_run(self, told: dict[str, Any], client: Client) -> None:
        """Let all homes of a run end, and workers close what they hold of it."""
        run, secrets, within = text_of(told, "run"), texts_of(told, "secrets"), number_of(told, "within")
        homes = self._table.end_run(run, secrets)
        for process in self._holders.get(run, ()):
            process.kill(SIGNAL)
        self._endings.append(Ending(run, client, time.monotonic() + within, {home.process.pid for home in homes}))
        self._answer_endings(time.monotonic())

    def _answer_endings(self, now: float) -> None:
        """Answer those who wait for the end of a run that is complete, or for which there is no time left."""
        tells = now - self._told_at > TICK_SECONDS
        if tells:
            self._told_at = now
        for ending in list(self._endings):
            holders = self._living_holders(ending.run)
            if now < ending.until and (holders or ending.homes & self._table.homes.keys()):
                if tells:
                    send(ending.client.connected, WAIT)
                continue
            self._holders.pop(ending.run, None)
            self._endings.remove(ending)
            send(ending.client.connected, {"ended": len(ending.homes)})

    # -- homes --

    def _home(self, told: dict[str, Any], client: Client) -> dict[str, Any]:
        self._reap()
        home, origin = self._table.home(HomeRequest.of(told), self._new_home)
        return {"home": home.name, "pid": home.process.pid, "origin": origin}

    def _import(self) -> None:
        """Import what homes need, before the first one is forked."""
        greeter = Greeter(self._listening, self._clients)
        from pillarbox._runtime.spark.homes.imports import import_and_freeze

        import_and_freeze()
        for connected in greeter.end():
            if connected not in self._clients:
                self._take(connected)
        self._has_imported = True

    def _new_home(self, request: HomeRequest) -> HomeEntry:
        if request.mode == "fork" and not self._has_imported:
            self._import()
        name = f"{self._name}.{os.urandom(8).hex()}"
        watched = [[*process] for process in self._watched]
        facts = HomeFacts(
            name, request.run, request.query, request.secret, request.idle, watched, request.epoch, [request.place]
        )
        with sockets.listen(name) as listening:  # who comes before the home has begun waits
            pid = self._forked(facts, listening) if request.mode == "fork" else self._spawn(facts, listening)
            self._watch_channel(HomeChannel(name), pid)
        return HomeEntry(Process.of(pid), name, request.run, request.query, request.secret)

    def _forked(self, facts: HomeFacts, listening: socket.socket) -> int:
        from pillarbox._runtime.spark.homes.home import run_home

        with warnings.catch_warnings():
            # The threads besides this one are numpy's and Arrow's, which make new ones after a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            os.close(self._lock)
            self._listening.close()
            self._selector.close()
            for connected in self._clients:
                connected.close()
            for channel in self._channels.values():
                channel.close()
            run_home(facts, listening)
        except BaseException:
            _log.exception("a home could not begin")
        finally:
            leave(1)

    def _spawn(self, facts: HomeFacts, listening: socket.socket) -> int:
        process = start_python("run_spawned", [facts, listening.fileno()], [listening.fileno()])
        self._spawned[process.pid] = process
        return process.pid

    def adopt(self) -> None:
        """Take the homes of earlier starters of this name; end those that do not say what they are."""
        asked = {}
        for name in sockets.homes_of(self._name):
            try:
                channel = HomeChannel(name)
            except (OSError, LostError):
                sockets.remove(name)
                continue
            asked[channel] = name
        deadline = time.monotonic() + _ADOPTION_SECONDS
        while asked and time.monotonic() < deadline:
            for channel in readable([*asked], deadline - time.monotonic()):
                del asked[channel]
                try:
                    self._adopt(channel, channel.facts())
                except (OSError, LostError):
                    channel.close()  # it has just ended
        for channel, name in asked.items():
            with suppress(OSError):
                Process.of(channel.pid).kill(signal.SIGKILL)
            channel.close()
            sockets.remove(name)

    def _adopt(self, channel: HomeChannel, facts: HomeFacts) -> None:
        home = HomeEntry(Process.of(facts.pid), facts.name, facts.run, facts.query, facts.secret, {*facts.places})
        self._table.adopt(home, facts.since)
        self._table.has_said(home, facts.epoch, facts.unused)
        self._watch_channel(channel, facts.pid)

    def _watch_channel(self, channel: HomeChannel, pid: int) -> None:
        self._channels[pid] = channel
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._hear(channel, pid))

    def _hear(self, channel: HomeChannel, pid: int) -> None:
        home = self._table.homes.get(pid)
        if home is None or self._channels.get(pid) is not channel:
            return
        try:
            facts = channel.facts()
        except LostError:
            del self._channels[pid]
            self._forget_channel(channel)
        else:
            self._table.has_said(home, facts.epoch, facts.unused)

    def _forget_channel(self, channel: HomeChannel) -> None:
        self._selector.unregister(channel)
        channel.close()


def fork_starter(executor: int) -> None:
    """Fork the starter of this process, which is a daemon of PySpark's that has imported what homes need.

    Args:
        executor: the process of the executor.
    """
    daemon = os.getpid()
    name = sockets.starter_name(executor, daemon)
    lock = sockets.lock(name)
    if lock is None:
        return
    watched = [[*Process.of(pid)] for pid in (executor, daemon)]
    pid = os.fork()
    if not pid:
        # The executor ends its daemon by this pipe, and hears of nothing else through it.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        try:
            main(name, lock, watched)
        finally:
            leave(1)
    sockets.write_holder(lock, Process.of(pid))
    os.close(lock)


def run_spawned(facts: list[Any], listening: int) -> NoReturn:
    """Be a home that is a process of its own from the start."""
    from pillarbox._runtime.spark.homes.imports import import_all

    import_all()
    from pillarbox._runtime.spark.homes.home import run_home

    run_home(HomeFacts(*facts), socket.socket(fileno=listening))


def main(name: str, lock: int, watched: list[list[int]]) -> NoReturn:
    """Be the starter.

    Args:
        lock: the number of the file that holds the lock on its name.
        watched: number and start of the executor and of its daemon.
    """
    # The kernel sends it to the process group of a starter that is killed, if a home is stopped at that time.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.setpgid(0, 0)  # signals that are for the worker, or for PySpark's daemon, are not for this process
    listening = sockets.listen(name)
    greeter = Greeter(listening)
    sockets.sweep()
    starter = _Starter(name, listening, lock, [Process(*each) for each in watched])
    starter.adopt()
    starter.run(greeter.end())
