"""The ``StatefulProcessor`` that runs tasks. It loads without pillarbox.

When a query starts, Spark requests the declared states in a Python process without the application's files
(``--py-files``). So this class is pickled by value, and unpickles its ``TaskHost`` only in a worker that has rows.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from pillarbox._runtime.spark.worker.worker_sockets import acknowledge_at_once, wait_without_timeout

if TYPE_CHECKING:
    from pillarbox._operators.frame.captured import CapturedBroadcasts

# Not a string, which workers would send to the JVM for parsing in each epoch.
_NUMBER = StructType([StructField("chunk", LongType())])
_CHUNK = StructType([StructField("payload", BinaryType())])


class Processor(StatefulProcessor):
    """Declares the state, and passes each call to a ``TaskHost``."""

    def __init__(self, host: Any, broadcasts: Sequence[CapturedBroadcasts] = ()) -> None:
        self._pickled = pickle.dumps(host)
        self._broadcasts = broadcasts

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle, and acknowledge TCP data before PySpark waits for rows."""
        self.__dict__.update(state)
        acknowledge_at_once()

    def init(self, handle: Any) -> None:
        self._handle = handle
        wait_without_timeout(handle)
        self._chunks = handle.getMapState("log", _NUMBER, _CHUNK)
        self._host: Any = None

    def _loaded(self) -> Any:
        if self._host is None:
            try:
                self._host = pickle.loads(self._pickled)
            except ImportError as error:
                raise ImportError(
                    f"{error}: install pillarbox for Spark's Python workers, or ship it with --py-files or, in a"
                    " classic session, spark.addArtifacts(..., pyfile=True)"
                ) from None
            self._host.open(self._handle, self._chunks)
        return self._host

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        return self._loaded().run(int(key[0]), rows, *_times(timerValues))  # type: ignore[no-any-return]

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self._loaded().take_state(int(key[0]), initialState, *_times(timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        return self._loaded().run_on_timer(int(key[0]), *_times(timerValues))  # type: ignore[no-any-return]

    def close(self) -> None:
        if self._host is not None:
            self._host.close()


def _times(timerValues: Any) -> tuple[int, int]:
    return timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
