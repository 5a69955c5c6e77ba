"""Detects damaged and missing checkpoint files, and explains how to recover."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

from pillarbox._errors import CheckpointMismatchError, describe, shorten
from pillarbox._graph.description import json_object
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint

_COPY = (
    "restore it, or the whole checkpoint, from a backup; without a backup, start from a savepoint with"
    " env.from_savepoint() and a new checkpoint directory"
)
_VERSION = re.compile(r"v\d+")


def check_logs(spark: SparkSession, checkpoint: Checkpoint) -> None:
    """Check the files that a starting query reads. Skipped under Spark Connect, where each file takes a job."""
    if not session_of(spark).has_jvm:
        return
    begun, committed = checkpoint.epochs_begun, checkpoint.last_committed
    if not begun and committed < 0:
        return
    files = _Files(spark, str(checkpoint))
    wrong = files.wrong_metadata()
    if wrong is not None:
        raise CheckpointMismatchError(
            f"checkpoint {checkpoint}: the file metadata {wrong}: restore it from a backup, or write"
            f' {{"id":"{uuid.uuid4()}"}} into it (Spark accepts any UUID), and delete .metadata.crc'
        )
    last = max([*begun, committed])
    for epoch in range(max(0, last - 1), last + 1):
        _check_offsets(files, checkpoint, epoch)
    if committed >= 0:
        _check_commit(files, checkpoint, committed)


def check_epoch(spark: SparkSession, checkpoint: Checkpoint, epoch: int, location: str) -> None:
    """Check the files that Spark's state readers read. ``location`` is the checkpoint, or a copy of it."""
    if not session_of(spark).has_jvm:
        return
    # Spark removes the oldest epochs.
    if epoch < min(checkpoint.epochs_begun, default=0):
        return
    files = _Files(spark, location)
    _check_offsets(files, checkpoint, epoch)
    if epoch == checkpoint.last_committed:
        _check_commit(files, checkpoint, epoch)


def _check_offsets(files: _Files, checkpoint: Checkpoint, epoch: int) -> None:
    wrong = "is missing" if epoch not in checkpoint.epochs_begun else files.wrong_entry("offsets", epoch)
    if wrong is not None:
        raise CheckpointMismatchError(f"checkpoint {checkpoint}: the file offsets/{epoch} {wrong}: {_COPY}")


def _check_commit(files: _Files, checkpoint: Checkpoint, epoch: int) -> None:
    wrong = files.wrong_entry("commits", epoch)
    if wrong is not None:
        raise CheckpointMismatchError(
            f"checkpoint {checkpoint}: the file commits/{epoch} {wrong}: restore it from a backup, or delete it, so"
            f" that the next start repeats epoch {epoch}"
        )


class _Files:
    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._folder = folder

    def wrong_metadata(self) -> str | None:
        lines, unread = self._lines("", "metadata")
        # Spark ignores this file's checksum.
        if unread is not None or any("id" in json_object(line) for line in lines):
            return None
        return "is damaged: it has no id" if lines else "is missing or empty"

    def wrong_entry(self, log: str, epoch: int) -> str | None:
        lines, wrong = self._lines(f"/{log}", str(epoch))
        if wrong is not None:
            return wrong
        if not lines:
            return "is empty"
        if not _VERSION.fullmatch(lines[0]):
            return f"is damaged: it begins with {shorten(lines[0])}, not with a version"
        if len(lines) < (3 if log == "offsets" else 2):
            return f"is damaged: it ends after line {len(lines)}"
        # Each source defines the format of its offsets, so only JSON lines are checked.
        cut = [number for number, line in enumerate(lines, 1) if line.startswith("{") and not _is_json(line)]
        return f"is damaged: line {cut[0]} is not JSON" if cut else None

    def _lines(self, folder: str, name: str) -> tuple[list[str], str | None]:
        try:
            return [line for _, line in session_of(self._spark).folder(self._folder + folder).lines([name])], None
        except Exception as error:
            java = getattr(error, "java_exception", None)
            return [], f"cannot be read: {describe(error) if java is None else java.toString().splitlines()[0]}"


def _is_json(line: str) -> bool:
    return line == "{}" or bool(json_object(line))


# The path of a state file, or of an entry in a source's log, in an error of Spark.
_STATE_FILE = re.compile(r"\S*(/state/\d+(?:/[\w.-]+)*)")
_STATE_ERRORS = (
    "CANNOT_LOAD_STATE_STORE",
    "STDS_FAILED_TO_READ_OPERATOR_METADATA",
    "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",
)
_SOURCE_ENTRY = re.compile(r"batch (\d+) doesn't exist")


def damage_in(texts: Iterable[str], checkpoint: str | None) -> str | None:
    """If a damaged checkpoint file made a query fail, return a message about the file, otherwise None."""
    where = "the query's checkpoint" if checkpoint is None else f"checkpoint {checkpoint}"
    for text in texts:
        kind = next((error for error in _STATE_ERRORS if error in text), None)
        if kind is not None:
            match = _STATE_FILE.search(text[text.index(kind) :].split("\n", 1)[0])
            file = f"its file {match[1][1:]}" if match else "a file in its folder state"
            return f"{where}: {file} is damaged or missing: {_COPY}"
        entry = _SOURCE_ENTRY.search(text)
        if entry is not None:
            return f"{where}: a source's file {entry[1]} in its folder sources is missing: {_COPY}"
    return None
