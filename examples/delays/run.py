"""Two ways to run the program: as a streaming query, and in this process without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pillarbox
from examples.delays.data import SCHEMAS, Tables, slices, write_files
from examples.delays.job import Hour, build
from examples.delays.oracle import Row
from pillarbox import Program, StreamExecutionEnvironment, Types
from pillarbox.testing import ProgramTestHarness, row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def start_streaming(
    spark: SparkSession, streams: Tables, home: Path, batches: int, parallelism: int
) -> tuple[StreamingQuery, Program]:
    """Write the streams into ``home``, and start the query on them. Results are Parquet files in ``home/hours``.

    Files of an earlier run are removed.
    """
    from pyspark.sql import functions as F

    for name in (*SCHEMAS, "hours", "checkpoint"):
        shutil.rmtree(home / name, ignore_errors=True)
    write_files(streams, home, batches)
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(parallelism)
    sources = {
        name: env.from_dataframe(
            spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(home / name)), name=name
        )
        for name, schema in SCHEMAS.items()
    }
    stream = build(**sources)
    plan = env.get_execution_graph()
    hours = stream.to_dataframe().observe("hours", F.count("*").alias("hours"), F.count_if("alarm").alias("alarms"))
    writer = (
        hours.writeStream.format("parquet")
        .option("path", str(home / "hours"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
    )
    return pillarbox.start(writer), plan


def read_hours(spark: SparkSession, home: Path) -> list[Row]:
    """Return the hours that a streaming query has written, in order."""
    # By way of Arrow, instants keep their time zone; Spark's rows would have them in the driver's.
    written = spark.read.parquet(str(home / "hours")).select(*Hour._fields).orderBy("origin", "ends")
    return [tuple(row.values()) for row in written.toArrow().to_pylist()]


TYPES: dict[str, Any] = {
    "STRING": Types.STRING(), "TIMESTAMP": Types.SQL_TIMESTAMP(), "INT": Types.INT(), "DOUBLE": Types.DOUBLE()
}  # fmt: skip


def run_local(streams: Tables, batches: int, parallelism: int) -> list[Row]:
    """Run the program in this process without Spark. Every third epoch fails once, and is repeated."""

    def program(env: Any, flights: Any, weather: Any, limits: Any) -> Any:
        sources = {"flights": flights, "weather": weather, "limits": limits}
        return build(**{name: source.map(lambda row: row, _type(name)) for name, source in sources.items()})

    with ProgramTestHarness(program, parallelism=parallelism) as harness:
        for number, part in enumerate(slices(streams, batches)):
            for name, table in part.items():
                harness.push_all(name, [row(**values) for values in table.to_pylist()])
            if number % 3 == 2:
                harness.fail_epoch()
            harness.run_epoch()
        return sorted(map(tuple, harness.get_output()))


def _type(name: str) -> Any:
    columns, kinds = zip(*(field.split() for field in SCHEMAS[name].split(", ")))
    return Types.ROW_NAMED(list(columns), [TYPES[kind] for kind in kinds])
