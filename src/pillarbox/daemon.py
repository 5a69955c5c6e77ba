"""PySpark's daemon of Python workers, which imports the modules of workers and homes before it forks them.

PySpark's own daemon imports next to nothing, so each worker imports pandas, pyarrow and pillarbox for itself: about a
second, and most of the memory of a worker that only brings buffers to homes. This one also forks the starter of homes,
which would import all that once more. Set ``spark.python.daemon.module`` to ``pillarbox.daemon`` before Spark starts,
where pillarbox is installed on all executors. ``local_session`` does.
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
        with suppress(OSError):  # a worker then starts one, or logs why it cannot
            fork_starter(os.getppid())
    manager()
