"""Two ways to run the program: as a streaming query and as a batch query."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

import pillarbox
from examples.enrichment.job import enrich
from examples.flights.data import FILES_PER_SLICE, SCHEMA, write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def start_streaming(spark: SparkSession, table: pa.Table, folder: Path, service: str, batches: int) -> StreamingQuery:
    """Write the flights into ``folder``, and start the query on them. Results are Parquet files in ``folder/enriched``.

    Files of an earlier run are removed.
    """
    write(table, folder, batches)
    return pillarbox.start(writer(spark, folder, service))


def writer(spark: SparkSession, folder: Path, service: str) -> DataStreamWriter:
    """Return the writer of the query on the flights in ``folder``."""
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_SLICE)
    return (
        enrich(flights_of(source.parquet(str(folder / "flights"))), service)
        .writeStream.format("parquet")
        .option("path", str(folder / "enriched"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )


def run_batch(spark: SparkSession, table: pa.Table, folder: Path, service: str) -> dict[str, pa.Table]:
    """Run the program as a batch query. Returns the results of each file."""
    write(table, folder, 1)
    source = spark.read.schema(SCHEMA).parquet(str(folder / "flights"))
    return by_file(enrich(flights_of(source), service))


def write(table: pa.Table, folder: Path, batches: int) -> None:
    """Write the files of flights, and delete files of an earlier run."""
    for name in ("flights", "enriched", "checkpoint"):
        shutil.rmtree(folder / name, ignore_errors=True)
    write_files(table, folder / "flights", batches)


def flights_of(source: DataFrame) -> DataFrame:
    """Return the flights with the names of their files, without heartbeats, because the program uses no event time."""
    columns = ("departed", "carrier", "flight", "tail", "origin", "dest", "dep_delay")
    return source.where("kind = 'flight'").select(*columns, F.col("_metadata.file_name").alias("file"))


def read_enriched(spark: SparkSession, folder: Path) -> dict[str, pa.Table]:
    """Return the rows that a streaming query has written, for each file of flights."""
    return by_file(spark.read.parquet(str(folder / "enriched")))


def by_file(enriched: DataFrame) -> dict[str, pa.Table]:
    """Return the result rows of each file of flights, in output order."""
    table = enriched.toArrow()
    names = table["file"].unique().to_pylist()
    return {name: table.filter(pc.field("file") == name).drop(["file"]) for name in sorted(names)}
