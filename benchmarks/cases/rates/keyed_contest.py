# SPDX-License-Identifier: Apache-2.0
"""The shared parts of the two keyed cases: rows, contenders and schedule.

All contenders read the same rows, with random keys and evenly increasing event time, in two parts. Each part has half
of the keys, like a partition of a log. A round is a micro-batch of five minutes of event time.

Peers run in visits: see ``harness/contest.py``. The results are a contender's medians over its rounds.

- On Spark (pillarbox, Spark's APIs, identity), there are two cores and two shuffle partitions, the state store is
  RocksDB with changelog checkpoints, and the sink is ``noop``. A round's throughput is the micro-batch's
  ``numInputRows`` divided by its ``triggerExecution``. The warm-up is a small micro-batch and a full one. The two slow
  Spark APIs, with pandas, receive a fifth of the rows with a fifth of the keys: as many rows and timers for each key,
  and less state. Their warm-up is only the small micro-batch, because the first full micro-batch has fewer timers to
  fire than later ones. Both choices favour them. Spark ends Python workers that have been idle for a minute, which
  happens while pillarbox waits. So the first micro-batch of each of its turns finds cold workers. It is shown as
  warm-up, and two more count.
- PyFlink takes many times as long, so its round is a job over the first rows of a micro-batch, with the same rows per
  second of event time. The job begins without state, ends with the maximum watermark, and makes no checkpoints. All of
  this favours PyFlink. Its time does not include the start of the job (see ``peers/flink_jobs.py``). In process mode,
  it has two subtasks. In thread mode, all subtasks of a process share Python's lock, so there are two concurrent
  processes, each with one subtask and half of the keys, without even a shuffle between them.
- ``identity`` sends the rows through the same two hops, with functions in ``mapInArrow`` that return their input: the
  cost of PySpark without any work.
- ``bare`` is pillarbox's function in a Python loop, over rows from the same files, with dictionaries for state and
  timers, in two processes with half of the keys each: the cost of Python without an engine.

Every result is checked: each micro-batch must emit exactly the expected rows. pillarbox fires timers in the micro-batch
that brings the watermark, Spark in the next one. PyFlink's watermark advances while rows arrive: see the cases.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import pillarbox
from benchmarks.harness.case import Outcome, Result
from benchmarks.harness.contest import Contest, add_names, add_options, contest_page
from benchmarks.harness.process import Side
from benchmarks.harness.rows import MINUTE, SUBTASKS, Ints, MicroBatches, draw
from benchmarks.harness.runners import Contender
from benchmarks.peers.limits import BareLoop, two_hops
from pillarbox import StreamExecutionEnvironment, WatermarkStrategy

SPAN = 5 * MINUTE
DELAY = 5_000
SCHEMA = "key INT, ts LONG"
SMALL = {
    "rows": 20_000,
    "keys": 2_000,
    "rounds": 1,
    "flink_rows": 5_000,
    "flink_warm_up_rows": 1_000,
    "memory": "1g",
    "peers": ["rows", "identity", "bare"],
}
PEERS = {
    "rows": Contender("transformWithState", "spark", warm_up=2, rounds=2),
    "pandas": Contender("transformWithStateInPandas", "spark", 5, warm_up=1, rounds=1),
    "apply": Contender("applyInPandasWithState", "spark", 5, warm_up=1, rounds=1),
    "own-rows": Contender("Spark's `StatefulProcessor` on pillarbox", "own", warm_up=2, rounds=2),
    "own-pandas": Contender("its pandas flavour on pillarbox", "own", 5, warm_up=1, rounds=1),
    "own-apply": Contender("applyInPandasWithState on pillarbox", "own", 5, warm_up=1, rounds=1),
    "process": Contender("PyFlink, process mode", "flink", warm_up=1, rounds=2),
    "thread": Contender("PyFlink, thread mode", "flink", warm_up=1, rounds=2),
    "identity": Contender("(identity in mapInArrow)", "limit", warm_up=2, rounds=3),
    "bare": Contender("(bare Python loop)", "bare", warm_up=2, rounds=3),
}
CONTENDERS = {"pillarbox": Contender("pillarbox", "ours", warm_up=2, rounds=2), **PEERS}


class KeyedBatches(MicroBatches):
    """Micro-batches of keys and times. A PyFlink job gets only the first ``job_rows`` of a micro-batch, or fewer."""

    small_ones = 1

    def __init__(self, arguments: argparse.Namespace, share: int, path: Path) -> None:
        super().__init__(arguments.rows // share, arguments.warm_up_rows // share, int(arguments.keys) // share, path)
        self._job_rows = [arguments.flink_warm_up_rows, arguments.flink_rows]

    def columns(self, number: int, stream: int = 0) -> dict[str, Ints]:
        # Not from 0 on, because Spark uses 0 as the initial watermark.
        key, ts, _ = draw([1, number], self.rows_of(number), self.keys, (number + 1) * SPAN, SPAN)
        return {"key": key, "ts": ts}

    def job_length(self, number: int) -> int:
        return int(min(self._job_rows[bool(number)], self.rows))

    def job_columns(self, number: int, stream: int = 0) -> dict[str, Ints]:
        # From a full micro-batch, because a small one has fewer rows per second.
        return {name: column[: self.job_length(number)] for name, column in self.columns(max(number, 1)).items()}


@dataclass(frozen=True)
class KeyedFunctions:
    """A keyed function in pillarbox's and Spark's APIs.

    Attributes:
        output: the output columns.
        function: for pillarbox and the bare loop.
        rows: for ``transformWithState``.
        pandas: for ``transformWithStateInPandas``.
        apply: for ``applyInPandasWithState``; ``state`` are the columns of its state.
    """

    output: str
    function: Callable[[], Any]
    rows: Callable[[], Any]
    pandas: Callable[[], Any]
    apply: Callable[..., Any]
    state: str

    def query(self, source: DataFrame, question: Mapping[str, Any]) -> DataFrame:
        """Return the query of a contender."""
        name = question["query"]
        if name == "pillarbox":
            return self._pillarbox(source)
        if name == "identity":
            return two_hops(source)
        timed = source.withColumn("time", F.timestamp_millis("ts")).withWatermark("time", "5 seconds")
        is_own, flavour = name.startswith("own-"), name.removeprefix("own-")
        rows = timed if flavour == "apply" else timed.select("key", "ts")
        grouped = pillarbox.group_by(rows, "key") if is_own else rows.groupBy("key")
        if flavour == "apply":
            return grouped.applyInPandasWithState(self.apply, self.output, self.state, "append", "EventTimeTimeout")
        if flavour == "pandas":
            return grouped.transformWithStateInPandas(self.pandas(), self.output, "append", "EventTime")
        return grouped.transformWithState(self.rows(), self.output, "append", "EventTime")

    def _pillarbox(self, source: DataFrame) -> DataFrame:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")
        env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession).set_parallelism(SUBTASKS)
        stream = env.from_dataframe(source).assign_timestamps_and_watermarks(strategy)
        return stream.key_by("key").process(self.function()).to_dataframe(self.output)


class KeyedContest(Contest):
    """A contest of a keyed function with its peers, in visits.

    Attributes:
        kind: the class of its micro-batches.
    """

    contenders = CONTENDERS
    visits = True
    kind: type[KeyedBatches]

    def new_batches(self, share: int, path: Path) -> KeyedBatches:
        return self.kind(self.arguments, share, path)

    def new_process(self, name: str, kind: str) -> Side:
        return Side(BareLoop, module=self.module) if kind == "bare" else super().new_process(name, kind)


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, rows=1_000_000, keys=100_000, rounds=0, warm_up_seconds=0)
    add_names(parser, "--peers", PEERS)
    parser.add_argument("--flink-rows", type=int, default=200_000, help="rows of a job of PyFlink")
    parser.add_argument("--flink-warm-up-rows", type=int, default=20_000, help="of its first one")


def run_keyed(kind: type[KeyedContest], name: str, arguments: argparse.Namespace, directory: Path) -> Outcome:
    """Run one of the two keyed cases."""
    contest = kind(arguments, directory)
    contest.run([name], ["pillarbox"], arguments.peers)
    figures = contest.figures(name, ["pillarbox"])
    over, rates = figures["over"]["pillarbox"], figures["rows_per_s"]

    def fastest(kind: str) -> str | None:
        names = [name for name in rates if CONTENDERS[name].kind == kind]
        return max(names, key=rates.__getitem__, default=None)

    spark, flink = fastest("spark"), fastest("flink")
    result = {
        "ratio_flink": over[flink] if flink else None,
        "of_identity": over.get("identity"),
        "of_bare_loop": over.get("bare"),
        "bare_loop": rates.get("bare"),
        "fastest_spark": CONTENDERS[spark].title if spark else None,
        "fastest_flink": CONTENDERS[flink].title if flink else None,
        **{figure: figures[figure] for figure in ("rows_per_s", "cpu_s_per_1m_rows", "rounds")},
        "left_out": contest.left_out,
        "rows": arguments.rows,
        "keys": arguments.keys,
        "flink_rows": min(arguments.flink_rows, arguments.rows),
    }
    return Outcome(name, over[spark] if spark else 0, result, contest.wrong)


def present(result: Result, charts: Path | None) -> str:
    """Return a keyed case's chart and table."""
    rates = result["rows_per_s"]
    over = {"pillarbox": {name: rates["pillarbox"] / rate for name, rate in rates.items()}}
    title = f"{result['name']}: {result['keys']:,} keys, {result['rows']:,} rows a micro-batch"
    return contest_page(charts, result["name"], title, CONTENDERS, {**result, "over": over})
