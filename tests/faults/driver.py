"""A driver process of its own, for tests that kill it: ``python -m tests.faults.driver HOME EPOCHS``.

Runs the fault tests' program on HOME's input and checkpoint through its first EPOCHS epochs, then writes HOME/done.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pillarbox._runtime.spark.settings.session import local_session
from tests.faults.programs.job import Faults, FileSink, build, read_fixed_epochs


def main(home: Path, epochs: int) -> None:
    spark = local_session(
        2,
        app_name="pillarbox-fault-driver",
        spark__driver__memory="1g",
        spark__log__level="ERROR",
        spark__python__daemon__module="tests.support.daemon",
        spark__local__dir=str(home / "local"),
        spark__sql__warehouse__dir=str(home / "warehouse"),
    )
    df = build(read_fixed_epochs(spark, home / "in.parquet"), Faults(home / "faults"), max_parallelism=2)
    sink = FileSink(home / "out")
    query = (
        df.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    while len(sink.batches()) < epochs:
        query.awaitTermination(1)  # raises what the query died of
    query.stop()
    (home / "done").write_text(str(os.getpid()))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
