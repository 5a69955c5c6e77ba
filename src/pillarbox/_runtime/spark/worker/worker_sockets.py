"""The sockets of a Python worker on their way from Spark: what has come is acknowledged at once.

Java sends a task in several small pieces. TCP holds back each of them until the one before is acknowledged, and Linux
takes 40 ms for that where nothing is sent back meanwhile: a tenth of an epoch, in nearly every task of a source. (Where
``spark.python.unix.domain.socket.enabled`` is set, these sockets know no such thing.)
"""

from __future__ import annotations

import os
import socket
import stat
import sys

from pyspark import cloudpickle

# Each look costs some microseconds, and functions may hold thousands of connections.
_LOOKED_AT = 128


def acknowledge_at_once() -> None:
    """Acknowledge all that has come through TCP, and what comes next; this holds until the worker sends something."""
    if not hasattr(socket, "TCP_QUICKACK"):  # only Linux has it
        return
    try:
        open_files = sorted(map(int, os.listdir("/proc/self/fd")))
    except OSError:  # such as where there is no /proc
        return
    if len(open_files) > 2 * _LOOKED_AT:
        # Sockets of the worker were opened first, and sockets of the task last: between are connections of functions.
        open_files = open_files[:_LOOKED_AT] + open_files[-_LOOKED_AT:]
    for number in open_files:
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as same:
                if same.type == socket.SOCK_STREAM and same.family in (socket.AF_INET, socket.AF_INET6):
                    same.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        except OSError:  # it is closed by now
            continue


# Part of a class that has to load where pillarbox is not (see ``_processor.py``).
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
