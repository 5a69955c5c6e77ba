"""How workers and drivers talk to the starter of homes, which a worker starts if there is none."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import cache
from typing import Any, BinaryIO

from pillarbox._runtime.spark.homes import sockets
from pillarbox._runtime.spark.homes.processes import Process

#: Tells a worker that a run has ended of which it holds tasks. A process that knows nothing of it ignores it.
SIGNAL = signal.SIGURG

# A starter that has said nothing for this time hangs (seconds): it is killed, and the next one is started.
_SILENT_SECONDS = 2.0
# A starter that does not listen after this time hangs (seconds); it has to load Python before.
_BEGIN_SECONDS = 10.0
# How long an answer may take with all of that, and with imports (seconds).
_ANSWER_SECONDS = 60.0
_PAUSE_SECONDS = 0.02


class NoHomesError(Exception):
    """No home can be had."""


class Keeper:
    """A connection to a starter. One thread at a time uses it.

    Args:
        executor: the process of the executor.
        daemon: the daemon of PySpark that has forked the worker.

    Attributes:
        is_asked: whether somebody waits for an answer; a signal handler may find that, in the same thread.

    Raises:
        OSError: there is no such executor or daemon.
    """

    def __init__(self, executor: int, daemon: int) -> None:
        self._watched = [Process.of(executor), Process.of(daemon)]
        self._name = sockets.starter_name(executor, daemon)
        self._connected: socket.socket | None = None
        self._lines: BinaryIO | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        self._lock = threading.RLock()
        self.is_asked = False

    def ask(
        self, request: str, *, starts: bool = True, timeout: float = _SILENT_SECONDS, **told: Any
    ) -> dict[str, Any]:
        """Return the starter's answer.

        Args:
            starts: whether to start one if there is none, or if it says nothing.
            timeout: for how long it may say nothing (seconds).

        Raises:
            NoHomesError: there is none, and none can be started; or the request cannot be met.
        """
        with self._lock:
            self.is_asked = True
            try:
                return self._answer({"request": request, **told}, timeout, starts=starts)
            finally:
                self.is_asked = False

    def _answer(self, request: dict[str, Any], timeout: float, *, starts: bool) -> dict[str, Any]:
        line = json.dumps(request).encode() + b"\n"
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            try:
                connected = self._connection(deadline, starts=starts)
                connected.settimeout(timeout)
                connected.sendall(line)
                answer = self._heard(deadline)
            except FileNotFoundError as error:
                raise NoHomesError(str(error)) from None
            except (OSError, EOFError) as error:
                if isinstance(error, TimeoutError) and starts:
                    self._kill_starter()
                self.disconnect()
                if not starts or time.monotonic() > deadline:
                    raise NoHomesError(f"the process that makes homes does not answer: {error}") from None
                time.sleep(_PAUSE_SECONDS)
                continue
            if "error" in answer:
                raise NoHomesError(answer["error"])
            return answer

    def _heard(self, deadline: float) -> dict[str, Any]:
        assert self._lines is not None
        while True:
            line = self._lines.readline()
            if not line:
                raise EOFError("it has closed the connection")
            answer: dict[str, Any] = json.loads(line)
            if "wait" not in answer:
                return answer
            if time.monotonic() > deadline:
                raise EOFError("it makes everybody wait")

    def disconnect(self) -> None:
        """Close the connection; the next request makes another one."""
        if self._connected is not None and self._lines is not None:
            self._lines.close()
            self._connected.close()
            self._connected = None

    def _connect(self) -> None:
        self._connected = sockets.connect(self._name, _SILENT_SECONDS)
        self._lines = self._connected.makefile("rb")

    def prepare(self) -> None:
        """Start the starter if there is none, and do not wait for it: imports take it a second.

        Raises:
            NoHomesError: none can be started.
        """
        with self._lock:
            try:
                if self._connected is None or sockets.has_gone(self._connected):
                    self.disconnect()
                    try:
                        self._connect()
                    except (ConnectionRefusedError, FileNotFoundError):
                        self._start()
            except OSError as error:
                raise NoHomesError(str(error)) from None

    def _connection(self, deadline: float, *, starts: bool) -> socket.socket:
        """Return the connection, to a starter that is started if need be.

        Raises:
            FileNotFoundError: there is none, and none is to be started.
            OSError: no starter listens in time.
        """
        began = time.monotonic()
        while self._connected is None:
            try:
                self._connect()
            except (ConnectionRefusedError, FileNotFoundError):
                if not starts:
                    raise FileNotFoundError("there are no homes in this executor") from None
                if time.monotonic() > deadline:
                    raise
                if not self._start():
                    self._kill_deaf_starter(time.monotonic() - began)
                time.sleep(_PAUSE_SECONDS)
        return self._connected

    def _start(self) -> bool:
        """Start the starter, unless somebody has; return whether this process has."""
        if any(process.has_ended() for process in self._watched):
            raise FileNotFoundError("the executor of this worker has ended, or its daemon")
        lock = sockets.lock(self._name)
        if lock is None:
            return False
        try:
            process = start_python("main", [self._name, lock, self._watched], [lock])
            self._started.append(process)
            sockets.write_holder(lock, Process.of(process.pid))
        finally:
            os.close(lock)  # the starter has a copy, which holds it
        return True

    def _kill_deaf_starter(self, waited: float) -> None:
        """Kill the starter if it should have begun to listen, as far as its age or the time that was waited tells."""
        holder = sockets.holder(self._name)
        age = None if holder is None else holder.age()
        if (waited if age is None else age) > _BEGIN_SECONDS:
            self._kill_starter()

    def _kill_starter(self) -> None:
        """Kill a starter that hangs. Its homes live on."""
        holder = sockets.holder(self._name)
        if holder is None:
            return
        if self._connected is not None and sockets.peer_pid(self._connected) not in (0, holder.pid):
            return  # there is another one by now
        holder.kill(signal.SIGKILL)


def start_python(function: str, told: Sequence[Any], files: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a process that finds modules as this one does, and calls a function of the starter's.

    Its arguments are not on the command line, which all users of the machine can read.

    Args:
        told: the function's arguments, as JSON.
        files: numbers of open files that it gets.
    """
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps([sys.path, *told]).encode())
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        command = python_command(function, file.fileno())
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(file.fileno(), *files))


def python_command(function: str, told: int) -> list[str]:
    """Return the command of such a process.

    Args:
        told: the number of the file with what it is told.
    """
    code = "import json, sys; told = json.load(open(int(sys.argv[1]))); sys.path[:] = told[0]"
    code += f"; from pillarbox._runtime.spark.homes import starter; starter.{function}(*told[1:])"
    return [sys.executable, "-c", code, str(told)]


def of_this_worker() -> Keeper:
    """Return the connection of this worker; of a process that it has forked, another one.

    Raises:
        NoHomesError: this is no worker, or its daemon has ended.
    """
    try:
        return _of_process(os.getpid())
    except OSError as error:
        raise NoHomesError(f"the executor of this worker is not to be found: {error}") from None


@cache
def _of_process(pid: int) -> Keeper:
    return Keeper(sockets.executor_pid(), os.getppid())
