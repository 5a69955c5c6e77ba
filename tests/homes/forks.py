"""Starters that start at once: forked from a process that has imported what each of them imports.

``Forks`` stands for ``subprocess.Popen`` in the keeper. The process that it runs is given the socket on which a starter
is to listen, and forks it; starters of production import everything themselves, which takes seconds.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import NoReturn

from pillarbox._runtime.spark.homes import starter
from pillarbox._runtime.spark.homes.imports import import_and_freeze


class Forks:
    """The process."""

    def __init__(self) -> None:
        self._asks, answers = socket.socketpair()
        code = "from tests.homes.forks import serve; serve()"
        with answers:
            self._process = subprocess.Popen([sys.executable, "-c", code], stdin=answers.fileno())

    def popen(self, command: list[str], *, stdin: int, pass_fds: tuple[int]) -> SimpleNamespace:
        """Start what a command of the keeper's starts: ``starter.main``. It is a child of the process."""
        [code, told] = command[2:]
        _, listening, executor = json.loads(told)
        assert code.endswith("starter.main(*told[1:])") and (stdin, pass_fds) == (subprocess.DEVNULL, (listening,))
        socket.send_fds(self._asks, [str(executor).encode()], [listening])
        return SimpleNamespace(pid=int(self._asks.recv(32)))

    def close(self) -> None:
        self._asks.close()
        self._process.wait()


def serve() -> None:
    """Fork starters, until the tests close the socket."""
    import_and_freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets those that have ended
    asked = socket.socket(fileno=os.dup(0))
    while True:
        executor, [*listening], _, _ = socket.recv_fds(asked, 32, 1)
        if not executor:
            return
        pid = os.fork()
        if pid == 0:
            asked.close()
            _become(listening[0], int(executor))
        os.close(listening[0])
        asked.send(str(pid).encode())


def _become(listening: int, executor: int) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    starter.main(listening, executor)
