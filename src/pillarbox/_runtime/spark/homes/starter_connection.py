"""The connection of a worker or driver to the starter. A worker starts a missing starter."""

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
from pillarbox._runtime.spark.homes.processes import OsProcess

#: Signals the end of a run to a worker that holds its tasks.
SIGNAL = signal.SIGURG

# Seconds until a silent starter is killed and replaced.
_SILENT_SECONDS = 2.0
# The same for a starter that is not listening yet.
_BEGIN_SECONDS = 10.0
# Maximum seconds for an answer, including restarts and imports.
_ANSWER_SECONDS = 60.0
_PAUSE_SECONDS = 0.02


class NoHomesError(Exception):
    """No home is available."""


class StarterConnection:
    """A worker's or driver's connection to a starter. Thread-safe: sends one request at a time."""

    def __init__(self, executor: int, daemon: int) -> None:
        self._watched = [OsProcess.of(executor), OsProcess.of(daemon)]
        self._name = sockets.starter_name(executor, daemon)
        self._connected: socket.socket | None = None
        self._lines: BinaryIO | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        self._lock = threading.RLock()
        self.is_asked = False

    def ask(
        self, request: str, *, starts: bool = True, timeout: float = _SILENT_SECONDS, **fields: Any
    ) -> dict[str, Any]:
        """Send a request and return the answer. Replaces a starter that is silent for ``timeout`` seconds."""
        with self._lock:
            self.is_asked = True
            try:
                return self._answer({"request": request, **fields}, timeout, starts=starts)
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
                answer = self._receive_answer(deadline)
            except FileNotFoundError as error:
                raise NoHomesError(str(error)) from None
            except (OSError, EOFError) as error:
                if isinstance(error, TimeoutError) and starts:
                    self._kill_starter()
                self.disconnect()
                if not starts or time.monotonic() > deadline:
                    raise NoHomesError(f"the process that starts homes does not answer: {error}") from None
                time.sleep(_PAUSE_SECONDS)
                continue
            if "error" in answer:
                raise NoHomesError(answer["error"])
            return answer

    def _receive_answer(self, deadline: float) -> dict[str, Any]:
        assert self._lines is not None
        while True:
            line = self._lines.readline()
            if not line:
                raise EOFError("it has closed the connection")
            answer: dict[str, Any] = json.loads(line)
            if "wait" not in answer:
                return answer
            if time.monotonic() > deadline:
                raise EOFError("it is still not ready")

    def disconnect(self) -> None:
        if self._connected is not None and self._lines is not None:
            self._lines.close()
            self._connected.close()
            self._connected = None

    def _connect(self) -> None:
        self._connected = sockets.connect(self._name, _SILENT_SECONDS)
        self._lines = self._connected.makefile("rb")

    def prepare(self) -> None:
        """Start a missing starter, without waiting (about a second) until it is ready."""
        with self._lock:
            try:
                if self._connected is None or sockets.is_disconnected(self._connected):
                    self.disconnect()
                    try:
                        self._connect()
                    except (ConnectionRefusedError, FileNotFoundError):
                        self._start()
            except OSError as error:
                raise NoHomesError(str(error)) from None

    def _connection(self, deadline: float, *, starts: bool) -> socket.socket:
        began = time.monotonic()
        while self._connected is None:
            try:
                self._connect()
            except (ConnectionRefusedError, FileNotFoundError):
                if not starts:
                    raise FileNotFoundError("no home process (which runs operators) is left on this executor") from None
                if time.monotonic() > deadline:
                    raise
                if not self._start():
                    self._kill_deaf_starter(time.monotonic() - began)
                time.sleep(_PAUSE_SECONDS)
        return self._connected

    def _start(self) -> bool:
        if any(process.has_ended() for process in self._watched):
            raise FileNotFoundError("this worker's executor, or the executor's Python daemon, has ended")
        lock = sockets.lock(self._name)
        if lock is None:
            return False
        try:
            process = start_python("main", [self._name, lock, self._watched], [lock])
            self._started.append(process)
            sockets.write_holder(lock, OsProcess.of(process.pid))
        finally:
            os.close(lock)
        return True

    def _kill_deaf_starter(self, waited: float) -> None:
        """Kill a starter that does not answer, unless it may still be starting."""
        holder = sockets.holder(self._name)
        age = None if holder is None else holder.age()
        if (waited if age is None else age) > _BEGIN_SECONDS:
            self._kill_starter()

    def _kill_starter(self) -> None:
        holder = sockets.holder(self._name)
        if holder is None:
            return
        if self._connected is not None and sockets.peer_pid(self._connected) not in (0, holder.pid):
            return
        holder.kill(signal.SIGKILL)


def start_python(function: str, arguments: Sequence[Any], files: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a Python process that calls a function in `starter`.

    The arguments are passed in a file, because all users of the machine can read command lines.
    """
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps([sys.path, *arguments]).encode())
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        command = python_command(function, file.fileno())
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(file.fileno(), *files))


def python_command(function: str, file: int) -> list[str]:
    code = "import json, sys; arguments = json.load(open(int(sys.argv[1]))); sys.path[:] = arguments[0]"
    code += f"; from pillarbox._runtime.spark.homes import starter; starter.{function}(*arguments[1:])"
    return [sys.executable, "-c", code, str(file)]


def of_this_worker() -> StarterConnection:
    """Return this worker's connection to its starter. Raises NoHomesError if this process is not a worker."""
    try:
        return _of_process(os.getpid())
    except OSError as error:
        raise NoHomesError(f"the executor of this worker was not found: {error}") from None


@cache
def _of_process(pid: int) -> StarterConnection:
    return StarterConnection(sockets.executor_pid(), os.getppid())
