"""A PySpark daemon that imports the modules of workers before it forks them.

With PySpark's own daemon, each worker imports pandas, pyarrow and pillarbox itself, which costs a second and memory.
This daemon also forks the starter, which forks the home processes (long-lived processes of state partitions). To use
it, install pillarbox on all executors, and set ``spark.python.daemon.module`` to ``pillarbox.daemon`` before Spark
starts. ``local_session`` sets it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from pyspark.daemon import manager

from pillarbox._runtime.spark.homes.imports import import_and_freeze
from pillarbox._runtime.spark.homes.starter import fork_starter

__all__: list[str] = []

if __name__ == "__main__":
    import_and_freeze()
    if sys.platform == "linux":  # elsewhere, home processes are spawned
        with suppress(OSError):  # a worker will start one, or log why it cannot
            fork_starter(os.getppid())
    manager()
