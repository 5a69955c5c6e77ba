# SPDX-License-Identifier: Apache-2.0
"""Interval join of two streams: pillarbox beside Spark's own stream-stream join and PyFlink, rows per second.

Rows of two streams with the same key, whose times are at most five seconds apart; 100,000 keys, micro-batches of
500,000 rows a side, which cover five minutes of event time, the watermark is 5 seconds behind (see ``join_work.py``).
All emit (key, both times, sum of both amounts), in append mode.

pillarbox has two sides, both of them or those in ``--sides``: ``columnar``, ``interval_join(...).columns()``, and
``python``, a ``ProcessJoinFunction``. The peers, all of them or those in ``--peers``:

  spark     Spark's own join with a watermark, which has no Python in it: with the fastest of its state formats and
            stores, those in ``--formats``: ``hdfs-2`` (in the JVM's memory), ``rocksdb-2``, ``rocksdb-3`` and
            ``rocksdb-4`` (with changelog checkpoints, and rows not counted); all warm up, and the last micro-batch of
            that tells
  thread    PyFlink's ``KeyedCoProcessFunction`` that keeps the rows of each side in a map state, in thread mode
  process   the same in process mode

and the limit ``one-hop``: the same rows through Python once, behind a shuffle, with no work done. PyFlink gets an
environment of its own, made when it is missing; when it cannot be had here it is left out, and the result says why.

The sides go in rounds. In each of them every side on Spark in turn has three micro-batches, and each other one a job;
the others wait, in processes of their own. What counts is a side's median over five rounds. The warm-up is two small
micro-batches and two full ones: Spark drops the rows of one at the end of the next, so its buffers are full from the
second full one on. A JVM goes on compiling for longer than that: it gets micro-batches until they have taken a minute
(the state formats of Spark's own share one). Spark ends Python workers that were idle for a minute: a side with Python
that has waited for as long gets a micro-batch more, which does not count.

- On Spark the cores are two, shuffle partitions two, output goes into the sink ``noop``. Both
  streams are halves of one source, so that a micro-batch has all of its rows. A micro-batch's throughput is the rows of
  both sides over its ``triggerExecution``.
- PyFlink takes many times as long, so its round is a job over a share of a micro-batch's rows with the same share of
  its keys, so as many rows a key. A job begins without state, and has no checkpoints; its start does not count. All
  that is to its favour. In thread mode two processes with half of the keys each run side by side, as threads would
  share Python's one lock. See ``join_flink.py``.

Every result is checked, against pairs that numpy finds: number of rows, sum of amounts, and a checksum of all columns,
of each micro-batch or job.

Run it with ``make bench-join`` or ``python benchmarks/bench_join.py``. The last line of the output is one JSON object;
``ratio`` is rows per second of pillarbox's columnar side over those of Spark's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import find_pillarbox

find_pillarbox()

from benchmarks.contest import Comparison, arguments_of, run
from benchmarks.contest_sides import STORES, Contender, FastestStore, JobRunner, Runner
from benchmarks.join_work import BOUND, DELAY, QUERIES, SCHEMA, SMALL, Batches
from benchmarks.keyed_work import SUBTASKS
from benchmarks.support import finish, spark_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORK = "join"
OURS = {
    "columnar": Contender("pillarbox, columnar", "ours"),
    "python": Contender("pillarbox, Python", "ours"),
}
PEERS = {
    "spark": Contender("Spark's own", "spark"),
    "thread": Contender("PyFlink, thread mode", "flink", {WORK: 5}),
    "process": Contender("PyFlink, process mode", "flink", {WORK: 50}),
    "one-hop": Contender("(identity, one hop)", "limit"),
}
CONTENDERS = {**OURS, **PEERS}
_VERSION = "spark.sql.streaming.join.stateFormatVersion"
FORMATS: Mapping[str, Mapping[str, str]] = {
    "hdfs-2": {**STORES["hdfs"], _VERSION: "2"},
    "rocksdb-2": {**STORES["rocksdb"], _VERSION: "2"},
    "rocksdb-3": {**STORES["rocksdb"], _VERSION: "3"},
    "rocksdb-4": {**STORES["rocksdb"], _VERSION: "4"},
}


class JoinComparison(Comparison):
    """One join."""

    contenders = CONTENDERS
    stores = FORMATS
    runners: Mapping[str, Callable[[Any, str], Runner]] = {"spark": FastestStore, "flink": JobRunner}
    small = SMALL

    @property
    def title(self) -> str:
        return f"rows at most {BOUND // 1000} seconds apart"

    @property
    def keys(self) -> int:
        return int(self.arguments.keys)

    def new_batches(self, share: int, place: Path) -> Batches:
        rows, small = self.arguments.rows // share, self.arguments.warm_up_rows // share
        return Batches(max(rows, 10), max(small, 10), self.keys // share, place)

    def spec(self) -> dict[str, Any]:
        return {"delay": DELAY, "bound": BOUND}

    def job_script(self, name: str) -> str:
        return "join_flink.py"

    def job_sources(self, runner: Runner, count: int) -> list[str]:
        place = runner.batches.place(runner.number, "csv")
        # (Of two files, one reader may take both, one after the other: the rows of the second one would be late.)
        halves = [str(part) for part in range(SUBTASKS)] if count == SUBTASKS else ["whole"]
        return [",".join(str(place / str(side) / half) for side in (0, 1)) for half in halves]

    def report(self, load: float) -> None:
        figures = self.figures(WORK)
        self.report_problems()
        finish(
            "join",
            figures["over"].get("columnar", {}).get("spark", 0),
            results_agree=not self.wrong,
            **figures,
            left_out=self.left_out,
            rows=self.arguments.rows,
            load_before=round(load, 1),
            spark=spark_version(),
        )


def query(source: DataFrame, question: Mapping[str, Any]) -> DataFrame:
    """Return the query that a side is asked for."""
    return QUERIES[question["query"]](source)


def main() -> None:
    parser = arguments_of(__doc__, {"--sides": OURS, "--peers": PEERS, "--formats": FORMATS}, rows=500_000)
    parser.add_argument("--keys", type=int, default=100_000)
    run(parser.parse_args(), [WORK], JoinComparison, SCHEMA, query)


if __name__ == "__main__":
    main()
