"""Flink's task model for PySpark: keyed state, timers and async I/O that need nothing but Spark.

A program transforms streams of records with functions that have keyed state and timers. It reads streaming or batch
Spark DataFrames, and returns a DataFrame::

    from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

    class Count(KeyedProcessFunction):
        def open(self, ctx):
            self.seen = ctx.get_state(ValueStateDescriptor("seen"))

        def process_element(self, row, ctx):
            seen = (self.seen.value() or 0) + 1
            self.seen.update(seen)
            yield row.card, seen

    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env.from_dataframe(payments).key_by("card").process(Count()).to_dataframe("card STRING, seen LONG")
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pillarbox._api import *  # noqa: F403
    from pillarbox._api import __all__ as __all__
else:
    # Lazy, so that a program with only the mailbox loads neither Arrow nor Spark.
    def __getattr__(name: str) -> Any:
        if name.startswith("_") and name != "__all__":  # such as a submodule before its import
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            api = import_module("pillarbox._api")
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in ("pyspark", "numpy", "pandas", "pyarrow"):
                raise
            raise ModuleNotFoundError(
                f"pillarbox needs {package}, which is not installed for {sys.executable}: if the platform includes"
                " Spark, run this with the platform's Python. Otherwise, run pip install 'pillarbox[spark]'",
                name=error.name,
            ) from None
        # Names that were set earlier (by a test, for example) keep their values.
        globals().update({public: getattr(api, public) for public in api.__all__} | globals(), __all__=api.__all__)
        try:
            return globals()[name]
        except KeyError:
            missing = import_module("pillarbox._datastream.checks.missing")
            error = missing.missing_class(name) or AttributeError(f"module {__name__!r} has no attribute {name!r}")
            raise error from None

    def __dir__() -> list[str]:
        own = {name for name in globals() if name.startswith("__")}
        return sorted(
            {*own, *__getattr__("__all__"), "async_retry_predicates", "daemon", "functions", "mailbox", "testing"}
        )
