"""Sets options of a worker's connections to Spark.

Java sends a task in small pieces, whose acknowledgements Linux delays by 40 ms in nearly every source task. Unix
sockets (``spark.python.unix.domain.socket.enabled``) have no delay.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

# Limited, because functions may hold thousands of connections.
_LOOKED_AT = 128


def acknowledge_at_once() -> None:
    """Turn off delayed TCP acknowledgements, until the worker next sends data."""
    set_option = _set_option()
    if set_option is None:
        return
    try:
        open_files = sorted(map(int, os.listdir("/proc/self/fd")))
    except OSError:  # no /proc
        return
    if len(open_files) > 2 * _LOOKED_AT:
        # The worker's sockets are first, the task's last.
        open_files = open_files[:_LOOKED_AT] + open_files[-_LOOKED_AT:]
    for number in open_files:
        set_option(number)


def wait_without_timeout(handle: Any) -> None:
    """Drop the timeout of a worker's connection to the state store.

    PySpark leaves it at the process's default, which a function before the shuffle may have set for its own sockets.
    """
    client = getattr(handle, "_statefulProcessorApiClient", None)
    connection = getattr(client, "_client_socket", None)
    if connection is not None:
        connection.settimeout(None)


def _set_option() -> Callable[[int], object] | None:
    """Return a function that sets ``TCP_QUICKACK`` on a file descriptor, or None outside of Linux.

    It calls C's `setsockopt`, because a Python socket object may make the descriptor non-blocking.
    """
    option = getattr(socket, "TCP_QUICKACK", None)  # only on Linux
    if option is None:
        return None
    try:
        import ctypes

        set_option = ctypes.CDLL(None).setsockopt
    except (ImportError, AttributeError, OSError):
        return None
    on = ctypes.c_int(1)
    size = ctypes.c_uint(ctypes.sizeof(on))
    return lambda number: set_option(number, socket.IPPROTO_TCP, option, ctypes.byref(on), size)


# A class that loads without pillarbox.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
