"""Collects versions and settings of this process and of a worker, for the doctor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from pillarbox._runtime.spark.session.configuration import configuration_of
from pillarbox._runtime.spark.session.packages import packages_here
from pillarbox_tools.doctor.finding import machine_snapshot
from pillarbox_tools.model.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def snapshot_of_session(spark: SparkSession) -> Snapshot:
    settings, versions = configuration_of(spark)
    return machine_snapshot(versions, settings, [worker_versions(spark)])


def worker_versions(spark: SparkSession) -> dict[str, str]:
    rows = spark.range(1).repartition(1).mapInArrow(_versions, "versions STRING").collect()
    versions: dict[str, str] = json.loads(rows[0][0])
    return versions


def _versions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"versions": [json.dumps(dict(packages_here()))]})
