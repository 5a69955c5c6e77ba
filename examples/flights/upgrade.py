"""Stops the flights query, changes it and starts it again, twice, and checks that its results are still right.

python -m examples.flights.upgrade [--batches 12] [--months 12] [--out build/demo-upgrade]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import pillarbox
from examples.comparison import equals_the_oracle
from examples.flights.data import FILES_PER_SLICE, SCHEMA, flights, write_files
from examples.flights.demo import positive, shown
from examples.flights.job import Event, build, instant
from examples.flights.oracle import Outcome, canonical, expected, milestones
from examples.flights.run import collected
from examples.flights.second_version import EVERY, build_second
from pillarbox import StreamExecutionEnvironment, local_session

MAX_PARALLELISM = 8


def main() -> int:
    """Run the demo. The exit code is 0 if the results equal the oracle's."""
    arguments = parse()
    started = time.monotonic()
    table = flights(arguments.months)
    print(f"{table.num_rows:,} flights left New York's airports, or were to. Starting Spark ...", flush=True)
    spark = local_session(2, app_name="flights", spark__log__level="ERROR")
    try:
        outcomes, since = Upgrades(spark, arguments.out.resolve(), table, arguments.batches).run()
    finally:
        spark.stop()
    equal = check(outcomes, table, since)
    print(f"Took {time.monotonic() - started:.0f} s.")
    return 0 if equal else 1


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", type=positive, default=12, help="micro-batches that the year is cut into")
    parser.add_argument("--months", type=int, choices=range(1, 13), default=12, help="months of the year to take")
    parser.add_argument("--out", type=Path, default=Path("build/demo-upgrade"), help="folder for all output")
    return parser.parse_args()


class Upgrades:
    """The upgrades of a query.

    Args:
        out: the folder for all output. Files of an earlier run are removed.
        batches: number of micro-batches of flights.
    """

    def __init__(self, spark: Any, out: Path, table: pa.Table, batches: int) -> None:
        self.spark = spark
        self.out = out
        self.checkpoint = str(out / "checkpoint")
        self.events = out / "events"
        shutil.rmtree(out, ignore_errors=True)
        write_files(table, out / "later", batches)
        (out / "flights").mkdir()
        self.savepoint = out / "savepoint"
        self.max_parallelism = MAX_PARALLELISM
        self.reported: Counter[str] = Counter()

    def run(self) -> tuple[list[Outcome], datetime]:
        """Run and upgrade the query. Returns all events, and the day on which the second version begins to count."""
        slices = len(list((self.out / "later").iterdir())) // FILES_PER_SLICE
        print("\nVersion 1, two tasks at a time:", flush=True)
        last = self.arrive(slices // 2)
        self.go_on(build, parallelism=2)

        self.command("rescale", self.checkpoint, "--parallelism", "4")
        since = datetime(last.year, last.month, last.day, tzinfo=timezone.utc) + timedelta(days=1)
        second = partial(build_second, since=since)
        print(
            f"\nVersion 2 counts the minutes that aircraft hand on, from {since:%d %b} on: a state more. Four tasks at"
            " a time:",
            flush=True,
        )
        self.arrive(slices // 4)
        self.go_on(second, parallelism=4)

        self.command("savepoint", self.checkpoint, str(self.savepoint))
        print("\nFrom the savepoint, on a new checkpoint: three tasks at a time, five at most:", flush=True)
        self.checkpoint, self.events = str(self.out / "checkpoint-2"), self.out / "events-2"
        self.max_parallelism = 5
        self.arrive()
        self.go_on(second, parallelism=3)
        return self.found(), since

    def found(self) -> list[Outcome]:
        """Return all events so far. After the start from a savepoint, the file sink writes to another folder."""
        folders = [folder for folder in (self.out / "events", self.out / "events-2") if folder.exists()]
        return canonical([event for folder in folders for event in collected(self.spark.read.parquet(str(folder)))])

    def arrive(self, slices: int | None = None) -> datetime:
        """Let the files of the next slices (by default, all) arrive. Returns the time of their last departure."""
        files = sorted((self.out / "later").iterdir())
        files = files if slices is None else files[: slices * FILES_PER_SLICE]
        for path in files:
            path.rename(self.out / "flights" / path.name)
        tables = [pq.read_table(self.out / "flights" / path.name) for path in files]
        last: datetime = max(pc.call_function("max", [table["departed"]]).as_py() for table in tables)
        return last

    def go_on(self, version: Any, parallelism: int) -> None:
        """Start a version of the program on the checkpoint, and wait until it has read all available flights."""
        source = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_SLICE)
        env = StreamExecutionEnvironment.get_execution_environment(self.spark)
        env.set_parallelism(parallelism).set_max_parallelism(self.max_parallelism)
        if self.savepoint.exists():
            env.from_savepoint(str(self.savepoint))
        rows = env.from_dataframe(source.parquet(str(self.out / "flights")), name="flights")
        writer = (
            version(rows)
            .to_dataframe(Event)
            .writeStream.format("parquet")
            .option("path", str(self.events))
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
        )
        query = pillarbox.start(writer)
        query.awaitTermination()
        self.report(query)

    def report(self, query: Any) -> None:
        """Print a summary of a query's epochs."""
        done = [progress for progress in query.recentProgress if progress["numInputRows"]]
        (states,) = [report for report in pillarbox.metrics(done[-1], by="operator") if report.level == 1]
        rows = sum(progress["numInputRows"] for progress in done)
        kinds = Counter(kind for kind, *_ in self.found()) - self.reported
        self.reported += kinds
        assert states.watermark is not None
        watermark = instant(states.watermark)
        news = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
        print(
            f"  epochs {done[0]['batchId']} to {done[-1]['batchId']}: {rows:,} flights, up to {watermark:%d %b %Y};"
            f" state of {states.keys:,} aircraft, {states.timers:,} timers; new events: {news}",
            flush=True,
        )

    def command(self, *arguments: str) -> None:
        """Print a pillarbox command, and run it."""
        short = [shown(Path(argument)) if argument.startswith("/") else argument for argument in arguments]
        print(f"\n$ pillarbox {' '.join(short)}", flush=True)
        subprocess.run([sys.executable, "-m", "pillarbox", *arguments], check=True)


def check(outcomes: list[Outcome], table: pa.Table, since: datetime) -> bool:
    """Compare the results with the oracle's, and print the outcome."""
    events = expected(table.to_pylist())
    oracle = canonical([*events, *milestones(events, since, EVERY)])
    print()
    return equals_the_oracle(outcomes, oracle)


if __name__ == "__main__":
    sys.exit(main())
