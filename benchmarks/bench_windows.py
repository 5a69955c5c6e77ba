# SPDX-License-Identifier: Apache-2.0
"""Windows of count and sum: pillarbox beside Spark's own windows, PyFlink, Pathway and Bytewax, rows per second.

The works, all of them or those in ``--works``; all emit (key, start, count, sum), each window once (append mode):

  tumbling      a minute, 100,000 keys
  tumbling-10k  a minute, 10,000 keys
  sliding       an hour that slides by a minute, 10,000 keys
  sessions      sessions with a gap of 30 seconds, 100,000 keys

Micro-batches have 1,000,000 rows, which cover five minutes of event time, the watermark is 5 seconds behind (see
``window_work.py``). ``--keys`` and ``--rows`` are for other sizes.

pillarbox has two sides, both of them or those in ``--sides``: ``columnar``, aggregates of columns that Arrow computes,
and ``python``, an ``AggregateFunction`` in Python. The peers, all of them or those in ``--peers``:

  spark     Spark's own ``groupBy(window, key).agg(...)``, which has no Python in it: with the faster of its two state
            stores, those in ``--stores``: ``rocksdb`` (with changelog checkpoints, and rows not counted) and ``hdfs``
            (in the JVM's memory); both warm up with each work, and the last micro-batch of that tells
  thread    PyFlink's windows with an ``AggregateFunction`` in Python, in thread mode
  process   the same in process mode
  pathway   Pathway's ``windowby``, in Rust
  bytewax   Bytewax's ``fold_window``

and the limits: ``two-hops``, the same rows through Python twice with a shuffle between and no work done, which is the
way of rows for functions in Python, and ``one-hop``, through Python once, behind a shuffle. PyFlink, Pathway and
Bytewax get an environment each, made when it is missing; one that cannot be had here is left out, and the result says
why.

A work goes in rounds. In each of them every side on Spark in turn has three micro-batches (``--batches``), and each
other one a job or a micro-batch; the others wait, in processes of their own. What counts is a side's median over its
rounds, five by default. The warm-up is two small micro-batches and two full ones, so that Spark's state is as large as
it stays; where windows slide it is after the small ones, which are long enough. In the first work it goes on until a
side's JVM, which goes on compiling, has had a minute of micro-batches. Spark ends Python workers that were idle for a
minute: a side with Python that has waited for as long gets a micro-batch more, which does not count.

- On Spark the cores are two, shuffle partitions two, output goes into the sink ``noop``. A
  micro-batch's throughput is its ``numInputRows`` over its ``triggerExecution``.
- Pathway gets the same micro-batches (of rows and keys one in 200 where windows slide, one in ten for sessions); it
  persists nothing. See ``window_pathway.py``.
- PyFlink and Bytewax take many times as long, so their round is a job over a share of a micro-batch's rows with the
  same share of its keys, so as many rows a window. A job begins without state and closes all windows at its end, with
  no checkpoints; its start does not count. All that is to their favour. In thread mode, and for Bytewax, two processes
  with half of the keys each run side by side, as threads would share Python's one lock. See ``window_flink.py`` and
  ``window_bytewax.py``.

Every result is checked: number of rows, sum of totals, and a checksum of all columns, of each micro-batch or job
(Pathway: the first two). pillarbox emits a window in the micro-batch that brings the watermark, Spark in the one after
it.

Run it with ``make bench-windows`` or ``python benchmarks/bench_windows.py``. The last line of the output is one JSON
object; ``ratio`` is rows per second of pillarbox's columnar side over those of Spark's own, tumbling, at 100,000 keys.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import find_pillarbox

find_pillarbox()

from benchmarks.contest import Comparison, arguments_of, run
from benchmarks.contest_sides import STORES, Contender, FastestStore, JobRunner, Runner, no_error
from benchmarks.environments import Environment, PeerSide
from benchmarks.keyed_work import SUBTASKS, Round
from benchmarks.support import finish, spark_version
from benchmarks.window_work import DELAY, QUERIES, SCHEMA, SMALL, WORKS, Batches, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PATHWAY = Environment("Pathway", "pathway", ("pathway==0.33.0",), "600 MB")
BYTEWAX = Environment("Bytewax", "bytewax", ("bytewax==0.21.1", "pyarrow"), "200 MB")
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
# Works and sides of others, with a defect of theirs: its results are reported, and fail nothing (see window_flink.py).
KNOWN_TO_BE_WRONG = {("sessions", "thread")}


class PathwayRunner(Runner):
    """Pathway, with a process for each work."""

    def __init__(self, comparison: WindowComparison, name: str) -> None:
        super().__init__(comparison, name)
        source = self.directory / "in"
        source.mkdir()
        spec = json.dumps(comparison.spec())
        self.side = PeerSide(
            PATHWAY.make(comparison.place(PATHWAY)),
            "window_pathway.py",
            "--spec",
            spec,
            "--source",
            str(source),
            env={"PATHWAY_THREADS": str(SUBTASKS)},
        )

    def measure(self) -> tuple[Round, list[int], list[int]]:
        staged = self.directory / f"{self.number:03}.csv"
        os.link(self.batches.place(self.number, "csv-whole") / "rows.csv", staged)
        expected = self.batches.emitted_until(self.number)
        said = no_error(self.side.ask(batch=str(staged), expected=expected))
        return Round(self.batches.length(self.number), said["ms"], said["cpu"]), said["results"], expected

    def close(self) -> None:
        self.side.close()
        super().close()


class WindowComparison(Comparison):
    """The kinds of windows."""

    contenders = CONTENDERS
    stores = STORES
    runners: Mapping[str, Callable[[Any, str], Runner]] = {
        "spark": FastestStore,
        "pathway": PathwayRunner,
        "flink": JobRunner,
        "bytewax": JobRunner,
    }
    small = SMALL

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        super().__init__(arguments, directory)
        self.known_wrong: list[str] = []

    @property
    def work(self) -> Work:
        """The work that is being done."""
        return WORKS[self.name]

    @property
    def title(self) -> str:
        return self.work.title

    @property
    def keys(self) -> int:
        return self.arguments.keys or self.work.keys

    @property
    def warm_up(self) -> int:
        return super().warm_up if self.work.full_warm_up else self.small

    def new_batches(self, share: int, place: Path) -> Batches:
        rows, small = self.arguments.rows // share, self.arguments.warm_up_rows // share
        return Batches(self.work, rows, max(small, 10), self.keys // share, place)

    def spec(self) -> dict[str, Any]:
        return {**self.work.spec(), "delay": DELAY}

    def jobs(self, name: str) -> Sequence[PeerSide]:
        if name == "bytewax" and name not in self._jobs:
            python = BYTEWAX.make(self.place(BYTEWAX))
            self._jobs[name] = [PeerSide(python, "window_bytewax.py") for _ in range(SUBTASKS)]
        return super().jobs(name)

    def job_script(self, name: str) -> str:
        return "window_flink.py"

    def job_sources(self, runner: Runner, count: int) -> list[str]:
        flink = runner.contender.kind == "flink"
        place = runner.batches.place(runner.number, "csv" if flink else "parquet")
        halves = [str(place / str(part)) if flink else str(place / f"{part}.parquet") for part in range(SUBTASKS)]
        # (Of two files, one reader may take both, one after the other: the rows of the second one would be late.)
        return halves if count == SUBTASKS else [str(place / "whole")]

    def note_wrong(self, runner: Runner, line: str) -> None:
        known = (self.name, runner.name) in KNOWN_TO_BE_WRONG
        (self.known_wrong if known else self.wrong).append(f"{self.name}, {line}")

    def report(self, load: float) -> None:
        works = {work: self.figures(work) for work in self.done}
        self.report_problems()
        for line in self.known_wrong:
            print(f"wrong results, of a defect that is known: {line}")
        first = works.get("tumbling", {}).get("over", {}).get("columnar", {})
        finish(
            "windows",
            first.get("spark", 0),
            results_agree=not self.wrong,
            known_to_be_wrong=self.known_wrong,
            works=works,
            left_out=self.left_out,
            rows=self.arguments.rows,
            load_before=round(load, 1),
            spark=spark_version(),
        )


def query(source: DataFrame, question: Mapping[str, Any]) -> DataFrame:
    """Return the query that a side is asked for."""
    return QUERIES[question["query"]](source, WORKS[question["work"]])


def main() -> None:
    names: dict[str, Mapping[str, Any]] = {"--works": WORKS, "--sides": OURS, "--peers": PEERS, "--stores": STORES}
    parser = arguments_of(__doc__, names, rows=1_000_000)
    parser.add_argument("--keys", type=int, default=0, help="instead of each work's own number")
    arguments = parser.parse_args()
    run(arguments, arguments.works, WindowComparison, SCHEMA, query)


if __name__ == "__main__":
    main()
