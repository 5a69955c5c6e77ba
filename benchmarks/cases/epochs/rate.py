# SPDX-License-Identifier: Apache-2.0
"""The share of a budget that a query uses, and whether the query ever exceeds the budget.

A keyed stream sends requests to a service that answers at once, with a budget of 1,000 requests per second. It runs on
one executor, whose eight partitions take turns on two task slots and have equal work, and then on four executors with
two slots each, with 90% of the work in one partition. The function measures the time of each request, and emits it as a
column. The first epoch starts all processes and does not count.

In the last line, ``ratio`` is the average number of requests per second divided by the budget, the lower of both runs.
``second_ratio`` is the highest number of requests in any one second divided by 1.05 times the budget, the higher of
both runs.
"""

from __future__ import annotations

import argparse
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pillarbox
from benchmarks.harness.case import Block, Outcome, Result
from benchmarks.harness.process import Side
from benchmarks.harness.stepped import SparkSide
from benchmarks.harness.turns import table
from pillarbox import Budget, StreamExecutionEnvironment

PARTITIONS = 8
# By name: Spark's master, or None for two slots in this process; and the share of the work in one partition.
PLACES: dict[str, tuple[str | None, float]] = {
    "one executor": (None, 0.0),
    "four executors": ("local-cluster[4,2,1024]", 0.9),
}
WARM = 400
MOST = 1.05
SMALL = {"seconds": 5, "places": ["one executor"]}
BLOCKS: dict[str, Block] = {}


async def ask(row: Any) -> tuple[int, float]:
    return row.id, time.time()


class Requests(SparkSide):
    """A side with one or with several executors."""

    def __init__(self, master: str | None, directory: str) -> None:
        super().__init__(directory, {} if master is None else {"spark__master": master}, slots=2)

    def ask(self, limit: int, seconds: int, skew: float) -> dict[str, Any]:
        """Run the query. Returns the times of its requests, and a task's longest wait for the budget (seconds)."""
        records = limit * seconds
        heavy = f"IF(id >= {WARM} AND id % 1000 < {1000 * skew}, 0, id)"
        for first, last in ((0, WARM), (WARM, WARM + records)):
            rows = self.spark.range(first, last).selectExpr("id", f"{heavy} AS key")
            rows.coalesce(1).write.mode("append").parquet(f"{self.directory}/in")
        env = StreamExecutionEnvironment.get_execution_environment(self.spark).set_parallelism(PARTITIONS)
        reader = self.spark.readStream.schema("id LONG, key LONG").option("maxFilesPerTrigger", 1)
        source = env.from_dataframe(reader.parquet(f"{self.directory}/in")).key_by("key")
        budget = Budget("service", requests=limit)
        asked = source.map_async(ask, "id LONG, at DOUBLE", budgets=[budget], timeout=None).uid("ask")
        out: list[Any] = []
        writer = asked.to_dataframe().writeStream.foreachBatch(lambda batch, _: out.extend(batch.collect()))
        writer = writer.option("checkpointLocation", f"{self.directory}/checkpoint").trigger(availableNow=True)
        query = pillarbox.start(writer)
        query.awaitTermination()
        reports = [report for progress in query.recentProgress for report in pillarbox.metrics(progress, by="operator")]
        agrees = sorted(row.id for row in out) == list(range(WARM + records))
        waited = max(report.rate_limited_ms or 0 for report in reports) / 1000
        lost = sum(report.counters.get("ask.budget.service.lost", 0) for report in reports)
        times = sorted(row.at for row in out if row.id >= WARM)
        return {"times": times, "waited": waited, "lost": lost, "agrees": agrees}


def most_in_a_second(times: Sequence[float]) -> int:
    """Return the highest number of requests in any one second."""
    return max(bisect_left(times, at + 1) - index for index, at in enumerate(times))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=1000, help="requests per second")
    parser.add_argument("--seconds", type=int, default=20, help="the time that the requests take at least")
    parser.add_argument("--places", nargs="+", choices=[*PLACES], default=[*PLACES])


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    limit = arguments.limit
    answers = {}
    for number, cluster in enumerate(arguments.places):
        master, skew = PLACES[cluster]
        side = Side(Requests, master=master, directory=directory / str(number))
        answers[cluster] = side.ask("ask", limit=limit, seconds=arguments.seconds, skew=skew)
        side.close()
    times = {cluster: answer["times"] for cluster, answer in answers.items()}
    rates = {cluster: len(moments) / (moments[-1] - moments[0]) for cluster, moments in times.items()}
    peaks = {cluster: most_in_a_second(moments) for cluster, moments in times.items()}
    figures = {
        "second_ratio": round(max(peaks.values()) / (MOST * limit), 3),
        "limit": limit,
        "seconds": arguments.seconds,
        "a_second": {cluster: round(rate) for cluster, rate in rates.items()},
        "in_one_second": peaks,
        "lost_slots": {cluster: answer["lost"] for cluster, answer in answers.items()},
        "waited_s": {cluster: round(answer["waited"], 1) for cluster, answer in answers.items()},
    }
    wrong = [
        f"{cluster}: not one answer to each request" for cluster, answer in answers.items() if not answer["agrees"]
    ]
    wrong += [f"{cluster}: {peak} requests in one second" for cluster, peak in peaks.items() if peak > MOST * limit]
    return Outcome("rate", min(rates.values()) / limit, figures, wrong)


def present(result: Result, charts: Path | None) -> str:
    head = ["a second, on average", "of the budget", "at most in one second", "slots that came too late"]
    rows = [
        [
            cluster,
            rate,
            f"{rate / result['limit']:.1%}",
            result["in_one_second"][cluster],
            result["lost_slots"][cluster],
        ]
        for cluster, rate in result["a_second"].items()
    ]
    return table(["", *head], rows)
