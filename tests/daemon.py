"""The daemon of Python workers, for tests whose executor is not the process that started it."""

from __future__ import annotations

import gc
import os

from pyspark.daemon import manager

from pillarbox._runtime.spark.homes import sockets
from pillarbox._runtime.spark.homes.starter import import_all
from tests.forked_python import JVM

if JVM in os.environ:
    sockets.executor_pid = lambda: int(os.environ[JVM])

if __name__ == "__main__":
    import_all()
    gc.collect()
    gc.freeze()
    manager()
