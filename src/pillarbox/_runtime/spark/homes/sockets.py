"""Names and opens the Unix sockets between an executor's processes.

Sockets are files in a folder that only the user may enter. Each end checks the user of the other process and, if
Spark's daemon has a secret, that secret.

A starter's socket is named ``EXECUTOR-DAEMON``, and a home's socket ``EXECUTOR-DAEMON.HOME``. The workers of one
PySpark daemon share a starter.
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import stat
import struct
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from typing import Protocol

from pillarbox._runtime.spark.homes.processes import OsProcess, status

#: `poll` event of a connection whose peer has closed.
GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP

_CREDENTIALS = struct.Struct("3i")
# macOS: `SOL_LOCAL` and `LOCAL_PEERPID` of sys/un.h.
_LOCAL, _PEER_PID = 0, 2
# The limit is 104 bytes on macOS, 108 on Linux.
_PATH_BYTES = 100
_SECRET_BYTES = 1024
# Socket files younger than this (seconds) are not removed.
_LEFT_SECONDS = 60.0


class Pollable(Protocol):
    """An object with a file descriptor, for polling."""

    def fileno(self) -> int: ...


def executor_pid() -> int:
    """Return the pid of this worker's executor (a JVM). Raises OSError if the worker's daemon has exited."""
    return _parent_of(os.getppid())


def _parent_of(pid: int) -> int:
    if sys.platform == "linux":
        return int(status(pid)[1])
    import subprocess

    return int(subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, check=True).stdout)


def executor_name(pid: int) -> str:
    """Return a name for the executor that is unique on this machine. On Linux, names are never reused."""
    if sys.platform != "linux":
        return f"{pid}"
    return f"{pid}-{OsProcess.of(pid).start}-{os.stat('/proc/self/ns/pid').st_ino}"


def starter_name(executor: int, daemon: int) -> str:
    return f"{executor_name(executor)}-{daemon}-{OsProcess.of(daemon).start}"


def daemons_of(executor: int) -> set[int]:
    """Return the pids of the executor's PySpark daemons that have or had a starter."""
    name = executor_name(executor)
    starters = {file.partition(".")[0] for file in _names()}
    own = (
        starter for starter in starters if starter.startswith(f"{name}-") and starter.count("-") == name.count("-") + 2
    )
    return {int(starter.split("-")[-2]) for starter in own}


def homes_of(starter: str) -> list[str]:
    return [name for name in _names() if name.startswith(f"{starter}.")]


def _names() -> list[str]:
    return [name for name in os.listdir(_folder()) if not name.endswith(_LOCK)]


def _address(name: str) -> str:
    return os.path.join(_folder(), name)


_LOCK = ",lock"


def lock(name: str) -> int | None:
    """Lock a name until all copies of the returned descriptor are closed. Returns None if it is already locked."""
    import fcntl

    path = _address(name) + _LOCK
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except FileNotFoundError:
            pass
        except OSError:
            os.close(file)
            return None
        os.close(file)


def write_holder(file: int, process: OsProcess) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, f"{process.pid} {process.start}\n".encode(), 0)


def holder(name: str) -> OsProcess | None:
    try:
        with open(_address(name) + _LOCK, encoding="ascii") as file:
            pid, start = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return OsProcess(pid, start)


@cache
def secret() -> bytes:
    """Return the secret that this executor's processes share, or b"" if Spark has no secret."""
    return os.environ.get("PYTHON_WORKER_FACTORY_SECRET", "").encode()


def is_secret(line: bytes) -> bool:
    return hmac.compare_digest(line, secret())


def listen(name: str) -> socket.socket:
    path = _address(name)
    with suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.settimeout(None)
        listening.bind(path)
        listening.listen(socket.SOMAXCONN)
    except OSError:
        listening.close()
        raise
    return listening


def remove(name: str) -> None:
    for path in (_address(name), _address(name) + _LOCK):
        with suppress(OSError):
            os.unlink(path)


def connect(name: str, timeout: float) -> socket.socket:
    """Connect to a listening process and send the secret. ``timeout`` (seconds) is also set on the socket."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout)
        connected.connect(_address(name))
        peer_pid(connected)
        connected.sendall(secret() + b"\n")
    except OSError:
        connected.close()
        raise
    return connected


def accept(listening: socket.socket, timeout: float) -> socket.socket:
    """Accept a connection. Raises OSError unless the secret arrives within ``timeout`` seconds."""
    connected, _ = listening.accept()
    try:
        peer_pid(connected)
        connected.settimeout(timeout)
        if not is_secret(_first_line(connected, timeout)):
            raise PermissionError("the secret of this executor's workers is wrong")
    except OSError:
        connected.close()
        raise
    return connected


def _first_line(connected: socket.socket, timeout: float) -> bytes:
    deadline = time.monotonic() + timeout
    line = b""
    while len(line) < _SECRET_BYTES and time.monotonic() < deadline:
        come = connected.recv(_SECRET_BYTES, socket.MSG_PEEK)
        if not come:
            raise ConnectionResetError("it has closed the connection")
        end = come.find(b"\n") + 1
        line += connected.recv(end or len(come))
        if end:
            return line[:-1]
    raise PermissionError("it sent no secret")


def peer_pid(connected: socket.socket) -> int:
    """Return the pid of the peer, or 0 if unknown. Raises PermissionError for another user's process."""
    if sys.platform == "darwin":
        return connected.getsockopt(_LOCAL, _PEER_PID)
    if sys.platform != "linux":
        return 0
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.getuid():
        raise PermissionError(f"the connected process {pid} belongs to another user ({uid})")
    return int(pid)


def is_disconnected(connected: Pollable) -> bool:
    poll = select.poll()
    poll.register(connected, GONE)
    return bool(poll.poll(0))


def sweep() -> None:
    """Remove the socket files of killed processes, of all executors."""
    for name in os.listdir(_folder()):
        path = _address(name)
        with suppress(OSError):
            if time.time() - os.stat(path).st_mtime < _LEFT_SECONDS:
                continue
            if name.endswith(_LOCK):
                held = lock(name.removesuffix(_LOCK))
                if held is not None:
                    os.unlink(path)
                    os.close(held)
            elif not _is_listened_at(path):
                os.unlink(path)


def _is_listened_at(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(0)
        try:
            asked.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            pass
        return True


def _folder() -> str:
    base = tempfile.gettempdir()
    # A name has five numbers of at most ten digits, each with "-", and 17 characters for a home.
    longest = len(os.path.join(base, f"pillarbox-{os.getuid()}", "")) + 5 * 11 + 17
    folder = os.path.join(base if longest <= _PATH_BYTES else "/tmp", f"pillarbox-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} belongs to another user or is accessible to other users: remove it")
    return folder
