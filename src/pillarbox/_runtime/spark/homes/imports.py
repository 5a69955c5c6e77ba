"""Modules that homes and workers need, imported before the fork, and what each forked process does not share."""

from __future__ import annotations

import gc
import os
import sys
import zipimport
from importlib import import_module

from pillarbox._runtime.spark.homes.broadcasts import keep_pickled_values
from pillarbox._runtime.spark.session.packages import packages_here
from pillarbox._runtime.spark.tasks.leaving import forget_inherited_exit_handlers

# Processes share the modules that are imported before a fork; each further import costs each process memory and time.
_NEEDED = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "pyspark.worker",
    "pyspark.sql.streaming.stateful_processor_util",
    "pyspark.sql.streaming.proto.StateMessage_pb2",
    "pillarbox._api",  # functions of the user's refer to it
    "pillarbox.functions",
    "pillarbox.async_retry_predicates",
    "pillarbox._runtime.spark.homes.home",
    "pillarbox._runtime.spark.worker.source_host",
    "pillarbox._runtime.spark.worker.task_host",
)


def import_all() -> None:
    """Import the modules that homes and workers need."""
    for name in _NEEDED:
        import_module(name)


def import_and_freeze() -> None:
    """Import the modules that homes and workers need, so that processes forked from this one share them."""
    import_all()
    keep_pickled_values()
    packages_here()  # reads the metadata of packages
    # Else each process reads the directories of PySpark's archives again when Spark tells it of new files: a fifth of a
    # second, and 20 MB. (Python finds them again, already read, when it next imports something.)
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]
    gc.collect()
    gc.freeze()  # no collection is to touch what was here before the fork
    _separate_forks()


def _separate_forks() -> None:
    """Give the children of this process random numbers and exit handlers of their own.

    Their children, which a user's functions fork, inherit both, as in any Python program.
    """
    importer = os.getpid()

    def begin() -> None:
        if os.getppid() == importer:
            # Python seeds its own generator again after a fork, numpy does not.
            numpy_random = sys.modules.get("numpy.random")
            if numpy_random is not None:
                numpy_random.seed()
            forget_inherited_exit_handlers()

    os.register_at_fork(after_in_child=begin)
