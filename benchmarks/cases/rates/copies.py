# SPDX-License-Identifier: Apache-2.0
"""The cost of copying emitted values: a dataclass of eight fields per record, with and without copies.

1,000,000 payments in two partitions become dataclasses of eight plain fields, which become typed columns. The function
keeps the dataclass that it has emitted, like a function that updates its state, so each dataclass is copied. The sides:

  copied          the default
  new             the function keeps nothing, so new objects are emitted without copies
  object reuse    with ``env.enable_object_reuse()``
  immutable       the class is declared with ``pillarbox.immutable``

``harness/jobs.py`` runs the jobs, in one Spark with two cores, in turn, with every other round in reverse order.

In the last line, ``ratio`` is the rate of ``copied`` divided by the rate of ``object reuse``, and ``new_ratio`` is the
same for ``new``. ``bench-against`` with ``--works copies,copies-reuse,stateless`` compares with another revision.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from benchmarks.cases.rates import stateless
from benchmarks.harness.case import Block, Outcome, Result
from benchmarks.harness.jobs import Jobs
from benchmarks.harness.process import carry_whole
from benchmarks.harness.stepped import SparkSide
from benchmarks.harness.turns import medians, table
from pillarbox import StreamExecutionEnvironment, local_session

OUTPUT = "card LONG, cents LONG, shop STRING, fee DOUBLE, rate DOUBLE, currency STRING, is_large BOOLEAN, number LONG"
SMALL = {"rows": 100_000, "rounds": 2, "memory": "1g"}
BLOCKS: dict[str, Block] = {}


@dataclass
class Score:
    card: int
    cents: int
    shop: str
    fee: float
    rate: float
    currency: str
    is_large: bool
    number: int


@dataclass
class Declared(Score):
    """A subclass of ``Score``, to declare it immutable."""


class Scores:
    """Converts a payment to a score."""

    def __init__(self, kind: type[Score] = Score, *, keeps: bool = True) -> None:
        self.kind, self.keeps = kind, keeps
        self.last: Score | None = None

    def __call__(self, payment: Any) -> Score:
        amount = payment.amount
        score = self.kind(
            payment.card, int(amount * 100), payment.shop, amount * 0.01, 0.01, "EUR", amount > 20, payment.card + 1
        )
        if self.keeps:
            self.last = score
        return score


def scored(source: DataFrame, function: Any, *, reuse: bool = False) -> DataFrame:
    env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession)
    if reuse:
        getattr(env, "enable_object_reuse", int)()  # revisions before it copied no dataclass
    return env.from_dataframe(source).map(function).to_dataframe(OUTPUT)


def immutable(source: DataFrame) -> DataFrame:
    import pillarbox

    pillarbox.immutable(Declared)
    return scored(source, Scores(Declared))


SIDES = {
    "copied": lambda source: scored(source, Scores()),
    "new": lambda source: scored(source, Scores(keeps=False)),
    "object reuse": lambda source: scored(source, Scores(), reuse=True),
    "immutable": immutable,
}


def sums(side: str) -> list[Column]:
    return [F.count(F.lit(1)).alias("count"), F.sum("cents"), F.sum(F.length("shop"))]


def expected(rows: int) -> tuple[int, int, int]:
    cents = sum(int(number * 31 % 10_000 / 100 * 100) for number in range(rows))
    return rows, cents, sum(len(f"shop-{number % stateless.SHOPS}") for number in range(rows))


class BatchJobs(SparkSide):
    """A side that runs a job of this case, or ``stateless``."""

    def __init__(self, directory: str, memory: str) -> None:
        super().__init__(directory, {"spark__driver__memory": memory}, ours=True)

    def job(self, name: str, rows: int) -> dict[str, Any]:
        """Run a job. Returns its duration (seconds)."""
        source = stateless.payments(self.spark, rows)
        started = time.perf_counter()
        df = stateless.pillarbox(source) if name == "stateless" else SIDES[name](source)
        df.write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - started}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count")
    parser.add_argument("--memory", default="2g", help="of Spark")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    carry_whole(sys.modules[__name__])
    spark = local_session(2, spark__driver__memory=arguments.memory, spark__local__dir=str(directory / "local"))
    source = stateless.payments(spark, arguments.rows)
    checked = dict.fromkeys(SIDES, expected(arguments.rows))
    jobs = Jobs({side: partial(make, source) for side, make in SIDES.items()}, sums, checked, arguments.rows)
    jobs.run(arguments.rounds)
    spark.stop()
    rate = medians(jobs.rates)
    figures = {
        "new_ratio": round(rate["new"] / rate["object reuse"], 3),
        "immutable_ratio": round(rate["immutable"] / rate["object reuse"], 3),
        **jobs.figures(),
        "rows": arguments.rows,
    }
    return Outcome("copies", rate["copied"] / rate["object reuse"], figures, jobs.wrong)


def present(result: Result, charts: Path | None) -> str:
    rates = {name: float(rate) for name, rate in result["rows_per_s"].items()}
    rows = [[name, f"{rate:,.0f}", f"{rate / rates['object reuse']:.2f}"] for name, rate in rates.items()]
    return table(["", "rows per second", "over object reuse"], rows)
