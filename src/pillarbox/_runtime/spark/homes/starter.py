"""The starter: one process of an executor that makes homes, knows them all, and ends them.

It imports what homes need and forks it: nothing that it forks has run a function of the user's. It has one thread. A
request is a line of JSON, and so is its answer; workers keep their connections to it.

| request                                          | answer                                             |
| ------------------------------------------------ | -------------------------------------------------- |
| ``home``: a place; who asks, and its settings    | name and process of the place's home               |
| ``end``: a run of a query                        | how many homes it had, when they have ended        |
| ``holds``: a run that a worker holds tasks of    | nothing; the worker is told when the run ends      |
| ``over``: runs                                   | those that have ended                              |
| ``closed``: a run, by a worker                   | nothing                                            |

Homes of a run end with it; with a newer run of the same query; when ten epochs have passed without them; when they have
been idle for long; and with the starter, which ends with its executor.
"""

from __future__ import annotations

import json
import logging
import os
import select
import selectors
import signal
import socket
import subprocess
import time
import warnings
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pillarbox._runtime.spark.homes.home import LEAVE_SECONDS, Home, HomeFacts, leave
from pillarbox._runtime.spark.homes.imports import import_all, import_and_freeze
from pillarbox._runtime.spark.homes.keeper import SIGNAL, python_command
from pillarbox._runtime.spark.homes.sockets import peer_pid

# A home that no epoch has asked for in this many epochs of its query ends: its partition has moved away.
_EPOCHS_AWAY = 10
# Without homes, the starter ends after this time (seconds).
_IDLE_SECONDS = 600.0
# A home that does not end by itself is killed a little later than it would end by itself.
_KILL_SECONDS = LEAVE_SECONDS + 1.0
_LINE_BYTES = 1 << 16

_log = logging.getLogger("pillarbox")


@dataclass
class _HomeProcess:
    """A home, as the starter knows it.

    Attributes:
        secret: what relays have to know.
        places: those that are in it.
        epoch: the last one that asked for it.
        kill_at: when it is killed, if it has not ended by then.
    """

    pid: int
    name: str
    run: str
    query: str
    secret: str
    epoch: int
    places: set[str] = field(default_factory=set)
    kill_at: float | None = None


@dataclass
class _Ending:
    """Somebody who waits for the end of a run."""

    run: str
    asked_by: socket.socket
    until: float
    homes: set[int]


class _Starter:
    """The process.

    Args:
        listening: under the executor's name.
        executor: its process.
    """

    def __init__(self, listening: socket.socket, executor: int) -> None:
        self._executor = executor
        self._listening = listening
        self._selector = selectors.DefaultSelector()
        self._lines: dict[socket.socket, bytes] = {}
        self._homes: dict[int, _HomeProcess] = {}
        self._by_place: dict[str, _HomeProcess] = {}
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._made = 0
        # Runs that have ended; workers that hold tasks of a run.
        self._over: dict[str, None] = {}
        self._holders: dict[str, set[int]] = {}
        self._endings: list[_Ending] = []
        self._lifeline, self._life = os.pipe()
        self._last_asked = time.monotonic()
        self._is_ending = False

    def run(self) -> NoReturn:
        """Serve requests until the executor ends."""
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        os.set_blocking(woken, False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept)
        self._selector.register(woken, selectors.EVENT_READ, lambda: self._wake(woken))
        watched = _watch(self._executor)
        if watched is not None:
            self._selector.register(watched, selectors.EVENT_READ, self._end_all)
        while not (self._is_ending and not self._homes):
            for key, _ in self._selector.select(0.5):
                key.data()
            self._look_at_clock(is_watched=watched is not None)
        leave(0)

    def _wake(self, woken: int) -> None:
        """Act on signals."""
        for number in os.read(woken, 4096):
            if number == signal.SIGTERM:
                self._end_all()
        self._reap()

    def _look_at_clock(self, *, is_watched: bool) -> None:
        now = time.monotonic()
        if not is_watched and not _exists(self._executor):
            self._end_all()
        self._reap()
        for home in list(self._homes.values()):
            if home.kill_at is not None and now > home.kill_at:
                _kill(home.pid, signal.SIGKILL)
        self._answer_endings(now)
        if self._homes:
            self._last_asked = now
        elif now - self._last_asked > _IDLE_SECONDS:
            self._is_ending = True

    def _end_all(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            for home in self._homes.values():
                self._end(home)

    def _end(self, home: _HomeProcess) -> None:
        """Let a home end; from now on it is nobody's."""
        if home.kill_at is None:
            home.kill_at = time.monotonic() + _KILL_SECONDS
            self._forget(home)
            _kill(home.pid, signal.SIGTERM)

    def _forget(self, home: _HomeProcess) -> None:
        for place in home.places:
            if self._by_place.get(place) is home:
                del self._by_place[place]

    def _reap(self) -> None:
        for pid in list(self._homes):
            spawned = self._spawned.get(pid)
            if spawned is not None:
                has_ended = spawned.poll() is not None
            else:
                has_ended = os.waitpid(pid, os.WNOHANG)[0] == pid
            if has_ended:
                self._forget(self._homes.pop(pid))
                self._spawned.pop(pid, None)

    # -- requests --

    def _accept(self) -> None:
        try:
            connected, _ = self._listening.accept()
            peer_pid(connected)
        except OSError as error:
            _log.warning("a process was refused homes: %s", error)
            return
        connected.setblocking(False)
        self._lines[connected] = b""
        self._selector.register(connected, selectors.EVENT_READ, lambda: self._read(connected))

    def _read(self, connected: socket.socket) -> None:
        try:
            found = connected.recv(_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            found = b""
        if not found or len(self._lines[connected]) > _LINE_BYTES:
            self._close(connected)
            return
        *lines, self._lines[connected] = (self._lines[connected] + found).split(b"\n")
        for line in lines:
            answer = self._answered(json.loads(line), connected)
            if answer is not None:
                self._send(connected, answer)

    def _close(self, connected: socket.socket) -> None:
        self._selector.unregister(connected)
        del self._lines[connected]
        connected.close()
        self._endings = [each for each in self._endings if each.asked_by is not connected]

    def _send(self, connected: socket.socket, answer: dict[str, Any]) -> None:
        try:
            connected.sendall(json.dumps(answer).encode() + b"\n")
        except OSError:
            pass  # who asked has gone

    def _answered(self, request: dict[str, Any], asked_by: socket.socket) -> dict[str, Any] | None:
        """Return the answer; None: it comes later."""
        self._last_asked = time.monotonic()
        kind = request["request"]
        if kind == "home":
            try:
                home = self._home(request)
            except OSError as error:
                return {"error": str(error)}
            return {"home": home.name, "pid": home.pid}
        if kind == "holds":
            self._holders.setdefault(request["run"], set()).add(request["pid"])
        elif kind == "over":
            return {"over": [run for run in request["runs"] if run in self._over]}
        elif kind == "closed":
            self._holders.get(request["run"], set()).discard(request["pid"])
        elif kind == "end":
            ended = self._end_run(request["run"], request["secrets"])
            until = time.monotonic() + request["within"]
            self._endings.append(_Ending(request["run"], asked_by, until, ended))
            self._answer_endings(time.monotonic())
            return None
        return {}

    def _end_run(self, run: str, secrets: list[str]) -> set[int]:
        """Let all homes of a run end, and workers close what they hold of it; return the homes' processes."""
        self._over[run] = None
        while len(self._over) > 1024:
            del self._over[next(iter(self._over))]
        for pid in self._holders.get(run, ()):
            _kill(pid, SIGNAL)
        # A home does not know its run where Spark does not tell its tasks (`foreachBatch` under Spark Connect).
        homes = [each for each in self._homes.values() if each.run == run or (not each.run and each.secret in secrets)]
        for home in homes:
            self._end(home)
        return {home.pid for home in homes}

    def _answer_endings(self, now: float) -> None:
        """Answer those who wait for the end of a run that is complete, or for which there is no time left."""
        for ending in list(self._endings):
            holders = self._holders.get(ending.run, set())
            holders &= {pid for pid in holders if _exists(pid)}
            if now < ending.until and (holders or ending.homes & self._homes.keys()):
                continue
            self._holders.pop(ending.run, None)
            self._endings.remove(ending)
            self._send(ending.asked_by, {"ended": len(ending.homes)})

    # -- homes --

    def _home(self, request: dict[str, Any]) -> _HomeProcess:
        """Return the home of a place.

        Raises:
            OSError: there is none, and none can be made.
        """
        run, query, epoch, place = request["run"], request["query"], request["epoch"], request["place"]
        self._reap()
        for home in list(self._homes.values()):
            if query and home.query == query and home.run != run:
                self._end(home)
        known = self._by_place.get(place)
        if known is not None and known.pid == request["without"]:
            self._end(known)  # it ends by itself, or hangs
            known = None
        home = self._new_home(request) if known is None else known
        self._by_place[place] = home
        home.places.add(place)
        if epoch > home.epoch:
            home.epoch = epoch
            for other in list(self._homes.values()):
                if other.run == run and other.epoch < epoch - _EPOCHS_AWAY:
                    self._end(other)
        return home

    def _new_home(self, request: dict[str, Any]) -> _HomeProcess:
        """Return a home that has room for one more place: a new one, unless there are as many as there may be."""
        alive = [home for home in self._homes.values() if home.kill_at is None]
        if len(alive) >= request["most"]:
            shared = [home for home in alive if (home.run, home.secret) == (request["run"], request["secret"])]
            if shared:
                return min(shared, key=lambda home: len(home.places))
        self._made += 1
        name = f"{os.getpid()}-{self._made}-{os.urandom(8).hex()}"
        facts = HomeFacts(name, request["secret"], request["idle"])
        ready, tells = os.pipe()
        try:
            pid = self._forked(facts, tells) if request["mode"] == "fork" else self._spawn(facts, tells)
            os.close(tells)
            tells = -1
            home = _HomeProcess(pid, name, *(request[what] for what in ("run", "query", "secret", "epoch")))
            self._homes[pid] = home
            if not select.select([ready], [], [], 30.0)[0] or not os.read(ready, 1):
                _kill(pid, signal.SIGKILL)
                raise OSError("a new home has ended, or does not answer")
            return home
        finally:
            os.close(ready)
            if tells >= 0:
                os.close(tells)

    def _forked(self, facts: HomeFacts, tells: int) -> int:
        with warnings.catch_warnings():
            # The threads besides this one are numpy's and Arrow's, which make new ones after a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            self._selector.close()
            self._listening.close()
            for connected in self._lines:
                connected.close()
            os.close(self._life)
            run_home(facts, self._lifeline, tells)
        except BaseException:
            _log.exception("a home could not begin")
        finally:
            leave(1)

    def _spawn(self, facts: HomeFacts, tells: int) -> int:
        command = python_command("run_spawned", facts, self._lifeline, tells)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(self._lifeline, tells))
        self._spawned[process.pid] = process
        return process.pid


def run_home(facts: HomeFacts, lifeline: int, tells: int) -> NoReturn:
    """Be a home; say so through a pipe."""

    def ready() -> None:
        os.write(tells, b"1")
        os.close(tells)

    Home(facts, lifeline, ready).run()


def run_spawned(facts: list[Any], lifeline: int, tells: int) -> NoReturn:
    """Be a home that is a process of its own from the start."""
    import_all()
    run_home(HomeFacts(*facts), lifeline, tells)


def _watch(pid: int) -> int | None:
    """Return a file that can be read when a process has ended; None where there is no such thing."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def main(listening: int, executor: int) -> NoReturn:
    """Be the starter.

    Args:
        listening: the number of a socket that listens under the executor's name.
        executor: its process.
    """
    os.setpgid(0, 0)  # signals that are for the worker, or for PySpark's daemon, are not for this process
    listener = socket.socket(fileno=listening)
    listener.listen(socket.SOMAXCONN)  # from now on it is this process that listens, as far as the others see
    import_and_freeze()
    _Starter(listener, executor).run()
