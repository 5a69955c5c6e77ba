"""A copy of a checkpoint as it was before an epoch: the query that starts on it runs that epoch again.

It has the offsets up to the epoch, the commits up to the epoch before, the notes of the programs, the sources' own
logs, and the state files that the epoch before may need. Its query has an id of its own.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pillarbox._errors import CheckpointMismatchError, ConfigurationError
from pillarbox._runtime.spark.facts import file_system, java_session, jvm, path_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Files of the state store begin with their version.
_VERSION = re.compile(r"(\d+)(?=[._])")


@contextmanager
def copied_checkpoint(spark: SparkSession, checkpoint: str, epoch: int, limit: int) -> Iterator[str]:
    """Have a copy meanwhile, in a folder next to the checkpoint; it is removed afterwards.

    Args:
        limit: how large the state files may be together (bytes).

    Raises:
        CheckpointMismatchError: the epoch's offsets no longer exist.
        ConfigurationError: the state is larger than the limit.
    """
    copy = _Copy(spark, checkpoint, f"{checkpoint.rstrip('/')}-recording-{uuid.uuid4().hex[:8]}")
    try:
        copy.make(epoch, limit)
        yield copy.target
    finally:
        copy.remove()


class _Copy:
    def __init__(self, spark: SparkSession, checkpoint: str, target: str) -> None:
        self._spark: Any = spark
        self._checkpoint = checkpoint.rstrip("/")
        self.target = target
        self._path = path_class(spark)
        self._files = file_system(spark, self._path(checkpoint))
        self._conf = java_session(spark).sessionState().newHadoopConf()
        self._util = jvm(spark).org.apache.hadoop.fs.FileUtil

    def make(self, epoch: int, limit: int) -> None:
        if not self._files.exists(self._path(f"{self._checkpoint}/offsets/{epoch}")):
            raise CheckpointMismatchError(
                f"checkpoint {self._checkpoint}: the offsets of epoch {epoch} do not exist: the epoch was never begun,"
                " or Spark no longer keeps it (spark.sql.streaming.minBatchesToRetain)"
            )
        state = [(path, size) for path, size in self._listed("state") if self._is_needed(path, epoch)]
        size = sum(each for _, each in state)
        if size > limit:
            raise ConfigurationError(
                f"checkpoint {self._checkpoint}: its state files have {size:,} bytes, and a recording copies at most"
                f" {limit:,}: raise the limit, as in record(..., limit={size}) or 'pillarbox record --limit {size}'"
            )
        for path, _ in state:
            self._copy(path)
        for path, _ in self._listed("sources"):
            self._copy(path)
        for folder, last in (("offsets", epoch), ("commits", epoch - 1)):
            for path, _ in self._listed(folder):
                name = path.rpartition("/")[2]
                if not name.isdigit() or int(name) <= last:
                    self._copy(path)
        for path, _ in self._listed("pillarbox", recursive=False):
            self._copy(path)
        self._write("metadata", json.dumps({"id": str(uuid.uuid4())}))

    def _is_needed(self, path: str, epoch: int) -> bool:
        """Return whether a state file may be needed: it is of no version, or of one up to the epoch's beginning.

        Epoch *n* begins with version *n* of the state, which epoch *n - 1* has written.
        """
        found = _VERSION.match(path.rpartition("/")[2])
        return found is None or int(found[1]) <= epoch

    def _listed(self, folder: str, *, recursive: bool = True) -> list[tuple[str, int]]:
        root = self._path(f"{self._checkpoint}/{folder}")
        if not self._files.exists(root):
            return []
        every = self._files.listFiles(root, recursive)
        found: list[tuple[str, int]] = []
        prefix = str(self._files.makeQualified(self._path(self._checkpoint)).toUri().getPath()).rstrip("/")
        while every.hasNext():
            each = every.next()
            path = str(each.getPath().toUri().getPath())
            if not path.rpartition("/")[2].endswith(".crc"):
                found.append((path.removeprefix(f"{prefix}/"), int(each.getLen())))
        return found

    def _copy(self, path: str) -> None:
        here, there = self._path(f"{self._checkpoint}/{path}"), self._path(f"{self.target}/{path}")
        self._util.copy(self._files, here, self._files, there, False, self._conf)

    def _write(self, name: str, text: str) -> None:
        stream = self._files.create(self._path(f"{self.target}/{name}"), True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def remove(self) -> None:
        self._files.delete(self._path(self.target), True)
