"""Acknowledges TCP data from Spark at once.

Java sends a task in small pieces. TCP holds each back until the previous piece is acknowledged, and Linux delays an
acknowledgement by 40 ms unless data is sent back: a tenth of an epoch, in nearly every source task. Unix sockets
(``spark.python.unix.domain.socket.enabled``) have no such delay.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable

from pyspark import cloudpickle

# Each descriptor costs a microsecond, and functions may hold thousands of connections.
_LOOKED_AT = 128


def acknowledge_at_once() -> None:
    """Acknowledge data received through TCP, now and until the worker next sends."""
    set_option = _set_option()
    if set_option is None:
        return
    try:
        open_files = sorted(map(int, os.listdir("/proc/self/fd")))
    except OSError:  # without /proc
        return
    if len(open_files) > 2 * _LOOKED_AT:
        # The worker's sockets were opened first, the task's last, and functions' connections between.
        open_files = open_files[:_LOOKED_AT] + open_files[-_LOOKED_AT:]
    for number in open_files:
        set_option(number)


def _set_option() -> Callable[[int], object] | None:
    """Return a function that sets the option of a descriptor, or None if not on Linux. It ignores files and pipes.

    Uses C's `setsockopt`, since a Python socket object with a default timeout, which functions may set, would make a
    descriptor that Spark or a library owns non-blocking.
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


# Pickled into a class that loads without pillarbox (see ``processor.py``).
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
