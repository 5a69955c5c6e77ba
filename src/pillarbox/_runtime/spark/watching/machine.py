"""The facts of a machine for the doctor: of this process, and of a worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from pillarbox._doctor.facts import Facts
from pillarbox._model.snapshot import Snapshot
from pillarbox._runtime.spark.watching.surroundings import packages_here, settings_of, versions_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def facts_of_session(spark: SparkSession) -> Facts:
    """Return the facts of a session: of its driver, and of one of its workers, which a job asks."""
    return Facts(versions_of(spark), worker_versions(spark), settings_of(spark))


def facts_of_query(spark: SparkSession, snapshot: Snapshot) -> Facts:
    """Return the facts of a query, with those of a worker of a session."""
    return replace(Facts.of(snapshot), worker_versions=worker_versions(spark))


def worker_versions(spark: SparkSession) -> dict[str, str]:
    """Return the versions that a worker has, which a job of one task asks."""
    rows = spark.range(1).repartition(1).mapInArrow(_versions, "versions STRING").collect()
    found: dict[str, str] = json.loads(rows[0][0])
    return found


def _versions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"versions": [json.dumps(packages_here())]})
