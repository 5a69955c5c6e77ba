"""Prepares a process for forking homes and workers."""

from __future__ import annotations

import gc
import os
import sys
import zipimport
from importlib import import_module

from pillarbox._runtime.spark.homes.broadcasts import keep_pickled_values
from pillarbox._runtime.spark.session.packages import packages_here
from pillarbox._runtime.spark.tasks.leaving import forget_inherited_exit_handlers

# Forked processes share these modules' memory.
_NEEDED = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "pyspark.worker",
    "pyspark.sql.streaming.stateful_processor_util",
    "pyspark.sql.streaming.proto.StateMessage_pb2",
    "pillarbox._api",  # user functions refer to it
    "pillarbox.functions",
    "pillarbox.async_retry_predicates",
    "pillarbox._runtime.spark.homes.home",
    "pillarbox._runtime.spark.worker.source_host",
    "pillarbox._runtime.spark.worker.task_host",
)


def import_all() -> None:
    for name in _NEEDED:
        import_module(name)
    # Arrow sets up its allocator and its functions at their first use (5 MB).
    import pyarrow as pa

    pa.array([1, 2]).take(pa.array([0]))


def import_and_freeze() -> None:
    """Import the modules of homes and workers, and freeze all objects, so that forks share memory."""
    import_all()
    keep_pickled_values()
    packages_here()
    # Each process would reread PySpark's archives when Spark adds files (0.2 s, 20 MB).
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]
    gc.collect()
    gc.freeze()  # a collection would copy inherited memory
    _separate_forks()


def _separate_forks() -> None:
    importer = os.getpid()

    def begin() -> None:
        if os.getppid() == importer:
            # Python reseeds its own generator after a fork, numpy does not.
            numpy_random = sys.modules.get("numpy.random")
            if numpy_random is not None:
                numpy_random.seed()
            forget_inherited_exit_handlers()

    os.register_at_fork(after_in_child=begin)
