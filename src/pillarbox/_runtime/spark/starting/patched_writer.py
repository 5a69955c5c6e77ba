"""Patches ``start``, ``toTable`` and ``foreachBatch`` of PySpark's ``DataStreamWriter``.

A query takes its state store, state partitions and settings from the session. With Spark's own ``start``, a keyed
program would fail with ``STORE_BACKEND_NOT_SUPPORTED_FOR_TWS`` and leave a broken checkpoint. Queries without a program
start as before, but one at a time. The patched ``foreachBatch`` only remembers its function, which writers do not
expose.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pillarbox._runtime.spark.session.compatibility import check_compatibility
from pillarbox._runtime.spark.session.session import session_of
from pillarbox._runtime.spark.session.writer import WriterStart, note_batch_function
from pillarbox._runtime.spark.starting.start import start_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_lock = threading.Lock()  # guards the patching and `_checked`

_PATCHED = "_pillarbox_patched"
# Writer classes whose Spark has passed the check.
_checked: set[type[Any]] = set()


def patch_writer(spark: SparkSession) -> None:
    writer = session_of(spark).writer_class()
    with _lock:
        if writer not in _checked:
            check_compatibility(spark)
            _checked.add(writer)
        for name, patched in (("start", _start), ("toTable", _start), ("foreachBatch", _for_each_batch)):
            method = getattr(writer, name)
            if not hasattr(method, _PATCHED):
                wrapper = functools.wraps(method)(patched(method))
                setattr(wrapper, _PATCHED, True)
                setattr(writer, name, wrapper)


def _start(method: Callable[..., Any]) -> Callable[..., Any]:
    def start(writer: Any, *args: Any, **options: Any) -> Any:
        how = WriterStart(writer, method.__name__, *args, **options)
        return start_query(how, lambda: method(writer, *args, **options))

    return start


def _for_each_batch(method: Callable[..., Any]) -> Callable[..., Any]:
    def for_each_batch(writer: Any, func: Callable[..., Any]) -> Any:
        note_batch_function(writer, func)
        return method(writer, func)

    return for_each_batch
