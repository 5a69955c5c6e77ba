"""The flights demo's query on a cluster: ``spark-submit flights_driver.py FOLDER BATCHES``.

``python flights_driver.py FOLDER BATCHES REMOTE`` runs it as a Spark Connect client. The input is FOLDER/table.parquet;
the results are pickled to FOLDER/found.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from examples.flights.run import read_events, start_streaming


def main(folder: Path, batches: int, remote: str | None = None) -> None:
    builder = SparkSession.builder if remote is None else SparkSession.builder.remote(remote)
    spark = builder.getOrCreate()
    table = pq.read_table(folder / "table.parquet")
    query, _ = start_streaming(spark, table, folder, batches, parallelism=2)
    query.awaitTermination()
    result = read_events(spark, folder)
    spark.stop()
    (folder / "found").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
