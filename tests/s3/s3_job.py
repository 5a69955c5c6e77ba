"""The flights demo's query between folders of a bucket: ``python -m tests.s3.s3_job HOME ENDPOINT FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyspark

import pillarbox
from examples.flights.data import FILES_PER_SLICE, SCHEMA
from examples.flights.job import Event, build
from pillarbox import StreamExecutionEnvironment
from tests.s3.gateway import BUCKET, KEYS
from tests.support.sessions import session_with_package

__all__ = ["MAX_PARALLELISM", "session", "url", "writer"]

# hadoop-aws must have Spark's Hadoop version.
_HADOOP = next((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar"))
PACKAGE = f"org.apache.hadoop:hadoop-aws:{_HADOOP.stem.removeprefix('hadoop-client-api-')}"
MAX_PARALLELISM = 6


def session(home: Path, endpoint: str) -> Any:
    return session_with_package(
        home,
        "s3",
        PACKAGE,
        spark__hadoop__fs__s3a__endpoint=endpoint,
        spark__hadoop__fs__s3a__endpoint__region="us-east-1",
        spark__hadoop__fs__s3a__path__style__access="true",
        spark__hadoop__fs__s3a__access__key=KEYS[0],
        spark__hadoop__fs__s3a__secret__key=KEYS[1],
    )


def url(path: str) -> str:
    return f"s3a://{BUCKET}/{path}"


def writer(spark: Any, folder: str, parallelism: int, name: str = "first", savepoint: str | None = None) -> Any:
    """Return the query's writer.

    Args:
        folder: a folder in the bucket. Its subfolder ``flights`` contains the source's files.
        name: the name of the checkpoint's and events' folders.
    """
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_SLICE)
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env.set_parallelism(parallelism).set_max_parallelism(MAX_PARALLELISM)
    if savepoint is not None:
        env.from_savepoint(url(f"{folder}/{savepoint}"))
    events = build(env.from_dataframe(source.parquet(url(f"{folder}/flights")), name="flights"))
    return (
        events.to_dataframe(Event)
        .writeStream.format("parquet")
        .option("path", url(f"{folder}/{name}-events"))
        .option("checkpointLocation", url(f"{folder}/{name}"))
        .trigger(availableNow=True)
    )


def main(home: Path, endpoint: str, folder: str) -> None:
    pillarbox.start(writer(session(home, endpoint), folder, parallelism=2)).awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
