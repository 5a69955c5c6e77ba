# SPDX-License-Identifier: Apache-2.0
"""What a stateless chain costs: map, filter, map, beside the same functions by hand in ``mapInArrow``.

2,000,000 payments in two partitions go through three Python functions, typed columns in and out, into the sink
``noop``. pillarbox runs them as ``from_dataframe(df).map(f).filter(g).map(h).to_dataframe(schema)``. By hand there are
three ways, each one function for ``mapInArrow`` that makes lists of the columns, rows of the lists, loops over them
and makes Arrow columns of the outcome:

  by hand, named tuples   the very same functions: fields by attribute, as pillarbox's rows have them
  by hand, tuples         the first function unpacks a tuple instead, which spares the named tuple
  by hand, tuned          the same, and columns become lists by numpy where Arrow's ``to_pylist`` is slow: what few
                          would write

and, to know what Spark and Arrow alone take, ``mapInArrow`` with the identity.

All run in one Spark with two cores and with the same, warm Python workers, in turn, every other round backwards. Time
is what a user sees: from building the query to the end of the job. Each run's results are checked: their number and
two sums over them, against the functions called in plain Python.

Run it with ``make bench-stateless`` or ``python benchmarks/bench_stateless.py``. The last line of the output is one
JSON object; ``ratio`` is pillarbox's rows per second over the rate of the faster of the first two ways by hand,
``tuned_ratio`` over the third.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import cpu_seconds, find_pillarbox, finish, print_table, spark_version, spread

find_pillarbox()

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from pillarbox import StreamExecutionEnvironment, local_session

OUTPUT = "card LONG, cents LONG, shop STRING"
ARROW_OUTPUT = pa.schema([("card", pa.int64()), ("cents", pa.int64()), ("shop", pa.string())])
SHOPS = 1_000


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


def identity(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


CASES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "pillarbox": pillarbox,
    "by hand, named tuples": lambda source: source.mapInArrow(with_named_tuples, OUTPUT),
    "by hand, tuples": lambda source: source.mapInArrow(with_tuples, OUTPUT),
    "by hand, tuned": lambda source: source.mapInArrow(tuned, OUTPUT),
    "(identity)": lambda source: source.mapInArrow(identity, source.schema),
}


def run(case: str, source: DataFrame) -> tuple[float, float, tuple[int, ...]]:
    """Run a case; give its seconds, those of the processors, and what the results add up to."""
    observation = Observation()
    amount = "amount" if case == "(identity)" else "cents"
    started_cpu = cpu_seconds(os.getpid())
    started = time.perf_counter()
    result = CASES[case](source)
    result.observe(
        observation,
        F.count(F.lit(1)).alias("count"),
        F.sum(F.col(amount)).alias("amount"),
        F.sum(F.length("shop")).alias("characters"),
    ).write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - started
    used = cpu_seconds(os.getpid()) - started_cpu
    sums = observation.get
    return seconds, used, tuple(sums[name] for name in ("count", "amount", "characters"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count")
    parser.add_argument("--memory", default="2g", help="of Spark")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-stateless-") as directory:
        spark = local_session(
            2, spark__driver__memory=arguments.memory, spark__local__dir=str(Path(directory) / "local")
        )
        compare(arguments, spark)
        spark.stop()


def compare(arguments: argparse.Namespace, spark: SparkSession) -> None:
    source = payments(spark, arguments.rows)
    wanted = expected(arguments.rows)
    wrong: list[str] = []
    rates: dict[str, list[float]] = {case: [] for case in CASES}
    used: dict[str, list[float]] = {case: [] for case in CASES}
    for index in range(-1, arguments.rounds):
        # Alternating, and every other round backwards, so that neither gains by its place.
        for case in list(CASES) if index % 2 else reversed(list(CASES)):
            seconds, cpu, sums = run(case, source)
            if case != "(identity)" and sums != wanted:
                wrong.append(f"{case}: {sums}, not {wanted}")
            if index >= 0:  # the round before that warms up
                rates[case].append(arguments.rows / seconds)
                used[case].append(cpu / arguments.rows * 1e6)

    medians = {case: statistics.median(values) for case, values in rates.items()}
    print_table(
        [f"{arguments.rows:,} rows, rows per second", "median", "lowest", "highest", "CPU s per 1M rows"],
        [[case, *spread(values), f"{statistics.median(used[case]):.2f}"] for case, values in rates.items()],
    )
    best = max("by hand, named tuples", "by hand, tuples", key=lambda case: medians[case])
    ratios = {case: medians["pillarbox"] / value for case, value in medians.items() if case != "pillarbox"}
    cpu_ratio = statistics.median(used[best]) / statistics.median(used["pillarbox"])
    print(
        f"pillarbox over {best}: {ratios[best]:.2f} in rows per second, {cpu_ratio:.2f} in rows per CPU second;"
        f" over by hand, tuned: {ratios['by hand, tuned']:.2f}"
    )
    for line in wrong:
        print(f"WRONG RESULTS: {line}")
    finish(
        "stateless",
        ratios[best],
        results_agree=not wrong,
        over=best,
        cpu_ratio=round(cpu_ratio, 3),
        same_functions_ratio=round(ratios["by hand, named tuples"], 3),
        tuned_ratio=round(ratios["by hand, tuned"], 3),
        rows_per_s={case: round(value) for case, value in medians.items()},
        rounds={case: [round(value) for value in values] for case, values in rates.items()},
        rows=arguments.rows,
        spark=spark_version(),
    )
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
