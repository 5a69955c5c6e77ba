"""The starter, a process that starts, tracks and ends the homes of one daemon's workers.

It runs no user functions. A client that gets no answer for two seconds replaces the starter with a new one, which
adopts the homes.

A connection begins with the executor's secret. Requests and answers are lines of JSON:

- ``home`` (:class:`HomeRequest`) asks for a home. The answer has its socket name, pid and origin, or ``refused`` with a
  reason.
- ``fate`` asks how the home with a given pid ended. The answer is null if unknown.
- ``end`` ends the homes of a run (an execution of a query). The answer, their number, follows when they have ended.
  Needs no secret, because drivers do not have it.
- ``holds``: the worker keeps a run's tasks, and wants a signal when the run ends. ``closed``: these tasks are closed.
- ``over`` asks which of the given runs have ended.

The answer ``wait`` announces the real answer. ``error`` means that the request failed.

A home ends when its run, executor or daemon ends, when a newer run of its query begins, when its partition has moved to
another executor, or after a long idle time.
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
from pillarbox._runtime.spark.homes.processes import OsProcess, leave, watch_all
from pillarbox._runtime.spark.homes.starter_clients import (
    TICK_SECONDS,
    WAIT,
    Client,
    ClientHoldThread,
    EndingClient,
    StarterHomeClient,
    readable,
    send,
)
from pillarbox._runtime.spark.homes.starter_connection import SIGNAL, start_python
from pillarbox._runtime.spark.homes.table import (
    HomeEntry,
    HomeRequest,
    HomeTable,
    TableRefusedError,
    TableRequestError,
    number_of,
    text_of,
    texts_of,
)
from pillarbox._runtime.spark.homes.wire import HomeDescription
from pillarbox._runtime.spark.tasks.channel import ChannelLostError

# Longer than a home's own limit.
_KILL_SECONDS = 6.0
# The starter ends after this many seconds without homes.
_IDLE_SECONDS = 600.0
# Epoch requests bypass the starter, so it asks homes for their last epoch at this interval (seconds).
_ASK_SECONDS = 30.0
# Seconds until a silent adopted home is killed.
_ADOPTION_SECONDS = 2.0
_LINE_BYTES = 1 << 16
_MOST_FATES = 64

_log = logging.getLogger("pillarbox")


class _Starter:
    def __init__(self, name: str, listening: socket.socket, lock: int, watched: list[OsProcess]) -> None:
        self._name = name
        self._listening = listening
        self._lock = lock
        self._watched = watched
        self._selector = selectors.DefaultSelector()
        self._clients: dict[socket.socket, Client] = {}
        self._table = HomeTable(time.monotonic, self._end_home)
        self._channels: dict[int, StarterHomeClient] = {}
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._fates: deque[tuple[int, str]] = deque(maxlen=_MOST_FATES)
        # Workers that hold tasks, by run.
        self._holders: dict[str, set[OsProcess]] = {}
        self._endings: list[EndingClient] = []
        self._last_asked = self._homes_asked_at = self._waits_sent_at = time.monotonic()
        self._has_imported = False
        self._polled: list[OsProcess] = []
        self._requests = {
            "home": self._home,
            "fate": self._fate_of,
            "holds": self._holds,
            "over": self._over,
            "closed": self._closed,
            "end": self._end_run,
        }

    def run(self, clients: list[socket.socket]) -> NoReturn:
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
            self._add_client(connected)
        while not (self._table.is_ending and not self._table.homes):
            for key, _ in self._selector.select(TICK_SECONDS):
                key.data()
            self._check_clock()
        leave(0)

    def _wake(self, woken: int) -> None:
        for number in os.read(woken, 4096):
            if number == signal.SIGTERM:
                self._end_all()
        self._reap()

    def _check_clock(self) -> None:
        now = time.monotonic()
        if any(process.has_ended() for process in self._polled):
            self._end_all()
        self._reap()
        for home in self._table.homes.values():
            if home.kill_at is not None and now > home.kill_at:
                home.process.kill(signal.SIGKILL)
        if now - self._homes_asked_at > _ASK_SECONDS:
            self._homes_asked_at = now
            self._table.end_moved_homes()
            for channel in self._channels.values():
                channel.ask()
        self._answer_endings(now)
        if self._table.homes or any(map(self._living_holders, self._holders)):
            self._last_asked = now
        elif now - self._last_asked > _IDLE_SECONDS:
            self._end_all()

    def _living_holders(self, run: str) -> set[OsProcess]:
        holders = self._holders.get(run, set())
        holders -= {process for process in holders if process.has_ended()}
        return holders

    def _end_all(self) -> None:
        if self._table.is_ending:
            return
        self._table.end_all()
        # Later requests go to another starter.
        for key in list(self._selector.get_map().values()):
            if key.data in (self._end_all, self._accept):
                self._selector.unregister(key.fileobj)
        sockets.remove(self._name)
        self._listening.close()
        for connected in list(self._clients):
            self._close(connected)

    def _end_home(self, home: HomeEntry) -> None:
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
        pid = home.process.pid
        spawned = self._spawned.get(pid)
        if spawned is not None:
            code = spawned.poll()
        elif home.is_adopted:
            return "unknown exit code" if home.process.has_ended() else None
        else:
            ended, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
        if code is None:
            return None
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def _accept(self) -> None:
        if self._table.is_ending:
            return
        try:
            connected, _ = self._listening.accept()
        except OSError as error:
            _log.warning("the process that starts homes refused a connection: %s", error)
            return
        self._add_client(connected)

    def _add_client(self, connected: socket.socket) -> None:
        try:
            sockets.peer_pid(connected)
        except OSError as error:
            _log.warning("the process that starts homes refused a connection: %s", error)
            connected.close()
            return
        connected.setblocking(False)
        self._clients[connected] = Client(connected)
        self._selector.register(connected, selectors.EVENT_READ, lambda: self._read(connected))

    def _read(self, connected: socket.socket) -> None:
        client = self._clients.get(connected)
        if client is None:
            return
        try:
            received = connected.recv(_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received or len(client.line) > _LINE_BYTES:
            self._close(connected)
            return
        *lines, client.line = (client.line + received).split(b"\n")
        for line in lines:
            if not client.has_begun:
                client.has_begun, client.knows_secret = True, sockets.is_secret(line)
                continue
            answer = self._answer(line, client)
            if answer is not None:
                send(connected, answer)

    def _close(self, connected: socket.socket) -> None:
        self._selector.unregister(connected)
        del self._clients[connected]
        connected.close()
        self._endings = [ending for ending in self._endings if ending.client.connected is not connected]

    def _answer(self, line: bytes, client: Client) -> dict[str, Any] | None:
        self._last_asked = time.monotonic()
        try:
            fields = json.loads(line)
            kind = text_of(fields, "request")
            answers = self._requests.get(kind)
            if answers is None:
                raise TableRequestError("unknown request")
            if kind != "end" and not client.knows_secret:
                raise TableRequestError("the secret of this executor's workers is wrong")
            return answers(fields, client)
        except TableRefusedError as error:
            return {"home": "", "pid": 0, "refused": str(error)}
        except (TableRequestError, ValueError) as error:
            return {"error": f"the process that starts homes does not understand a request: {error}"}
        except OSError as error:
            return {"error": f"no home process can be started: {error}"}

    def _holds(self, fields: dict[str, Any], client: Client) -> dict[str, Any]:
        self._holders.setdefault(text_of(fields, "run"), set()).add(OsProcess.of(int(number_of(fields, "pid"))))
        return {}

    def _over(self, fields: dict[str, Any], client: Client) -> dict[str, Any]:
        return {"over": [run for run in texts_of(fields, "runs") if self._table.is_over(run)]}

    def _closed(self, fields: dict[str, Any], client: Client) -> dict[str, Any]:
        self._holders.get(text_of(fields, "run"), set()).discard(OsProcess.of(int(number_of(fields, "pid"))))
        return {}

    def _fate_of(self, fields: dict[str, Any], client: Client) -> dict[str, Any]:
        pid = int(number_of(fields, "pid"))
        self._reap()
        return {"fate": next((fate for ended_pid, fate in reversed(self._fates) if ended_pid == pid), None)}

    def _end_run(self, fields: dict[str, Any], client: Client) -> None:
        run, secrets, within = text_of(fields, "run"), texts_of(fields, "secrets"), number_of(fields, "within")
        homes = self._table.end_run(run, secrets)
        for process in self._holders.get(run, ()):
            process.kill(SIGNAL)
        self._endings.append(EndingClient(run, client, time.monotonic() + within, {home.process.pid for home in homes}))
        self._answer_endings(time.monotonic())

    def _answer_endings(self, now: float) -> None:
        sends_wait = now - self._waits_sent_at > TICK_SECONDS
        if sends_wait:
            self._waits_sent_at = now
        for ending in list(self._endings):
            holders = self._living_holders(ending.run)
            if now < ending.until and (holders or ending.homes & self._table.homes.keys()):
                if sends_wait:
                    send(ending.client.connected, WAIT)
                continue
            self._holders.pop(ending.run, None)
            self._endings.remove(ending)
            send(ending.client.connected, {"ended": len(ending.homes)})

    def _home(self, fields: dict[str, Any], client: Client) -> dict[str, Any]:
        self._reap()
        home, origin = self._table.home(HomeRequest.of(fields), self._new_home)
        return {"home": home.name, "pid": home.process.pid, "origin": origin}

    def _import(self) -> None:
        greeter = ClientHoldThread(self._listening, self._clients)
        from pillarbox._runtime.spark.homes.imports import import_and_freeze

        import_and_freeze()
        for connected in greeter.end():
            if connected not in self._clients:
                self._add_client(connected)
        self._has_imported = True

    def _new_home(self, request: HomeRequest) -> HomeEntry:
        if request.mode == "fork" and not self._has_imported:
            self._import()
        name = f"{self._name}.{os.urandom(8).hex()}"
        watched = [[*process] for process in self._watched]
        facts = HomeDescription(
            name, request.run, request.query, request.secret, request.idle, watched, request.epoch, [request.place]
        )
        with sockets.listen(name) as listening:
            pid = self._fork(facts, listening) if request.mode == "fork" else self._spawn(facts, listening)
            self._watch_channel(StarterHomeClient(name), pid)
        return HomeEntry(OsProcess.of(pid), name, request.run, request.query, request.secret)

    def _fork(self, facts: HomeDescription, listening: socket.socket) -> int:
        from pillarbox._runtime.spark.homes.home import run_home

        with warnings.catch_warnings():
            # The other threads belong to numpy and Arrow, which restart them after a fork.
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
            _log.exception("a home process could not start")
        finally:
            leave(1)

    def _spawn(self, facts: HomeDescription, listening: socket.socket) -> int:
        process = start_python("run_spawned", [facts, listening.fileno()], [listening.fileno()])
        self._spawned[process.pid] = process
        return process.pid

    def adopt(self) -> None:
        """Take over the homes of earlier starters, and kill homes that do not answer."""
        asked = {}
        for name in sockets.homes_of(self._name):
            try:
                channel = StarterHomeClient(name)
            except (OSError, ChannelLostError):
                sockets.remove(name)
                continue
            asked[channel] = name
        deadline = time.monotonic() + _ADOPTION_SECONDS
        while asked and time.monotonic() < deadline:
            for channel in readable([*asked], deadline - time.monotonic()):
                del asked[channel]
                try:
                    self._adopt(channel, channel.facts())
                except (OSError, ChannelLostError):
                    channel.close()
        for channel, name in asked.items():
            with suppress(OSError):
                OsProcess.of(channel.pid).kill(signal.SIGKILL)
            channel.close()
            sockets.remove(name)

    def _adopt(self, channel: StarterHomeClient, facts: HomeDescription) -> None:
        home = HomeEntry(OsProcess.of(facts.pid), facts.name, facts.run, facts.query, facts.secret, {*facts.places})
        self._table.adopt(home, facts.since)
        self._table.record_visits(home, facts.epoch, facts.unused)
        self._watch_channel(channel, facts.pid)

    def _watch_channel(self, channel: StarterHomeClient, pid: int) -> None:
        self._channels[pid] = channel
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._receive_facts(channel, pid))

    def _receive_facts(self, channel: StarterHomeClient, pid: int) -> None:
        home = self._table.homes.get(pid)
        if home is None or self._channels.get(pid) is not channel:
            return
        try:
            facts = channel.facts()
        except ChannelLostError:
            del self._channels[pid]
            self._forget_channel(channel)
        else:
            self._table.record_visits(home, facts.epoch, facts.unused)

    def _forget_channel(self, channel: StarterHomeClient) -> None:
        self._selector.unregister(channel)
        channel.close()


def fork_starter(executor: int) -> None:
    """Fork the starter from a PySpark daemon that has imported the homes' modules."""
    daemon = os.getpid()
    name = sockets.starter_name(executor, daemon)
    lock = sockets.lock(name)
    if lock is None:
        return
    watched = [[*OsProcess.of(pid)] for pid in (executor, daemon)]
    pid = os.fork()
    if not pid:
        # The executor closes this pipe to end its daemon.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        try:
            main(name, lock, watched)
        finally:
            leave(1)
    sockets.write_holder(lock, OsProcess.of(pid))
    os.close(lock)


def run_spawned(facts: list[Any], listening: int) -> NoReturn:
    from pillarbox._runtime.spark.homes.imports import import_all

    import_all()
    from pillarbox._runtime.spark.homes.home import run_home

    run_home(HomeDescription(*facts), socket.socket(fileno=listening))


def main(name: str, lock: int, watched: list[list[int]]) -> NoReturn:
    """Run the starter. ``lock`` is the descriptor of the locked file that reserves the starter's name."""
    # If a home is stopped when the starter is killed, the kernel sends SIGHUP to the starter's process group.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.setpgid(0, 0)  # protects the worker and PySpark's daemon from signals
    listening = sockets.listen(name)
    greeter = ClientHoldThread(listening)
    sockets.sweep()
    starter = _Starter(name, listening, lock, [OsProcess(*process) for process in watched])
    starter.adopt()
    starter.run(greeter.end())
