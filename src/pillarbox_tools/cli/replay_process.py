"""Runs a replay in a process that has the recorded worker's hash seed and, on Linux, no network.

The process enters an empty network namespace before libraries start threads, because a multithreaded process cannot.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
import tempfile
from contextlib import suppress
from typing import Any, NoReturn, TypedDict


class ReplayRequest(TypedDict):
    """Arguments of a replay.

    Attributes:
        other: pickled (vertex, broadcast variables) of a program to compare with, or pickled None.
        how: further arguments of the replay or comparison.
        paths: Python's module search path.
    """

    directory: str
    other: bytes
    how: dict[str, Any]
    as_json: bool
    paths: list[str]


# Imports pillarbox from this process's path. Its ``__main__`` stays empty, for the script's classes.
_COMMAND = """\
def _main():
    import os, pickle, sys
    with open(sys.argv[1], "rb") as file:
        request = pickle.load(file)
    os.unlink(sys.argv[1])
    sys.path[:] = request["paths"]
    from pillarbox_tools.cli.replay_process import main
    main(request)
_main()
"""
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_SET_FLAGS, _UP = 0x8914, 1


def replay_in_new_process(request: ReplayRequest, hash_seed: str | None) -> NoReturn:
    descriptor, path = tempfile.mkstemp(prefix="pillarbox-replay-")
    with os.fdopen(descriptor, "wb") as file:
        pickle.dump(request, file)
    environment = dict(os.environ)
    if hash_seed is not None:
        environment["PYTHONHASHSEED"] = hash_seed
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-c", _COMMAND, path], environment)


def main(request: ReplayRequest) -> NoReturn:
    if not request["how"]["allow_calls"]:
        leave_network()
    from pillarbox_tools.cli.replaying import run_replay

    run_replay(request)


def leave_network() -> bool:
    """Enter a network namespace with only a loopback device. Returns whether that was allowed."""
    if sys.platform != "linux":
        return False
    user, group = os.geteuid(), os.getegid()
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    if unshare(_NEW_NETWORK) != 0:
        if unshare(_NEW_USER | _NEW_NETWORK) != 0:
            return False
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with suppress(OSError), open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with suppress(OSError):
        _start_loopback()
    return True


def _start_loopback() -> None:
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        fcntl.ioctl(device, _SET_FLAGS, struct.pack("16sh22x", b"lo", _UP))
