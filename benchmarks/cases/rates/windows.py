# SPDX-License-Identifier: Apache-2.0
"""Windows of count and sum: pillarbox compared with Spark's windows, PyFlink, Pathway and Bytewax, in rows per second.

The works (``--works`` selects some) all emit (key, start, count, sum), each window once (append mode):

  tumbling      a minute, 100,000 keys
  tumbling-10k  a minute, 10,000 keys
  sliding       an hour that slides by a minute, 10,000 keys
  sessions      sessions with a gap of 30 seconds, 100,000 keys

Micro-batches have 1,000,000 rows, which cover five minutes of event time. The watermark is 5 seconds behind. ``--keys``
and ``--rows`` set other sizes.

pillarbox has two sides (``--sides`` selects some): ``columnar``, aggregates of columns that Arrow computes, and
``python``, an ``AggregateFunction`` in Python. The peers (``--peers`` selects some):

  spark     Spark's ``groupBy(window, key).agg(...)``, without any Python, with the faster of its two state stores
            (``--stores`` selects some): ``rocksdb`` (with changelog checkpoints, and without counting rows) and
            ``hdfs`` (in the JVM's memory); both warm up with each work, and their last warm-up micro-batch decides
  thread    PyFlink's windows with an ``AggregateFunction`` in Python, in thread mode
  process   the same in process mode
  pathway   Pathway's ``windowby``, in Rust
  bytewax   Bytewax's ``fold_window``

There are two limits: ``two-hops``, the same rows through Python twice with a shuffle in between and without any work
(the path of rows for functions in Python), and ``one-hop``, through Python once, after a shuffle. PyFlink, Pathway and
Bytewax each have their own environment, which is created if missing. If that fails, the peer is left out, and the
result contains the reason.

In each round of a work, every side on Spark in turn runs three micro-batches (``--batches``), and every other side a
job or a micro-batch, while the others wait, in separate processes. The results are a side's medians over its rounds,
five by default. The warm-up is two small micro-batches and two full ones, so that Spark's state has its final size.
Sliding windows need only the small ones, which are long enough. In the first work, the warm-up continues until a side's
JVM, which is still compiling, has run micro-batches for a minute. Spark ends Python workers that have been idle for a
minute. A side with Python that has waited for so long runs an additional micro-batch, which does not count.

- On Spark, there are two cores and two shuffle partitions, and the sink is ``noop``. A micro-batch's throughput is its
  ``numInputRows`` divided by its ``triggerExecution``.
- Pathway receives the same micro-batches (for sliding windows, one in 200 rows and keys; for sessions, one in ten). It
  persists nothing. See ``peers/pathway_graph.py``.
- PyFlink and Bytewax take many times as long, so their round is a job over a share of a micro-batch's rows with the
  same share of its keys, and therefore as many rows per window. A job begins without state, closes all windows at its
  end, and has no checkpoints, and its start does not count. All of this favours them. In thread mode, and for Bytewax,
  two concurrent processes have half of the keys each, because threads would share Python's lock. See
  ``peers/flink_jobs.py`` and ``peers/bytewax_flow.py``.

Every result is checked: the number of rows, the sum of totals, and a checksum of all columns, of each micro-batch or
job (for Pathway, only the number and the sum). pillarbox emits a window in the micro-batch that brings the watermark,
Spark in the next one.

In the last line, ``ratio`` is the rows per second of pillarbox's columnar side divided by Spark's, for tumbling windows
with 100,000 keys. ``window_rows.py`` describes the rows.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.cases.rates.window_rows import DELAY, WORKS, WindowBatches, Work
from benchmarks.harness.case import Block, Outcome, Result, Results, shown
from benchmarks.harness.contest import WARM_UP_SECONDS, Contest, add_names, add_options, contest_page, left_out
from benchmarks.harness.process import Side
from benchmarks.harness.rows import SUBTASKS
from benchmarks.harness.runners import Contender, Round, Runner
from benchmarks.peers.environments import BYTEWAX, PATHWAY
from benchmarks.peers.limits import one_hop, two_hops
from benchmarks.peers.spark import STORES
from benchmarks.report.words import page, paragraph, precise
from pillarbox import (
    AggregateFunction,
    StreamExecutionEnvironment,
    WatermarkStrategy,
    WindowFunction,
    count_,
    sum_,
)

SCHEMA = "key INT, ts LONG, amount LONG"
OUTPUT = "key INT, start LONG, n LONG, total LONG"
SMALL = {
    "rows": 20_000,
    "keys": 1_000,
    "rounds": 1,
    "batches": 1,
    "warm_up_seconds": 0,
    "memory": "1g",
    "works": ["tumbling"],
    "stores": ["rocksdb"],
    "peers": ["spark", "two-hops", "one-hop"],
}
OURS = {
    "columnar": Contender("pillarbox, columnar", "ours"),
    "python": Contender("pillarbox, Python", "ours"),
}
PEERS = {
    "spark": Contender("Spark's own", "spark"),
    "thread": Contender(
        "PyFlink, thread mode", "flink", {"tumbling": 5, "tumbling-10k": 5, "sliding": 200, "sessions": 10}
    ),
    "process": Contender(
        "PyFlink, process mode", "flink", {"tumbling": 50, "tumbling-10k": 50, "sliding": 1_000, "sessions": 100}
    ),
    "pathway": Contender("Pathway", "pathway", {"sliding": 200, "sessions": 10}),
    "bytewax": Contender("Bytewax", "bytewax", {"tumbling": 5, "tumbling-10k": 5, "sliding": 20, "sessions": 10}),
    "two-hops": Contender("(identity, two hops)", "limit"),
    "one-hop": Contender("(identity, one hop)", "limit"),
}
CONTENDERS = {**OURS, **PEERS}
# (work, peer) pairs with a known defect of the peer. Its wrong results are reported, but cause no failure (see
# ``peers/flink_jobs.py``).
KNOWN_TO_BE_WRONG = {("sessions", "thread"), ("sessions", "process")}


# -- pillarbox --


class Totals(AggregateFunction[Any, Any, Any]):
    """Count and sum."""

    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + 1, accumulator[1] + value.amount

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class WithWindow(WindowFunction[Any, Any, Any, Any]):
    """Adds key and window to the result of ``Totals``."""

    def apply(self, key, window, inputs):
        n, total = inputs[0]
        yield key, window.start, n, total


def _windowed(source: DataFrame, work: Work) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(DELAY).with_timestamp_assigner("ts")
    env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession)
    stream = env.from_dataframe(source).assign_timestamps_and_watermarks(strategy)
    return stream.key_by("key").window(work.assigner())


def python_query(source: DataFrame, work: Work) -> DataFrame:
    """Return the windows with an aggregate function in Python."""
    result = _windowed(source, work).aggregate(Totals(), WithWindow())
    return result.to_dataframe(OUTPUT)  # type: ignore[no-any-return]


def columnar_query(source: DataFrame, work: Work) -> DataFrame:
    """Return the windows with aggregates of columns, computed by Arrow."""
    result = _windowed(source, work).aggregate(n=count_(), total=sum_("amount")).to_dataframe()
    return result.select("key", F.unix_millis("window_start").alias("start"), "n", "total")  # type: ignore[no-any-return]


# -- Spark's own, and the limits --


def spark_query(source: DataFrame, work: Work) -> DataFrame:
    """Return Spark's windows, which run in the JVM."""
    timed = source.withColumn("time", F.timestamp_millis("ts")).withWatermark("time", f"{DELAY} milliseconds")
    grouped = timed.groupBy(work.spark_window().alias("window"), "key")
    result = grouped.agg(F.count(F.lit(1)).alias("n"), F.sum("amount").alias("total"))
    return result.select("key", F.unix_millis("window.start").alias("start"), "n", "total")


QUERIES: dict[str, Callable[[DataFrame, Work], DataFrame]] = {
    "columnar": columnar_query,
    "python": python_query,
    "spark": spark_query,
    "two-hops": lambda source, _: two_hops(source),
    "one-hop": lambda source, _: one_hop(source),
}


def query(source: DataFrame, question: Mapping[str, Any]) -> DataFrame:
    return QUERIES[question["query"]](source, WORKS[question["work"]])


# -- the contest --


class PathwayRunner(Runner):
    """Runs Pathway, in a new process for each work."""

    contest: WindowContest

    def __init__(self, contest: WindowContest, name: str) -> None:
        super().__init__(contest, name)
        folder = self.directory / "in"
        folder.mkdir()
        path = contest.directory_of(PATHWAY)
        self.side = PATHWAY.side("benchmarks.peers.pathway_graph:Windows", path, spec=contest.spec(), folder=folder)

    def measure(self) -> tuple[Round, str, str]:
        staged = self.directory / f"{self.number:03}.csv"
        os.link(self.batches.path(self.number, "csv-whole") / "rows.csv", staged)
        expected = self.batches.emitted_until(self.number)
        answer = self.side.ask("step", batch=staged, expected=expected)
        wrong = "" if answer["results"] == expected else f"{answer['results']}, not {expected}"
        done = Round(self.batches.length(self.number), answer["ms"], answer["cpu"])
        return done, f"{answer['results'][0]:,} emitted", wrong

    def close(self) -> None:
        self.side.close()
        super().close()


class WindowContest(Contest):
    """The contest of windows."""

    module = __name__
    contenders = CONTENDERS
    stores = STORES
    flink = "benchmarks.peers.flink_jobs:Windows"

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        super().__init__(arguments, directory)
        self.known_wrong: list[str] = []

    @property
    def work(self) -> Work:
        """The current work."""
        return WORKS[self.name]

    @property
    def title(self) -> str:
        return self.work.title

    @property
    def keys(self) -> int:
        return self.arguments.keys or self.work.keys

    @property
    def warm_up(self) -> int:
        return super().warm_up if self.work.full_warm_up else 2

    def new_batches(self, share: int, path: Path) -> WindowBatches:
        rows, small = self.arguments.rows // share, self.arguments.warm_up_rows // share
        return WindowBatches(self.work, rows, small, self.keys // share, path)

    def spec(self) -> dict[str, Any]:
        return {**self.work.spec(), "delay": DELAY}

    def runner(self, kind: str) -> Callable[[Any, str], Runner]:
        return PathwayRunner if kind == "pathway" else super().runner(kind)

    def new_jobs(self, name: str, kind: str) -> list[Side]:
        if kind != "bytewax":
            return super().new_jobs(name, kind)
        kind = "benchmarks.peers.bytewax_flow:Windows"
        return [BYTEWAX.side(kind, self.directory_of(BYTEWAX)) for _ in range(SUBTASKS)]

    def job_sources(self, runner: Runner, count: int) -> list[str]:
        if runner.contender.kind != "bytewax":
            return super().job_sources(runner, count)
        path = runner.batches.path(runner.number, "parquet")
        return [str(path / f"{part}.parquet") for part in range(count)]

    def note_wrong(self, runner: Runner, line: str) -> None:
        is_known = (self.name, runner.name) in KNOWN_TO_BE_WRONG
        (self.known_wrong if is_known else self.wrong).append(f"{self.name}, {line}")


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, rows=1_000_000, keys=0, rounds=5, warm_up_seconds=WARM_UP_SECONDS)
    add_names(parser, "--works", WORKS)
    add_names(parser, "--sides", OURS)
    add_names(parser, "--peers", PEERS)
    add_names(parser, "--stores", STORES)


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    contest = WindowContest(arguments, directory)
    contest.run(arguments.works, arguments.sides, arguments.peers)
    works = {work: contest.figures(work, arguments.sides) for work in contest.done}
    figures = {
        "known_to_be_wrong": contest.known_wrong,
        "works": works,
        "left_out": contest.left_out,
        "rows": arguments.rows,
    }
    ratio = works.get("tumbling", {}).get("over", {}).get("columnar", {}).get("spark", 0)
    return Outcome("windows", ratio, figures, contest.wrong)


# -- pages --


def present(result: Result, charts: Path | None) -> str:
    wrong = sorted({line.rpartition(", number")[0] for line in result["known_to_be_wrong"]})
    return page(
        *(
            contest_page(
                charts, f"windows-{work}", f"{WORKS[work].title}, {figures['keys']:,} keys", CONTENDERS, figures
            )
            for work, figures in result["works"].items()
        ),
        *left_out(CONTENDERS, result),
        f"These results were wrong: {'; '.join(wrong)} ([why](performance.md#windows))." if wrong else "",
    )


def the_hop(results: Results) -> str:
    works = results["windows"]["works"].values()
    hop, ours = ([figures["cpu_s_per_1m_rows"][side] for figures in works] for side in ("one-hop", "columnar"))
    return paragraph(
        f"Moving a million rows from Java to Python takes {min(hop):.1f} to {max(hop):.1f} s of processor time."
        f" Columnar windows take {min(ours):.1f} to {max(ours):.1f} s, this move included, and cannot take less than"
        " the move. If Spark's own query takes no longer than the move, as with few keys, columnar windows"
        " cannot be faster."
    )


def panes(results: Results) -> str:
    works = results["windows"]["works"]
    sliding, tumbling = (precise(works[work]["rows_per_s"]["python"]) for work in ("sliding", "tumbling-10k"))
    return paragraph(
        "With panes and Python functions, windows of an hour that slide by a minute process"
        f" {sliding} records a second. Tumbling windows of a minute with the same keys process"
        f" {tumbling} (`make bench-windows`)."
    )


BLOCKS = {
    "windows": shown(present, "windows"),
    "the hop in words": Block(the_hop, ("windows",)),
    "panes in words": Block(panes, ("windows",)),
}
