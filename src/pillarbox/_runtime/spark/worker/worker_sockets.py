"""The sockets of a Python worker on their way from Spark: what has come is acknowledged at once.

Java sends a task in several small pieces. TCP holds back each of them until the one before is acknowledged, and Linux
takes 40 ms for that where nothing is sent back meanwhile: a tenth of an epoch, in nearly every task of a source. (Where
``spark.python.unix.domain.socket.enabled`` is set, these sockets know no such thing.)
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable

from pyspark import cloudpickle

# Each look costs a microsecond, and functions may hold thousands of connections.
_LOOKED_AT = 128


def acknowledge_at_once() -> None:
    """Acknowledge all that has come through TCP, and what comes next; this holds until the worker sends something."""
    set_option = _set_option()
    if set_option is None:
        return
    try:
        open_files = sorted(map(int, os.listdir("/proc/self/fd")))
    except OSError:  # such as where there is no /proc
        return
    if len(open_files) > 2 * _LOOKED_AT:
        # Sockets of the worker were opened first, and sockets of the task last: between are connections of functions.
        open_files = open_files[:_LOOKED_AT] + open_files[-_LOOKED_AT:]
    for number in open_files:
        set_option(number)


def _set_option() -> Callable[[int], object] | None:
    """Return a function that sets the option of a descriptor, or None on other systems. It ignores files and pipes.

    It is C's: a socket object of Python's changes a descriptor that Spark or a library has made. The default timeout,
    which functions set for their own sockets, would make that one non-blocking.
    """
    option = getattr(socket, "TCP_QUICKACK", None)  # only Linux has it
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


# Part of a class that has to load where pillarbox is not (see ``_processor.py``).
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
