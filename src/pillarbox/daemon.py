"""PySpark's daemon of Python workers, which imports what workers need before it forks them.

PySpark's own daemon imports next to nothing, so each worker imports pandas, pyarrow and pillarbox for itself: about a
second, and most of the memory of a worker that only brings buffers to homes. Set ``spark.python.daemon.module`` to
``pillarbox.daemon`` before Spark starts, where pillarbox is installed on all executors. ``local_session`` does.
"""

from __future__ import annotations

from pyspark.daemon import manager

from pillarbox._runtime.spark.homes.imports import import_and_freeze

__all__: list[str] = []

if __name__ == "__main__":
    import_and_freeze()
    manager()
