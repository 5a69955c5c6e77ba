"""The Unix sockets of an executor's processes: their names, and who may be at the other end.

On Linux a name is in the abstract namespace: there is no file to remove or to leave behind. Elsewhere a socket is a
file in a folder of the user's own. Both ends check that the other one belongs to the same user.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import tempfile

_IS_ABSTRACT = sys.platform == "linux"
_CREDENTIALS = struct.Struct("3i")


def executor_pid() -> int:
    """Return the process of the executor that this Python worker belongs to, which is a JVM.

    Spark runs a worker from its daemon, or, without that, by itself: then it tells the worker where to call back.
    """
    by_itself = {"PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SOCK_PATH"} & os.environ.keys()
    return os.getppid() if by_itself else _parent_of(os.getppid())


def _parent_of(pid: int) -> int:
    if sys.platform == "linux":
        return int(_status(pid)[1])
    import subprocess

    return int(subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, check=True).stdout)


def _status(pid: int) -> list[str]:
    """Return the fields of a process after its name: state, parent, and so on (``man proc_pid_stat``)."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def executor_name(pid: int) -> str:
    """Return what tells an executor from all others of this machine, now and later."""
    if sys.platform != "linux":
        return f"{pid}"
    return f"{pid}-{_status(pid)[19]}-{os.stat('/proc/self/ns/pid').st_ino}"


def _address(name: str) -> str:
    if _IS_ABSTRACT:
        return f"\0pillarbox-{name}"
    folder = os.path.join(tempfile.gettempdir(), f"pillarbox-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.stat(folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} belongs to somebody else, or others may enter it: remove it")
    return os.path.join(folder, name)


def listen(name: str) -> socket.socket:
    """Return a socket that listens under a name.

    Raises:
        OSError: somebody else has the name.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(_address(name))
        listening.listen(socket.SOMAXCONN)
    except OSError:
        listening.close()
        raise
    return listening


def connect(name: str, timeout: float) -> socket.socket:
    """Return a socket that is connected to whoever listens under a name.

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
    except OSError:
        connected.close()
        raise
    return connected


def peer_pid(connected: socket.socket) -> int:
    """Return the process at the other end, as of when it connected or began to listen; 0 where that is not known.

    Raises:
        PermissionError: it belongs to another user.
    """
    if sys.platform != "linux":
        return 0  # the folder lets nobody else in
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.getuid():
        raise PermissionError(f"the process {pid} at the other end belongs to user {uid}")
    return int(pid)
