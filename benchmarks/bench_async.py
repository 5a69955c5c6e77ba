# SPDX-License-Identifier: Apache-2.0
"""Async enrichment on Spark: pillarbox's ``map_async`` against what is written by hand today, records per second.

The work: for each of 100,000 records one request to a service that answers after 10 ms or 100 ms, with at most 100 or
1,000 requests in flight per subtask, in two subtasks. The service is a sleep, or real HTTP: an aiohttp service on
loopback in a process of its own. What that can give at best is ``subtasks * capacity / latency``, the ideal; what
counts is the share of it, and pillarbox over the best of four others:

  gather     ``asyncio.gather`` in ``mapInArrow``: per Arrow batch of ``capacity`` rows, or per large Arrow batch with
             a semaphore; of these two forms the one that is faster in a setting's first round
  threads    a pool of ``capacity`` threads in ``mapInArrow``, which is handed the next Arrow batch in good time
  udf        Spark's Arrow UDF with ``spark.sql.execution.pythonUDF.arrow.concurrency.level`` at ``capacity``, and a
             partition in one Arrow batch, since each batch of a UDF waits for its last row
  flink      PyFlink's ``AsyncDataStream.unordered_wait``, in a virtual environment of its own, which is made when it
             is missing; where that does not work it is left out

and, to know what is possible at all, once per setting and of no weight in the ratio:

  bare       ``capacity`` coroutines in ``mapInArrow`` that take one record after the other, and nothing else: no
             timeouts, no retries, no metrics, and an error of one record is an error of all

pillarbox is used as it comes: results in order, a timeout of 5 seconds for each record. Whoever has an event loop has
uvloop's where that is installed, asyncio clients are aiohttp's with ``capacity`` connections, those of threads are
``http.client``'s, one connection a thread: the cheapest there is.

Each side has a Spark of its own with two cores, a range of records in two partitions, and the sink ``noop``. Time is
what a user sees, from building the query to the end of the job, with warm Python workers: each run comes after a tiny
one that is not counted. Of PyFlink, whose jobs take seconds to start, it is the time from the first request to the last
result only, with fewer records; to compare with it, pillarbox is timed in the same way too. Sides take turns, medians
of the rounds count, and each run's results are checked: number, and two sums over the answers.

At the longer latency 100,000 records would take a minute per run, so a run has what takes the ideal ``--seconds``
(twice that where the ideal is slow, as all come near it, and what a job costs in itself should weigh little), and over
HTTP at most ``--http-records``, as two cores that serve and ask at once are far from any ideal; ``--full`` has 100,000
everywhere (most of an hour).

Run it with ``make bench-async`` or ``python benchmarks/bench_async.py``. The last line of the output is one JSON
object; ``ratio`` is pillarbox's records per second over the rate of the best of the four, the lowest of all settings;
``share_of_ideal`` is pillarbox's at 10 ms and capacity 100 with a sleep.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import async_work
from benchmarks.async_work import SCHEMA, Stopwatch, Work, score
from benchmarks.flink import DIRECTORY, FlinkSide, flink_python
from benchmarks.support import (
    AS_SPARK_COMES,
    ROOT,
    Side,
    answer,
    cpu_seconds,
    find_pillarbox,
    finish,
    print_table,
    questions,
    spark_version,
    spread,
)

find_pillarbox()

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from pillarbox import Function, StreamExecutionEnvironment, local_session

SUBTASKS = 2
# Records per second.
SLOW = 5_000
MOST_RECORDS = 100_000
HEADLINE = "sleep/10/100"
# Of a run before each that counts, so that Python workers are there and have imported what they need.
PRIMER = 200
WARM_UP = "warm-up"
FLINK_WARM_UP = 2_000
# A load before the start that is worth a word.
BUSY = 0.7
PEERS = ("gather", "threads", "udf", "flink")
CONTENDERS = {
    "pillarbox": "pillarbox map_async",
    "gather": "asyncio.gather in mapInArrow",
    "threads": "thread pool in mapInArrow",
    "udf": "Arrow UDF with concurrency",
    "flink": "PyFlink AsyncDataStream",
    "bare": "(bare loop in mapInArrow)",
}
GATHER_FORMS = ("gather", "semaphore")


@dataclass(frozen=True)
class Setting:
    """A service, its latency, and how many requests may be in flight."""

    service: str
    latency_ms: int
    capacity: int

    @property
    def name(self) -> str:
        return f"{self.service}/{self.latency_ms}/{self.capacity}"

    @property
    def ideal(self) -> float:
        """Records per second."""
        return SUBTASKS * self.capacity / self.latency_ms * 1000

    def records(self, arguments: argparse.Namespace) -> int:
        if arguments.full:
            return MOST_RECORDS
        if arguments.records:
            return int(arguments.records)
        most = arguments.http_records if self.service == "http" else MOST_RECORDS
        return int(min(most, self.ideal * arguments.seconds * (2 if self.ideal < SLOW else 1)))


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(service, latency, capacity)
        for service in ("sleep", "http")
        for latency in (10, 100)
        for capacity in (100, 1000)
    )
}


# -- the contenders on Spark; those in mapInArrow are in async_work.py --


class Lookup(Function):
    """For pillarbox, with a stopwatch. The HTTP client lives as long as the task."""

    def __init__(self, work: Work) -> None:
        self.work = work

    async def open(self, ctx):
        self.watch = Stopwatch(self.work.times)
        self.resources = AsyncExitStack()
        self.look_up = await self.resources.enter_async_context(self.work.client())

    async def close(self):
        await self.resources.aclose()

    async def __call__(self, row):
        self.watch.begin()
        result = row.id, await self.look_up(row.id)
        self.watch.end()
        return result


def pillarbox_query(source: DataFrame, work: Work) -> DataFrame:
    env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession)
    return env.from_dataframe(source).map_async(Lookup(work), capacity=work.capacity).to_dataframe(SCHEMA)


def map_in_arrow(form: str) -> Callable[[DataFrame, Work], DataFrame]:
    look_up_all = getattr(async_work, form)

    def query(source: DataFrame, work: Work) -> DataFrame:
        if form == "gather":
            source.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", work.capacity)
        return source.mapInArrow(lambda batches: look_up_all(work, batches), SCHEMA)

    return query


def udf_query(source: DataFrame, work: Work) -> DataFrame:
    conf = source.sparkSession.conf
    conf.set("spark.sql.execution.pythonUDF.arrow.concurrency.level", work.capacity)
    conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", MOST_RECORDS)
    look_up = F.udf(work.blocking, "long", useArrow=True)
    return source.select("id", look_up("id").alias("score"))


QUERIES: dict[str, Callable[[DataFrame, Work], DataFrame]] = {
    "pillarbox": pillarbox_query,
    "udf": udf_query,
    **{form: map_in_arrow(form) for form in (*GATHER_FORMS, "threads", "bare")},
}


def run(spark: SparkSession, form: str, work: Work, records: int) -> dict[str, Any]:
    """Run a job, and tell how long it took and what came out."""
    assert work.times is not None
    Stopwatch.reset_all(work.times)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10_000)
    before = cpu_seconds(os.getpid())
    start = time.perf_counter()
    result = QUERIES[form](spark.range(0, records, 1, SUBTASKS), work)
    observation = Observation()
    result.observe(
        observation,
        F.count(F.lit(1)).alias("n"),
        F.sum("score").alias("scores"),
        F.sum(F.col("id") * F.col("score")).alias("weighted"),
    ).write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - start
    found = observation.get
    return {
        "seconds": seconds,
        "span": Stopwatch.read_all(work.times),
        "cpu": cpu_seconds(os.getpid()) - before,
        "results": [found["n"], found["scores"], found["weighted"]],
    }


def serve(side: str, memory: str) -> None:
    """In a side's process: run the jobs that are asked for."""
    settings = {"spark__driver__memory": memory}
    if side != "pillarbox":
        settings |= AS_SPARK_COMES
    spark = local_session(SUBTASKS, **settings)
    with tempfile.TemporaryDirectory(prefix="bench-async-") as times:
        for question in questions():
            try:
                work = Work(**question["work"], times=times)
                run(spark, question["form"], work, PRIMER)
                answer(**run(spark, question["form"], work, question["records"]))
            except Exception:
                answer(error=traceback.format_exc()[-4000:])
        spark.stop()


# -- the comparison --


@contextmanager
def service(setting: Setting) -> Iterator[int | None]:
    """While it lasts there is the service; gives its port."""
    if setting.service != "http":
        yield None
        return
    command = [sys.executable, str(ROOT / "benchmarks" / "async_service.py"), "--latency"]
    with subprocess.Popen(
        [*command, str(setting.latency_ms / 1000)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the HTTP service did not start")
        yield int(line)
        process.stdin.close()


def expected(records: int) -> list[int]:
    """Return number, sum, and weighted sum of the answers."""
    scores = [score(key) for key in range(records)]
    return [records, sum(scores), sum(key * score for key, score in enumerate(scores))]


class Comparison:
    """All sides, and what they said."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.contenders: list[str] = list(arguments.only)
        self.wrong: list[str] = []
        self.sides: dict[str, Side] = {}
        self.warm = False
        # pillarbox's records per second in the current setting, from the first request to the last result.
        self.spans: list[float] = []
        if "flink" in self.contenders:
            python = flink_python(arguments.flink_directory)
            if python is None:
                self.contenders.remove("flink")
            else:
                self.sides["flink"] = FlinkSide(python, "async_flink.py")
        for contender in self.contenders:
            if contender != "flink":
                self.sides[contender] = Side("--side", contender, "--memory", arguments.memory)

    def run(self, contender: str, setting: Setting, port: int | None, records: int, form: str, what: str) -> float:
        """Run a job and give its records per second; 0 if it failed."""
        work = {"latency": setting.latency_ms / 1000, "capacity": setting.capacity, "port": port}
        try:
            said = self.sides[contender].ask(work=work, records=records, form=form)
        except SystemExit as ended:
            if contender != "flink":
                raise
            said = {"error": str(ended)}
        label = f"  {setting.name:16}{CONTENDERS[contender]:32}{what:>9}"
        if "error" in said and contender == "flink":
            print(f"{said['error']}\nPyFlink is left out from here on, as it does not run")
            self.contenders.remove(contender)
            return 0
        if "error" in said:
            self.wrong.append(f"{setting.name}, {CONTENDERS[contender]}: {said['error']}")
            print(f"{label} FAILED", flush=True)
            return 0
        fits = said["results"] == expected(records)
        if not fits:
            self.wrong.append(f"{setting.name}, {CONTENDERS[contender]}: {said['results']}, not {expected(records)}")
        rate = records / float(said["seconds"])
        if contender == "pillarbox" and what != WARM_UP and said["span"]:
            self.spans.append(records / float(said["span"]))
        print(
            f"{label}{records:9,} records{said['seconds']:7.2f} s{rate:9,.0f} /s{rate / setting.ideal:8.1%}"
            + (f"{said['cpu'] / records * 1e6:7.0f} us CPU" if "cpu" in said else " " * 14)
            + ("" if fits else "  WRONG")
            + (f"  {form}" if contender == "gather" else ""),
            flush=True,
        )
        return rate

    def compare(self, setting: Setting) -> dict[str, Any]:
        """Run all contenders in turn in one setting."""
        records = setting.records(self.arguments)
        few = records if self.arguments.full else min(records, self.arguments.flink_records)
        rates: dict[str, list[float]] = {contender: [] for contender in self.contenders}
        rounds = {"flink": self.arguments.flink_rounds, "bare": 1}
        both: dict[str, float] = {}
        self.spans.clear()
        with service(setting) as port:
            self.warm_up(setting, port, max(records // 10, 2 * setting.capacity))
            for number in range(self.arguments.rounds):
                for contender in list(self.contenders):
                    if number >= rounds.get(contender, self.arguments.rounds):
                        continue
                    what, size = str(number + 1), few if contender == "flink" else records
                    if contender != "gather":
                        rates[contender].append(self.run(contender, setting, port, size, contender, what))
                    elif not both:
                        both = {form: self.run(contender, setting, port, size, form, what) for form in GATHER_FORMS}
                        rates[contender].append(max(both.values()))
                    else:
                        form = max(both, key=lambda form: both[form])
                        rates[contender].append(self.run(contender, setting, port, size, form, what))
        medians = {
            contender: statistics.median(values) for contender, values in rates.items() if values and all(values)
        }
        ours = medians.get("pillarbox")
        over = {}
        if ours:
            over = {name: ours / rate for name, rate in medians.items()}
            if "flink" in medians and self.spans:
                over["flink"] = statistics.median(self.spans) / medians["flink"]
        best = min((name for name in over if name in PEERS), key=lambda name: over[name], default=None)
        said: dict[str, Any] = {
            "records": records,
            "ideal": round(setting.ideal),
            "ratio": round(over[best], 3) if best else None,
            "best_peer": best,
            "pillarbox_over": {name: round(ratio, 3) for name, ratio in over.items() if name != "pillarbox"},
            "share_of_ideal": {name: round(rate / setting.ideal, 3) for name, rate in medians.items()},
            "records_per_s": {name: round(rate) for name, rate in medians.items()},
            "pillarbox_records_per_s_without_the_job": [round(rate) for rate in self.spans],
            "rounds": {name: [round(rate) for rate in values] for name, values in rates.items()},
        }
        if both:
            said["gather_forms_in_first_round"] = {form: round(rate) for form, rate in both.items()}
        print(f"\n{setting.name}: {records:,} records, ideal {setting.ideal:,.0f}/s", end="")
        print(f", gather's form: {max(both, key=lambda form: both[form])}" if both else "")
        print_table(
            ["records per second", "median", "lowest", "highest", "of the ideal", "pillarbox over it"],
            [
                [
                    CONTENDERS[name],
                    *spread(rates[name]),
                    f"{rate / setting.ideal:.1%}",
                    f"{over[name]:.3f}" if over else "",
                ]
                for name, rate in medians.items()
            ],
        )
        print(flush=True)
        return said

    def warm_up(self, setting: Setting, port: int | None, records: int) -> None:
        """Run each contender once, PyFlink only in the first setting: its jobs take long, and start cold anyway."""
        for contender in list(self.contenders):
            if contender == "flink" and self.warm:
                continue
            for form in GATHER_FORMS if contender == "gather" else (contender,):
                size = min(records, FLINK_WARM_UP) if contender == "flink" else records
                self.run(contender, setting, port, size, form, WARM_UP)
        self.warm = True

    def close(self) -> None:
        for side in self.sides.values():
            side.close()


def chosen(known: dict[str, Any]) -> Callable[[str], list[str]]:
    """Return a type for an argument: known names, with commas between."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        unknown = set(names) - set(known)
        if unknown or not names:
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: known are {', '.join(known)}")
        return [name for name in known if name in names]

    return parse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--settings", type=chosen(SETTINGS), default=list(SETTINGS), help="such as sleep/10/100,http/10/100"
    )
    parser.add_argument("--only", type=chosen(CONTENDERS), default=list(CONTENDERS), help="such as pillarbox,gather")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each contender in each setting that count")
    parser.add_argument("--seconds", type=float, default=5, help="how long the ideal takes for a run's records")
    parser.add_argument("--http-records", type=int, default=50_000, help="at most so many over HTTP")
    parser.add_argument("--records", type=int, help="so many everywhere")
    parser.add_argument("--full", action="store_true", help="100,000 records everywhere")
    parser.add_argument("--flink-records", type=int, default=15_000, help="at most so many for PyFlink")
    parser.add_argument("--flink-rounds", type=int, default=1, help="runs of PyFlink in each setting")
    parser.add_argument("--flink-directory", type=Path, default=DIRECTORY, help="its environment")
    parser.add_argument("--memory", default="1g", help="of each Spark")
    parser.add_argument("--side", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve(arguments.side, arguments.memory)
        return
    settings = [SETTINGS[name] for name in arguments.settings]
    if importlib.util.find_spec("aiohttp") is None and any(setting.service == "http" for setting in settings):
        print("HTTP is left out: aiohttp is not installed")
        settings = [setting for setting in settings if setting.service != "http"]
    uvloop = importlib.util.find_spec("uvloop") is not None
    print(f"event loops: {'uvloop' if uvloop else 'asyncio (uvloop is not installed)'}", flush=True)
    busy = os.getloadavg()[0]
    if busy > BUSY:
        print(f"NOTE: the machine is busy with other things (load {busy:.1f}): shares of the ideal will be too low")
    comparison = Comparison(arguments)
    said = {setting.name: comparison.compare(setting) for setting in settings}
    comparison.close()
    report(said, comparison, uvloop=uvloop, load_before=round(busy, 1))


def report(said: dict[str, dict[str, Any]], comparison: Comparison, **more: Any) -> None:
    names = comparison.contenders
    print_table(
        ["share of the ideal", *(name + " " for name in names), "pillarbox over the best of the four", "over bare"],
        [
            [
                setting,
                *(f"{each['share_of_ideal'][name]:.1%}" if name in each["share_of_ideal"] else "-" for name in names),
                f"{each['ratio']:.3f} ({each['best_peer']})" if each["ratio"] else "-",
                f"{each['pillarbox_over']['bare']:.3f}" if "bare" in each["pillarbox_over"] else "-",
            ]
            for setting, each in said.items()
        ],
    )
    for line in comparison.wrong:
        print(f"WRONG: {line}")
    ratios = [each["ratio"] for each in said.values() if each["ratio"]]
    finish(
        "async",
        min(ratios, default=0),
        share_of_ideal=said.get(HEADLINE, {}).get("share_of_ideal", {}).get("pillarbox"),
        results_agree=not comparison.wrong,
        pyflink="flink" in names,
        subtasks=SUBTASKS,
        settings=said,
        **more,
        spark=spark_version(),
    )
    if comparison.wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
