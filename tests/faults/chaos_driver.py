"""A driver process for ``make chaos``: ``python -m tests.faults.chaos_driver HOME PLACE``.

Runs the programs that HOME/shape.json says on HOME's input, with checkpoints and output in PLACE, to the end of the
input; then writes PLACE/done.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from pillarbox.runtime.spark.session import local_session
from tests.faults import async_job, job
from tests.faults.job import Fault, Faults, FileSink, read_fixed_epochs


def main(home: Path, place: Path) -> None:
    shape: dict[str, Any] = json.loads((home / "shape.json").read_text())
    spark = local_session(
        shape["cores"],
        app_name="pillarbox-chaos-driver",
        spark__driver__memory="1g",
        spark__log__level="ERROR",
        spark__local__dir=str(place / "local"),
        spark__sql__warehouse__dir=str(place / "warehouse"),
    )
    planned = [Fault(fault["place"], _hashable(fault["at"]), fault["action"]) for fault in shape["faults"]]
    faults = Faults(home / "faults", planned)

    def disk_is_full(df: DataFrame, batch: int) -> None:
        for wanted in home.glob("sink is full *"):
            wanted.rename(home / f"done {wanted.name}")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"batch {batch}")

    sink = FileSink(place / "out", disk_is_full)
    df = job.build(read_fixed_epochs(spark, home / "in.parquet"), faults, parallelism=shape["parallelism"])
    queries = [_start(df, sink, place / "checkpoint")]
    squares = FileSink(place / "squares")
    if shape["mode"]:
        events = read_fixed_epochs(spark, home / "in.parquet")
        asked = async_job.build(events, shape["service"], shape["mode"])
        queries.append(_start(asked, squares, place / "squares checkpoint"))

    def is_done() -> bool:
        answered = sum(map(len, async_job.batches_of(squares).values())) if shape["mode"] else shape["records"]
        return bool(len(sink.batches()) >= shape["epochs"] and answered >= shape["records"])

    while not is_done():
        for query in queries:
            query.awaitTermination(1)  # raises what the query died of
    for query in queries:
        query.stop()
    (place / "done").write_text(str(os.getpid()))
    spark.stop()


def _start(df: DataFrame, sink: FileSink, checkpoint: Path) -> Any:
    writer = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="0 seconds").start()


def _hashable(at: Any) -> Any:
    return tuple(at) if isinstance(at, list) else at


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
