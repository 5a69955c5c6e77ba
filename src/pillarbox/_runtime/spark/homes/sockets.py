"""The Unix sockets of an executor's processes: their names, and who may connect.

Sockets are files in a folder that only the user may enter, as Spark's own Unix sockets are. Where Spark's daemon asks
its clients for a secret, these sockets ask for the same one. Both ends check that the other one belongs to the user.

A starter is named for its executor and for PySpark's daemon, and homes add to the name of their starter:
``EXECUTOR-DAEMON[.HOME]``. So the workers of one daemon meet, which have Python, environment and session in common.
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

from pillarbox._runtime.spark.homes.processes import Process, status

#: What `poll` says of a connection whose other end has gone.
GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP

_CREDENTIALS = struct.Struct("3i")
# macOS: `SOL_LOCAL` and `LOCAL_PEERPID` of sys/un.h.
_LOCAL, _PEER_PID = 0, 2
# A path of a socket may have 104 bytes on macOS, and 108 on Linux.
_PATH_BYTES = 100
_SECRET_BYTES = 1024
# How old the file of a socket is that nobody listens at, when it is removed (seconds).
_LEFT_SECONDS = 60.0


class Pollable(Protocol):
    """An object with a descriptor."""

    def fileno(self) -> int: ...


def executor_pid() -> int:
    """Return the process of the executor that this Python worker belongs to, which is a JVM.

    Raises:
        OSError: the daemon that forked this worker has ended.
    """
    return _parent_of(os.getppid())


def _parent_of(pid: int) -> int:
    if sys.platform == "linux":
        return int(status(pid)[1])
    import subprocess

    return int(subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, check=True).stdout)


def executor_name(pid: int) -> str:
    """Return what tells an executor from all others of this machine, now and later.

    Raises:
        OSError: there is no such process.
    """
    if sys.platform != "linux":
        return f"{pid}"
    return f"{pid}-{Process.of(pid).start}-{os.stat('/proc/self/ns/pid').st_ino}"


def starter_name(executor: int, daemon: int) -> str:
    """Return the name of the starter that serves the workers of a daemon.

    Raises:
        OSError: there is no such process.
    """
    return f"{executor_name(executor)}-{daemon}-{Process.of(daemon).start}"


def daemons_of(executor: int) -> set[int]:
    """Return the daemons of an executor whose workers have had a starter."""
    name = executor_name(executor)
    starters = {each.partition(".")[0] for each in _names()}
    own = (each for each in starters if each.startswith(f"{name}-") and each.count("-") == name.count("-") + 2)
    return {int(each.split("-")[-2]) for each in own}


def homes_of(starter: str) -> list[str]:
    """Return the names of a starter's homes; some may have ended."""
    return [name for name in _names() if name.startswith(f"{starter}.")]


def _names() -> list[str]:
    return [name for name in os.listdir(_folder()) if not name.endswith(_LOCK)]


def _address(name: str) -> str:
    """Return the file of a socket."""
    return os.path.join(_folder(), name)


# -- the lock on a starter's name: who has it is the starter --

_LOCK = ",lock"


def lock(name: str) -> int | None:
    """Return an open file that holds the lock on a name, until all copies of it are closed; None: somebody has it."""
    import fcntl

    path = _address(name) + _LOCK
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except FileNotFoundError:
            pass  # its former holder has just removed it
        except OSError:
            os.close(file)
            return None
        os.close(file)


def write_holder(file: int, process: Process) -> None:
    """Say in a lock's file who holds it."""
    os.ftruncate(file, 0)
    os.pwrite(file, f"{process.pid} {process.start}\n".encode(), 0)


def holder(name: str) -> Process | None:
    """Return who holds the lock on a name; None: nobody has said so."""
    try:
        with open(_address(name) + _LOCK, encoding="ascii") as file:
            pid, start = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return Process(pid, start)


# -- sockets --


@cache
def secret() -> bytes:
    """Return what processes of this executor say first when they connect; it is empty where Spark has no secret."""
    return os.environ.get("PYTHON_WORKER_FACTORY_SECRET", "").encode()


def is_secret(told: bytes) -> bool:
    """Tell whether somebody knows the secret."""
    return hmac.compare_digest(told, secret())


def listen(name: str) -> socket.socket:
    """Return a socket that listens under a name, which is the caller's own."""
    path = _address(name)
    with suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.settimeout(None)  # functions may have set a default timeout
        listening.bind(path)
        listening.listen(socket.SOMAXCONN)
    except OSError:
        listening.close()
        raise
    return listening


def remove(name: str) -> None:
    """Remove the files of a name."""
    for path in (_address(name), _address(name) + _LOCK):
        with suppress(OSError):
            os.unlink(path)


def connect(name: str, timeout: float) -> socket.socket:
    """Return a socket that is connected to whoever listens under a name, and has said the secret.

    Args:
        timeout: of this and of all that is sent and received through it (seconds).

    Raises:
        OSError: nobody listens, or a process of another user.
    """
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
    """Return a socket whose other end has said the secret, after at most ``timeout`` (seconds), which it keeps.

    Raises:
        OSError: it has not, or belongs to another user.
    """
    connected, _ = listening.accept()
    try:
        peer_pid(connected)
        connected.settimeout(timeout)
        if not is_secret(_first_line(connected, timeout)):
            raise PermissionError("it does not know the secret of this executor's workers")
    except OSError:
        connected.close()
        raise
    return connected


def _first_line(connected: socket.socket, timeout: float) -> bytes:
    """Receive a line, and nothing of what follows it."""
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
    raise PermissionError("it does not say who it is")


def peer_pid(connected: socket.socket) -> int:
    """Return the process at the other end, as of when it connected or began to listen; 0 where that is not known.

    Raises:
        PermissionError: it belongs to another user.
    """
    if sys.platform == "darwin":
        return connected.getsockopt(_LOCAL, _PEER_PID)  # the folder lets no other user in
    if sys.platform != "linux":
        return 0
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.getuid():
        raise PermissionError(f"the process {pid} at the other end belongs to user {uid}")
    return int(pid)


def has_gone(connected: Pollable) -> bool:
    """Tell whether the other end of a connection has gone."""
    poll = select.poll()
    poll.register(connected, GONE)
    return bool(poll.poll(0))


def sweep() -> None:
    """Remove the files of killed processes, of any executor."""
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
            pass  # such as that more wait for it than may
        return True


def _folder() -> str:
    base = tempfile.gettempdir()
    # "-" and ten digits, three times for the executor and twice for the daemon; "." and 16 digits of a home.
    longest = len(os.path.join(base, f"pillarbox-{os.getuid()}", "")) + 5 * 11 + 17
    folder = os.path.join(base if longest <= _PATH_BYTES else "/tmp", f"pillarbox-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} belongs to somebody else, or others may enter it: remove it")
    return folder
