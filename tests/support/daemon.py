"""A daemon of Python workers, for tests whose executor is a separate process."""

from __future__ import annotations

import os

from pyspark.daemon import manager

from pillarbox._runtime.spark.homes import sockets
from pillarbox._runtime.spark.homes.imports import import_and_freeze
from pillarbox._runtime.spark.homes.starter import fork_starter
from tests.support.forked_python import JVM

if JVM in os.environ:
    sockets.executor_pid = lambda: int(os.environ[JVM])

if __name__ == "__main__":
    import_and_freeze()
    fork_starter(sockets.executor_pid() if JVM in os.environ else os.getppid())
    manager()
