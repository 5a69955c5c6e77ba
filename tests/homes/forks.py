"""Forks starters of home processes from a process that has already imported their modules, which saves seconds.

``Forks.start_python`` replaces the function in `starter_connection`. The forking process receives the lock on a
starter's name, and forks the starter.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any, NoReturn

from pillarbox._runtime.spark.homes import starter
from pillarbox._runtime.spark.homes.imports import import_and_freeze

#: The secret of all executors' workers.
SECRET = "of the tests"


class Forks:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asks, answers = socket.socketpair()
        code = "from tests.homes.forks import serve; serve()"
        environment = {**os.environ, "PYTHON_WORKER_FACTORY_SECRET": SECRET}
        with answers:
            self._process = subprocess.Popen([sys.executable, "-c", code], stdin=answers.fileno(), env=environment)

    def start_python(self, function: str, arguments: list[Any], files: list[int]) -> SimpleNamespace:
        assert function == "main"
        with self._lock:
            socket.send_fds(self._asks, [json.dumps(arguments).encode()], files)
            return SimpleNamespace(pid=int(self._asks.recv(32)))

    def close(self) -> None:
        self._asks.close()
        self._process.wait()


def serve() -> None:
    import_and_freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps ended children
    asked = socket.socket(fileno=os.dup(0))
    while True:
        request, [*files], _, _ = socket.recv_fds(asked, 1 << 12, 1)
        if not request:
            return
        pid = os.fork()
        if pid == 0:
            asked.close()
            _become(json.loads(request), files[0])
        os.close(files[0])
        asked.send(str(pid).encode())


def _become(arguments: list[Any], lock: int) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    name, _, watched = arguments
    starter.main(name, lock, watched)
