"""How workers and drivers talk to the starter of an executor, which a worker starts if there is none."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from typing import Any

from pillarbox._runtime.spark.homes import sockets

#: Tells a worker that a run has ended of which it holds tasks. A process that knows nothing of it ignores it.
SIGNAL = signal.SIGURG

# How long the starter may take for an answer: it may be importing what homes need.
_ANSWER_SECONDS = 60.0
_TRIES = 5


class NoHomesError(Exception):
    """No home can be had."""


class Keeper:
    """A connection to the starter of an executor. One thread at a time uses it.

    Args:
        executor: the process of the executor.

    Attributes:
        is_asked: whether somebody waits for an answer; a signal handler may find that, in the same thread.
    """

    def __init__(self, executor: int) -> None:
        self._executor = executor
        self._name = sockets.executor_name(executor)
        self._connected: socket.socket | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        self._lock = threading.RLock()
        self.is_asked = False

    def ask(
        self, request: str, *, starts: bool = True, timeout: float = _ANSWER_SECONDS, **told: Any
    ) -> dict[str, Any]:
        """Return the starter's answer.

        Args:
            starts: whether to start one if there is none.
            timeout: how long it may take for it (seconds).

        Raises:
            NoHomesError: there is none, and none can be started.
        """
        with self._lock:
            self.is_asked = True
            try:
                return self._answer({"request": request, **told}, timeout, starts=starts)
            finally:
                self.is_asked = False

    def _answer(self, request: dict[str, Any], timeout: float, *, starts: bool) -> dict[str, Any]:
        why: object = None
        for _ in range(_TRIES):
            try:
                connected = self._connection(timeout, starts=starts)
                connected.settimeout(timeout)
                connected.sendall(json.dumps(request).encode() + b"\n")
                answer: dict[str, Any] = json.loads(_line(connected))
            except FileNotFoundError as error:
                raise NoHomesError(str(error)) from None
            except (OSError, EOFError) as error:
                why = error
                self.disconnect()
                continue
            if "error" in answer:
                raise NoHomesError(answer["error"])
            return answer
        raise NoHomesError(f"the process that makes homes does not answer: {why}")

    def disconnect(self) -> None:
        """Close the connection; the next request makes another one."""
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def prepare(self) -> None:
        """Start the starter if there is none, and do not wait for it: imports take it a second.

        Raises:
            NoHomesError: none can be started.
        """
        with self._lock:
            try:
                self._connection(_ANSWER_SECONDS, starts=True)
            except OSError as error:
                raise NoHomesError(str(error)) from None

    def _connection(self, timeout: float, *, starts: bool) -> socket.socket:
        if self._connected is None:
            try:
                self._connected = sockets.connect(self._name, timeout)
            except (ConnectionRefusedError, FileNotFoundError):
                if not starts:
                    raise FileNotFoundError("there are no homes in this executor") from None
                self._start()
                self._connected = sockets.connect(self._name, timeout)
        return self._connected

    def _start(self) -> None:
        try:
            listening = sockets.listen(self._name)
        except OSError:
            return  # another worker was faster
        with listening:
            self._started.append(
                subprocess.Popen(
                    python_command("main", listening.fileno(), self._executor),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(listening.fileno(),),
                )
            )


def python_command(function: str, *told: Any) -> list[str]:
    """Return the command of a process that finds modules as this one does, and calls a function of the starter's."""
    code = "import json, sys; told = json.loads(sys.argv[1]); sys.path[:] = told[0]"
    code += f"; from pillarbox._runtime.spark.homes import starter; starter.{function}(*told[1:])"
    return [sys.executable, "-c", code, json.dumps([sys.path, *told])]


def _line(connected: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        more = connected.recv(1 << 16)
        if not more:
            raise EOFError("it has closed the connection")
        found += more
    return found


def of_this_worker() -> Keeper:
    """Return the connection of this worker; of a process that it has forked, another one."""
    return _of_process(os.getpid())


@cache
def _of_process(pid: int) -> Keeper:
    return Keeper(sockets.executor_pid())
