# SPDX-License-Identifier: Apache-2.0
"""How much of ``job_rate_limit`` a query uses, and whether it ever exceeds it.

A keyed stream asks a service that answers at once, with a limit of 100 requests a second for the whole query and work
in every partition. All requests are in one epoch. The time of each request is a column of its result. Once with two
task slots and two partitions, and once with eight of each.

In the last line ``ratio`` is the number of requests in the first 30 seconds over what the limit allows in that time,
the lower of both; ``second_ratio`` is the highest number in any one second over the limit and its burst, the higher of
both.
"""

from __future__ import annotations

import argparse
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pillarbox
from benchmarks.harness.case import Block, Outcome, Said
from benchmarks.harness.process import Side
from benchmarks.harness.stepped import SparkSide
from benchmarks.harness.turns import table
from pillarbox import StreamExecutionEnvironment

SLOTS = (2, 8)
# The part of a second's requests by which a share may exceed the limit after a pause (docs/async.md).
BURST = 0.5
SMALL = {"seconds": 10}
BLOCKS: dict[str, Block] = {}


async def ask(row: Any) -> tuple[int, float]:
    return row.id, time.time()


class Requests(SparkSide):
    """A side with some task slots."""

    def __init__(self, slots: int, directory: str) -> None:
        super().__init__(directory, {}, slots=slots)
        self._slots = slots

    def ask(self, limit: int, seconds: int) -> dict[str, Any]:
        """Run the query; return the times of its requests, and the longest wait of a task for the limit (seconds)."""
        # Somewhat more than the limit lets through: no partition is to run out of work.
        records = round(1.3 * limit * seconds)
        self.spark.range(records).coalesce(1).write.parquet(f"{self.directory}/in")
        env = StreamExecutionEnvironment.get_execution_environment(self.spark).set_parallelism(self._slots)
        source = env.from_dataframe(self.spark.readStream.schema("id LONG").parquet(f"{self.directory}/in"))
        asked = source.key_by("id").map_async(ask, "id LONG, at DOUBLE", job_rate_limit=limit, timeout=None).uid("ask")
        rows: list[Any] = []
        writer = asked.to_dataframe().writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        writer = writer.option("checkpointLocation", f"{self.directory}/checkpoint").trigger(availableNow=True)
        query = pillarbox.start(writer)
        query.awaitTermination()
        reports = [each for progress in query.recentProgress for each in pillarbox.metrics(progress, by="operator")]
        agrees = sorted(row.id for row in rows) == list(range(records))
        waited = max(report.rate_limited_ms or 0 for report in reports) / 1000
        return {"times": sorted(row.at for row in rows), "waited": waited, "agrees": agrees}


def most_in_a_second(times: Sequence[float]) -> int:
    """Return the highest number of requests in any one second."""
    return max(bisect_left(times, at + 1) - index for index, at in enumerate(times))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=100, help="requests per second")
    parser.add_argument("--seconds", type=int, default=30, help="the time in which they are counted")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    found = {}
    for slots in SLOTS:
        side = Side(Requests, slots=slots, directory=directory / str(slots))
        found[str(slots)] = side.ask("ask", limit=arguments.limit, seconds=arguments.seconds)
        side.close()
    allowed = arguments.limit * arguments.seconds
    times = {slots: each["times"] for slots, each in found.items()}
    counts = {slots: bisect_left(each, each[0] + arguments.seconds) for slots, each in times.items()}
    peaks = {slots: most_in_a_second(each) for slots, each in times.items()}
    said = {
        "second_ratio": round(max(peaks.values()) / ((1 + BURST) * arguments.limit), 3),
        "limit": arguments.limit,
        "seconds": arguments.seconds,
        "requests": counts,
        "in_one_second": peaks,
        "waited_s": {slots: round(each["waited"], 1) for slots, each in found.items()},
    }
    wrong = [f"{slots} slots: not one answer to each request" for slots, each in found.items() if not each["agrees"]]
    return Outcome("rate", min(counts.values()) / allowed, said, wrong)


def present(said: Said, charts: Path | None) -> str:
    allowed = said["limit"] * said["seconds"]
    head = [f"in {said['seconds']} s", "of what is allowed", "in one second", "longest wait of a task, s"]
    rows = [
        [slots, count, f"{count / allowed:.1%}", said["in_one_second"][slots], said["waited_s"][slots]]
        for slots, count in said["requests"].items()
    ]
    return table(["task slots", *head], rows)
