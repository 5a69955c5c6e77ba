"""Copies one epoch of a running query's checkpoint, because Spark may remove the epoch during a long read.

The copy has a new query id.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pillarbox._errors import CheckpointMismatchError, ConfigurationError, PillarboxError
from pillarbox._runtime.spark.session.folders import unless_missing
from pillarbox._runtime.spark.session.java import file_system, java_session, jvm, path_array, path_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Names of state files (snapshots or changes) begin with a version.
_VERSION = re.compile(r"(\d+)(?:_[\w-]+)?\.(zip|snapshot|changelog|delta)$")
_SNAPSHOTS = ("zip", "snapshot")
_GONE = re.compile(r"does not exist|No such file|FileNotFound")
_REMOVALS = 5


class CheckpointCopyError(CheckpointMismatchError):
    """Spark has removed files of an epoch, or is about to do so."""


class CheckpointCopy:
    """A copy, in a folder next to the checkpoint."""

    def __init__(
        self, spark: SparkSession, checkpoint: str, epoch: int, *, before: bool = False, is_committed: bool = True
    ) -> None:
        self._checkpoint = checkpoint.rstrip("/")
        self._epoch = epoch
        # Epoch n reads version n of the state, and writes version n + 1.
        self._is_committed = is_committed
        self._first, self._last = epoch if before else epoch + 1, epoch + 1 if is_committed else epoch
        self.path: str = f"{self._checkpoint}-copy-{uuid.uuid4().hex[:8]}"
        self._path = path_class(spark)
        self._files = file_system(spark, self._path(checkpoint))
        local = [self._files.makeQualified(self._path(path)).toUri() for path in (self._checkpoint, self.path)]
        # Local files are hard-linked, which is faster than copying through Java.
        is_local = str(local[0].getScheme()) == "file" and os.path.isdir(str(local[0].getPath()))
        self._local = [str(uri.getPath()) for uri in local] if is_local else None
        self._conf = java_session(spark).sessionState().newHadoopConf()
        self._util = jvm(spark).org.apache.hadoop.fs.FileUtil
        self._spark = spark

    def make(self, limit: int | None = None) -> None:
        """Create the copy. ``limit`` is the maximum size of all state files in bytes.

        Raises:
            CheckpointCopyError: Spark has removed files of the epoch.
        """
        try:
            # Copy logs first, because Spark removes them first.
            self._copy_logs()
            state = self._state()
            size = sum(state.values())
            if limit is not None and size > limit:
                raise ConfigurationError(
                    f"checkpoint {self._checkpoint}: its state files have {size:,} bytes, but a recording copies at"
                    f" most {limit:,}: pass limit={size} to record(), or --limit {size} to 'pillarbox record'"
                )
            self._copy(state)
            self._copy(self._listed("sources"))
            self._copy(self._listed("pillarbox", recursive=False))
            self._write("metadata", json.dumps({"id": str(uuid.uuid4())}))
        except PillarboxError:
            raise
        except Exception as error:
            text = str(getattr(error, "java_exception", error))
            if _GONE.search(text):
                raise removed(self._checkpoint, self._epoch) from None
            raise ConfigurationError(
                f"checkpoint {self._checkpoint} cannot be copied to {self.path}: {text.splitlines()[0]}"
            ) from None

    def _copy_logs(self) -> None:
        last = self._epoch if self._is_committed else self._epoch - 1
        needed = [f"offsets/{number}" for number in (self._epoch - 1, self._epoch) if number >= 0]
        needed += [f"commits/{number}" for number in (self._epoch - 1, self._epoch) if 0 <= number <= last]
        self._copy(needed)

    def _state(self) -> dict[str, int]:
        stores: defaultdict[str, list[tuple[int, bool, str]]] = defaultdict(list)
        listed = self._listed("state")
        for path in listed:
            folder, _, name = path.rpartition("/")
            match = _VERSION.match(name)
            if match is not None:
                stores[folder].append((int(match[1]), match[2] in _SNAPSHOTS, path))
        unneeded: set[str] = set()
        for files in stores.values():
            snapshots = [version for version, is_snapshot, _ in files if is_snapshot]
            begin = max((version for version in snapshots if version <= self._first), default=0)
            versions = {version for version, *_ in files}
            if not versions.issuperset(range(begin + 1, self._last + 1)):
                raise removed(self._checkpoint, self._epoch)
            unneeded.update(path for version, _, path in files if not begin <= version <= self._last)
        return {path: size for path, size in listed.items() if path not in unneeded}

    def _listed(self, folder: str, *, recursive: bool = True) -> dict[str, int]:
        sizes: dict[str, int] = {}
        pending = [folder]
        while pending:
            parent = pending.pop()
            if self._local is not None:
                folders, files = _local_files(f"{self._local[0]}/{parent}")
                sizes.update({f"{parent}/{name}": size for name, size in files.items() if not name.startswith(".")})
                pending += [f"{parent}/{name}" for name in folders if recursive]
                continue
            root = self._path(f"{self._checkpoint}/{parent}")
            statuses: Sequence[Any] = unless_missing(lambda root=root: self._files.listStatus(root), ())  # type: ignore[misc]
            for status in statuses:
                name = str(status.getPath().getName())
                if not status.isDirectory():
                    # Hidden files are checksums, or are still being written.
                    if not name.startswith("."):
                        sizes[f"{parent}/{name}"] = int(status.getLen())
                elif recursive:
                    pending.append(f"{parent}/{name}")
        return sizes

    def _copy(self, paths: Iterable[str]) -> None:
        folders: defaultdict[str, list[str]] = defaultdict(list)
        for path in paths:
            folders[path.rpartition("/")[0]].append(path)
        for folder, names in folders.items():
            if self._local is not None:
                os.makedirs(f"{self._local[1]}/{folder}", exist_ok=True)
                for name in names:
                    _link(*(f"{root}/{name}" for root in self._local))
                continue
            target = self._path(f"{self.path}/{folder}")
            self._files.mkdirs(target)
            files = path_array(self._spark, [f"{self._checkpoint}/{name}" for name in names])
            self._util.copy(self._files, files, self._files, target, False, True, self._conf)

    def _write(self, name: str, text: str) -> None:
        stream = self._files.create(self._path(f"{self.path}/{name}"), True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def rewind(self) -> None:
        """Remove the epoch's commit and state, so that a query started on the copy repeats the epoch."""
        later = [f"commits/{self._epoch}"]
        for path in self._listed("state"):
            match = _VERSION.match(path.rpartition("/")[2])
            if match is not None and int(match[1]) > self._epoch:
                later.append(path)
        for path in later:
            self._files.delete(self._path(f"{self.path}/{path}"), False)

    def remove(self) -> None:
        for _ in range(_REMOVALS):
            self._files.delete(self._path(self.path), True)
            if not self._files.exists(self._path(self.path)):
                return


def _local_files(folder: str) -> tuple[list[str], dict[str, int]]:
    folders, files = [], {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_dir():
                    folders.append(entry.name)
                else:
                    files[entry.name] = entry.stat().st_size
    return folders, files


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


@contextmanager
def copied_checkpoint(
    spark: SparkSession,
    checkpoint: str,
    epoch: int,
    *,
    before: bool = False,
    is_committed: bool = True,
    limit: int | None = None,
) -> Iterator[CheckpointCopy]:
    copy = CheckpointCopy(spark, checkpoint, epoch, before=before, is_committed=is_committed)
    try:
        copy.make(limit)
        yield copy
    finally:
        copy.remove()


def removed(checkpoint: str, epoch: int) -> CheckpointCopyError:
    return CheckpointCopyError(
        f"checkpoint {checkpoint}: Spark has removed state of epoch {epoch}, because the query is running: choose a"
        " newer epoch, or raise spark.sql.streaming.minBatchesToRetain"
    )
