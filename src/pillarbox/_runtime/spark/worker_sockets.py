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

__all__ = ["acknowledge_at_once"]


def acknowledge_at_once() -> None:
    """Acknowledge all that has come through TCP, and what comes next; this holds until the worker sends something."""
    if not hasattr(socket, "TCP_QUICKACK"):  # only Linux has it
        return
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
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
