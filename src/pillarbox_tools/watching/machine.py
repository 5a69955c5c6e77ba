"""The facts of a machine for the doctor: of this process, and of a worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from pillarbox._runtime.spark.session.configuration import configuration_of
from pillarbox._runtime.spark.session.packages import packages_here
from pillarbox_tools.doctor.facts import Facts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def facts_of_session(spark: SparkSession) -> Facts:
    """Return the facts of a session: of its driver, and of one of its workers, which a job asks."""
    settings, versions = configuration_of(spark)
    return Facts(versions, [worker_versions(spark)], settings)


def worker_versions(spark: SparkSession) -> dict[str, str]:
    """Return the versions that a worker has, which a job of one task asks."""
    rows = spark.range(1).repartition(1).mapInArrow(_versions, "versions STRING").collect()
    found: dict[str, str] = json.loads(rows[0][0])
    return found


def _versions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"versions": [json.dumps(dict(packages_here()))]})
