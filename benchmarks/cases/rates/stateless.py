# SPDX-License-Identifier: Apache-2.0
"""The cost of a stateless chain (map, filter, map), compared with the same functions by hand in ``mapInArrow``.

2,000,000 payments in two partitions pass through three Python functions, with typed columns as input and output, into
the sink ``noop``. pillarbox runs them as ``from_dataframe(df).map(f).filter(g).map(h).to_dataframe(schema)``. There are
three versions by hand. Each is one function for ``mapInArrow`` that converts columns to lists and the lists to rows,
loops over the rows, and converts the results to Arrow columns:

  by hand, named tuples   the very same functions: fields are attributes, as in pillarbox's rows
  by hand, tuples         the first function unpacks a tuple instead, which avoids the named tuple
  by hand, tuned          the same, with numpy for columns for which Arrow's ``to_pylist`` is slow; few users would
                          write this

To show the time of Spark and Arrow alone, there is also ``mapInArrow`` with the identity.

``harness/jobs.py`` runs the jobs, in one Spark with two cores, in turn, with every other round in reverse order. The
number of each run's results and two sums over them are compared with the functions called in plain Python.

In the last line, ``ratio`` is pillarbox's rows per second divided by the rate of the faster of the first two versions
by hand, and ``tuned_ratio`` divided by the third.
"""

from __future__ import annotations

import argparse
import sys
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.harness.case import Outcome, Result, shown
from benchmarks.harness.jobs import Jobs
from benchmarks.harness.process import carry_whole
from benchmarks.harness.turns import medians, table
from benchmarks.report.charts import draw_bars
from benchmarks.report.words import page
from pillarbox import StreamExecutionEnvironment, local_session

OUTPUT = "card LONG, cents LONG, shop STRING"
ARROW_OUTPUT = pa.schema([("card", pa.int64()), ("cents", pa.int64()), ("shop", pa.string())])
SHOPS = 1_000
SMALL = {"rows": 200_000, "rounds": 2, "memory": "1g"}


# -- the work --


def in_cents(payment: Any) -> tuple[int, int, str]:
    return payment.card, int(payment.amount * 100), payment.shop


def unpacked_in_cents(payment: tuple[int, float, str]) -> tuple[int, int, str]:
    card, amount, shop = payment
    return card, int(amount * 100), shop


def is_large(payment: tuple[int, int, str]) -> bool:
    return payment[1] >= 2_000


def with_fee(payment: tuple[int, int, str]) -> tuple[int, int, str]:
    card, cents, shop = payment
    return card, cents + 25 + cents // 100, shop


def payments(spark: SparkSession, rows: int) -> DataFrame:
    number = F.col("id")
    return spark.range(0, rows, 1, 2).select(
        (number * 7919 % 100_003).alias("card"),
        ((number * 31 % 10_000) / 100).alias("amount"),
        F.concat(F.lit("shop-"), (number % SHOPS).cast("string")).alias("shop"),
    )


def expected(rows: int) -> tuple[int, int, int]:
    """Return the sums of the results: number, cents, characters."""
    count = cents = characters = 0
    for number in range(rows):
        payment = number * 7919 % 100_003, number * 31 % 10_000 / 100, f"shop-{number % SHOPS}"
        changed = unpacked_in_cents(payment)
        if is_large(changed):
            result = with_fee(changed)
            count, cents, characters = count + 1, cents + result[1], characters + len(result[2])
    return count, cents, characters


# -- pillarbox --


def pillarbox(source: DataFrame) -> DataFrame:
    env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession)
    return env.from_dataframe(source).map(in_cents).filter(is_large).map(with_fee).to_dataframe(OUTPUT)


# -- by hand --

Payment = namedtuple("Payment", ["card", "amount", "shop"])


def to_arrow(results: list[tuple[int, int, str]]) -> pa.RecordBatch:
    columns = zip(*results) if results else [()] * len(ARROW_OUTPUT)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, ARROW_OUTPUT.types)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_OUTPUT)


def with_named_tuples(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = map(Payment, *(column.to_pylist() for column in batch.columns))
        yield to_arrow([with_fee(payment) for payment in map(in_cents, rows) if is_large(payment)])


def with_tuples(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = zip(*(column.to_pylist() for column in batch.columns))
        yield to_arrow([with_fee(payment) for payment in map(unpacked_in_cents, rows) if is_large(payment)])


def tuned(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = zip(*(column.to_numpy(zero_copy_only=False).tolist() for column in batch.columns))
        yield to_arrow([with_fee(payment) for payment in map(unpacked_in_cents, rows) if is_large(payment)])


SIDES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "pillarbox": pillarbox,
    "by hand, named tuples": lambda source: source.mapInArrow(with_named_tuples, OUTPUT),
    "by hand, tuples": lambda source: source.mapInArrow(with_tuples, OUTPUT),
    "by hand, tuned": lambda source: source.mapInArrow(tuned, OUTPUT),
    "(identity)": lambda source: source.mapInArrow(lambda batches: batches, source.schema),
}


def sums(side: str) -> list[Column]:
    amount = "amount" if side == "(identity)" else "cents"
    return [F.count(F.lit(1)).alias("count"), F.sum(F.col(amount).cast("long")), F.sum(F.length("shop"))]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count")
    parser.add_argument("--memory", default="2g", help="of Spark")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    carry_whole(sys.modules[__name__])
    spark = local_session(2, spark__driver__memory=arguments.memory, spark__local__dir=str(directory / "local"))
    source, results = payments(spark, arguments.rows), expected(arguments.rows)
    checked = {side: results for side in SIDES if side != "(identity)"}
    jobs = Jobs({side: partial(make, source) for side, make in SIDES.items()}, sums, checked, arguments.rows)
    jobs.run(arguments.rounds)
    spark.stop()
    figures = jobs.figures()
    rate, cpu_s = medians(jobs.rates), figures["cpu_s_per_1m_rows"]
    best = max("by hand, named tuples", "by hand, tuples", key=rate.__getitem__)
    summary = {
        "over": best,
        "cpu_ratio": round(cpu_s[best] / cpu_s["pillarbox"], 3),
        "same_functions_ratio": round(rate["pillarbox"] / rate["by hand, named tuples"], 3),
        "tuned_ratio": round(rate["pillarbox"] / rate["by hand, tuned"], 3),
        **figures,
        "rows": arguments.rows,
    }
    return Outcome("stateless", rate["pillarbox"] / rate[best], summary, jobs.wrong)


def present(result: Result, charts: Path | None) -> str:
    rates = {name.strip("()"): float(rate) for name, rate in result["rows_per_s"].items()}
    rows = [[name, f"{rate:,.0f}", f"{rates['pillarbox'] / rate:.2f}"] for name, rate in rates.items()]
    title = f"map, filter, map over {result['rows']:,} rows"
    return page(
        draw_bars(charts, "stateless", title, rates, "rows per second", limits=["identity"]),
        table(["", "rows per second", "pillarbox over it"], rows),
    )


BLOCKS = {"stateless": shown(present, "stateless")}
