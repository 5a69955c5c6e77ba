"""PySpark's daemon of Python workers, which imports the modules of workers and homes before it forks them.

With PySpark's own daemon, each worker imports pandas, pyarrow and pillarbox itself: about a second, and memory. This
daemon also forks the starter of homes. Set ``spark.python.daemon.module`` to ``pillarbox.daemon`` before Spark starts,
if pillarbox is installed on all executors. ``local_session`` does.
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
