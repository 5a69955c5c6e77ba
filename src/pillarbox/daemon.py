"""A PySpark daemon that imports the modules of workers before it forks them.

With PySpark's own daemon, each worker itself imports pandas, pyarrow and pillarbox, which takes a second and more
memory. This daemon also forks the starter, which starts the homes (processes that run tasks). To use it, set
``spark.python.daemon.module`` to ``pillarbox.daemon`` before Spark starts; pillarbox must be installed on all
executors. ``local_session`` sets it.
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
    if sys.platform == "linux":  # elsewhere homes are spawned
        with suppress(OSError):  # a worker then starts one, or logs why not
            fork_starter(os.getppid())
    manager()
