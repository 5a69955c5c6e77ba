"""Fills the gaps that a rescaling, a start from a savepoint, or a new sink leaves in a file sink's log.

A file sink lists its files in ``_spark_metadata`` in its folder, with an entry for each micro-batch. Some micro-batches
never reach the sink. Without their entries, Spark can neither read the folder nor compact the log.
"""

from __future__ import annotations

import logging
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pillarbox._errors import CheckpointMismatchError
from pillarbox._runtime.spark.session.java import file_system, path_class, sink_log
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
    from pillarbox._runtime.spark.session.writer import WriterStart

_log = logging.getLogger("pillarbox")

_METADATA = "_spark_metadata"
_VERSION = 1  # version of the log's format
_FAR = 20  # maximum number of successive rescalings


def complete_sink_log(start: WriterStart, checkpoint: Checkpoint) -> None:
    folder = start.files if checkpoint.last_committed >= 0 else None
    if folder is None:
        return
    if session_of(start.spark).has_jvm:
        SinkLog(start.spark, folder).fill(checkpoint.last_committed)
    elif missing := _batches_without_sink(checkpoint):
        raise CheckpointMismatchError(
            f"checkpoint {checkpoint}: epoch {missing[0]} wrote no output, and the log of the file sink"
            f" {folder} may lack its entry: run the next epoch in a classic session, which adds it, and then"
            " continue under Spark Connect"
        )


class SinkLog:
    """A file sink's log, accessed through Spark's own class. Needs a classic session."""

    def __init__(self, spark: Any, folder: str) -> None:
        self._session = spark
        self._folder = folder
        self._place = path_class(spark)(folder, _METADATA)
        self._files = file_system(spark, self._place)

    @property
    def exists(self) -> bool:
        return bool(self._files.exists(self._place))

    @property
    def last(self) -> int | None:
        # Checked first, because Spark's class would create the folder.
        last = self._opened()[0].getLatestBatchId() if self.exists else None
        return int(last.get()) if last is not None and last.isDefined() else None

    def fill(self, until: int) -> None:
        last = self.last
        if last is None:
            # A new log starts with a compacted entry for all previous batches.
            interval = self._opened()[0].defaultCompactInterval()
            last = (until + 1) // interval * interval - 1
            if last >= 0:
                file = self._files.create(path_class(self._session)(self._place, f"{last}.compact"))
                file.write(f"v{_VERSION}".encode())
                file.close()
        for batch in range(last + 1, until + 1):
            self.add_empty(batch)
            _log.info("file sink %s: its log now has an entry for epoch %d, which wrote no files", self._folder, batch)

    def add_empty(self, batch: int) -> None:
        log, nothing = self._opened()
        log.add(batch, nothing)

    def _opened(self) -> tuple[Any, Any]:
        return sink_log(self._session, self._place.toString(), _VERSION)


def _batches_without_sink(checkpoint: Checkpoint) -> list[int]:
    last = checkpoint.last_committed
    partitions = checkpoint.partitions(range(max(last - _FAR, 0), last + 1))

    def is_silent(batch: int) -> bool:
        if batch == 0:
            return checkpoint.savepoint is not None
        return batch in partitions and partitions.get(batch - 1) not in (None, partitions[batch])

    return [*takewhile(is_silent, range(last, -1, -1))][::-1]
