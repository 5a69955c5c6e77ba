"""A simulated Spark executor with daemons and workers, all forked from this process.

As in Spark, an executor is the parent of its daemons, and a daemon is the parent of its workers. Starters of home
processes are also forked; in production, a command starts them.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from pillarbox._runtime.spark.homes import sockets, starter, starter_connection
from pillarbox._runtime.spark.homes.processes import status

_SIZE = struct.Struct("!Q")


def send(connected: socket.socket, message: Any) -> None:
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    connected.sendall(_SIZE.pack(len(content)) + content)


def receive(connected: socket.socket) -> Any:
    """Receive a message. Raises EOFError if the other end has closed the connection."""
    return pickle.loads(_read(connected, _SIZE.unpack(_read(connected, _SIZE.size))[0]))


def _read(connected: socket.socket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        with suppress(ConnectionResetError):
            more = connected.recv(min(size - len(read), 1 << 20))
            if more:
                read += more
                continue
        raise EOFError
    return read


class Process:
    def __init__(self, pid: int, connected: socket.socket) -> None:
        self.pid = pid
        self.connected = connected

    def fork(self, kind: str) -> Process:
        parent, other = socket.socketpair()
        with other:
            socket.send_fds(self.connected, [kind.encode()], [other.fileno()])
        return Process(receive(parent), parent)

    def kill(self, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def executor(work: Callable[[Any], Any]) -> Process:
    """Fork an executor, whose workers answer messages by calling ``work``."""
    parent, other = socket.socketpair()
    pid = os.fork()
    if not pid:
        _close_all_but(other.fileno())
        os.setsid()
        _serve(other, work)
    other.close()
    return Process(pid, parent)


def _serve(asked: socket.socket, work: Callable[[Any], Any]) -> NoReturn:
    with suppress(OSError):
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps ended children
        while True:
            kind, [*files], _, _ = socket.recv_fds(asked, 16, 1)
            if not kind:
                break
            if not os.fork():
                _close_all_but(files[0])
                connected = socket.socket(fileno=files[0])
                send(connected, os.getpid())
                if kind == b"worker":
                    _work(connected, work)
                os.setpgid(0, 0)
                os.environ["PYTHON_WORKER_FACTORY_SECRET"] = f"of daemon {os.getpid()}"
                _serve(connected, work)
            os.close(files[0])
    if os.getpgrp() == os.getpid() != os.getsid(0):
        os.killpg(0, signal.SIGKILL)  # a daemon takes its workers along
    os._exit(0)


def _work(connected: socket.socket, work: Callable[[Any], Any]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sockets.secret.cache_clear()
    starter_connection.start_python = _start_python  # type: ignore[assignment]
    with suppress(EOFError, BrokenPipeError):
        while True:
            try:
                answer = work(receive(connected))
            except EOFError:
                raise
            except Exception as error:
                answer = f"{type(error).__name__}: {error}"
            send(connected, answer)
    os._exit(0)


def _start_python(function: str, arguments: list[Any], files: list[int]) -> SimpleNamespace:
    assert function == "main"
    pid = os.fork()
    if not pid:
        _close_all_but(*files)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        starter.main(*arguments)
    return SimpleNamespace(pid=pid)


def _close_all_but(*fds: int) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in fds:
            with suppress(OSError):
                os.close(number)
    gc.collect()


def members(executor: int) -> dict[int, str]:
    results = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = status(int(path.name))
            state, parent, group, session = fields[0], *map(int, fields[1:4])
            if session == executor and state not in "ZX":
                results[int(path.name)] = parent, group
    daemons = {pid for pid, (parent, group) in results.items() if parent == executor and group == pid}
    kinds = {}
    for pid, (_, group) in results.items():
        if pid == executor:
            kinds[pid] = "executor"
        elif pid in daemons:
            kinds[pid] = "daemon"
        elif group in daemons:
            kinds[pid] = "worker"
        else:
            kinds[pid] = "starter" if pid == group else "home"
    return kinds
