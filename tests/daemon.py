"""PySpark's daemon of Python workers, which has imported what workers need before it forks them.

Chaos kills dozens of workers a minute, and tests start hundreds: most of what a new one costs is importing pandas.
"""

from __future__ import annotations

import os

import pandas as pd  # noqa: F401
import pyarrow as pa  # noqa: F401
import pyspark.sql.streaming.stateful_processor_util  # noqa: F401
from pyspark.daemon import manager

import pillarbox._runtime.spark.source_host
import pillarbox._runtime.spark.task_host  # noqa: F401
from pillarbox._runtime.spark.homes import sockets
from tests.forked_python import JVM

if JVM in os.environ:
    sockets.executor_pid = lambda: int(os.environ[JVM])

if __name__ == "__main__":
    manager()
