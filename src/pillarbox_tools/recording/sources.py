"""Checks that sources still have an epoch's input, because Spark silently skips missing files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pillarbox._errors import CheckpointMismatchError, ConfigurationError
from pillarbox._graph.description import json_object
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.session.java import file_system, java_class, path_class, plan_steps
from pillarbox._runtime.spark.session.session import dataframe_of, session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMPACT = ".compact"


def check_sources(spark: SparkSession, writer: Any, checkpoint: str, copy: str, epoch: int) -> None:
    """Raise if an epoch's input cannot be read again. ``copy`` is a copy of the checkpoint."""
    if any("TextSocketSource" in step.simpleString(1) for step in plan_steps(dataframe_of(writer))):
        raise ConfigurationError(
            "the query reads a socket, which cannot repeat its rows, so its epochs cannot be recorded: read its rows"
            " from Kafka or files instead"
        )
    systems: dict[tuple[str, str], Any] = {}
    for path in _files_of(spark, copy, epoch):
        hadoop_path = path_class(spark)(java_class(spark, "java.net.URI")(path))
        where = urlsplit(path)[:2]
        if where not in systems:
            systems[where] = file_system(spark, hadoop_path)
        if not systems[where].exists(hadoop_path):
            raise CheckpointMismatchError(
                f"checkpoint {checkpoint}: epoch {epoch} read {path}, which no longer exists: restore the file, or"
                " record a newer epoch"
            )


def _files_of(spark: SparkSession, checkpoint: str, epoch: int) -> Iterator[str]:
    offsets = Checkpoint(spark, checkpoint).offsets([epoch - 1, epoch])
    before = offsets[epoch - 1].files
    for source, last in offsets[epoch].files.items():
        folder = f"{checkpoint.rstrip('/')}/sources/{source}"
        names = session_of(spark).folder(folder).names()
        for number in range(before.get(source, -1) + 1, last + 1):
            yield from _entries(spark, folder, names, number)


def _entries(spark: SparkSession, folder: str, names: list[str], number: int) -> Iterator[str]:
    compact = sorted(int(name.removesuffix(_COMPACT)) for name in names if name.endswith(_COMPACT))
    name = str(number)
    if name not in names:
        name = next((f"{batch}{_COMPACT}" for batch in compact if batch >= number), name)
    for _, line in session_of(spark).folder(folder).lines([name]):
        entry = json_object(line)
        if entry.get("batchId") == number and "path" in entry:
            yield str(entry["path"])
