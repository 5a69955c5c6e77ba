# SPDX-License-Identifier: Apache-2.0
"""Async enrichment on Spark: pillarbox's ``map_async`` compared with handwritten alternatives, in records per second.

The work: for each of 100,000 records, one request to a service that answers after 10 ms or 100 ms, with at most 100 or
1,000 requests in flight per subtask, in two subtasks. The service is a sleep, or real HTTP: an aiohttp service on
loopback in a separate process. The ideal rate is ``subtasks * capacity / latency``. The results are pillarbox's share
of the ideal, and its rate divided by the rate of the best of four others:

  gather     ``asyncio.gather`` in ``mapInArrow``: per Arrow batch of ``capacity`` rows, or per large Arrow batch with
             a semaphore, whichever is faster in a setting's first round
  threads    a pool of ``capacity`` threads in ``mapInArrow``, which receives the next Arrow batch in good time
  udf        Spark's Arrow UDF with ``spark.sql.execution.pythonUDF.arrow.concurrency.level`` at ``capacity``, and a
             partition in one Arrow batch, because each batch of a UDF waits for its last row
  flink      PyFlink's ``AsyncDataStream.unordered_wait``, in its own virtual environment, which is created if missing;
             left out if that fails

These do not count in the ratio:

  keyed      pillarbox's ``process`` with ``async def``, 10,000 keys and a count per key in state: batch mode sorts the
             records by key first
  called     the same with ``ctx.call`` for each request
  recorded   the same with recorded answers

This shows the limit, once per setting, and does not count in the ratio either:

  bare       ``capacity`` coroutines in ``mapInArrow`` that process one record after another, without timeouts, retries
             and metrics; an error of one record fails all

pillarbox has its default settings: results in order, and a timeout of 5 seconds for each record. Event loops are
uvloop's if it is installed. Asyncio clients are aiohttp's with ``capacity`` connections; threads use ``http.client``,
the cheapest client, with one connection per thread.

Each side has its own Spark with two cores, a range of records in two partitions, and the sink ``noop``. The time is
from building the query to the end of the job, with warm Python workers: each run follows a tiny run that does not
count. PyFlink's jobs take seconds to start, so its time is only from the first request to the last result, with fewer
records; for this comparison, pillarbox is timed in the same way, too. Sides take turns, and the results are medians of
the rounds. Each run's output is checked: its number, and two sums over the answers.

At the longer latency, 100,000 records would take a minute per run. So a run has as many records as take ``--seconds``
at the ideal rate (twice that if the ideal is slow, because all sides come near it, and a job's fixed cost should weigh
little). Over HTTP, it has at most ``--http-records``, because two cores that both serve and send requests are far from
any ideal. With ``--records 100000``, all runs have that number (this takes most of an hour).

In the last line, ``ratio`` is pillarbox's records per second divided by the rate of the best of the four, the lowest of
all settings. ``share_of_ideal`` is pillarbox's at 10 ms and capacity 100 with a sleep.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from benchmarks.harness.case import Outcome, Result, shown
from benchmarks.harness.contest import Contest, add_names
from benchmarks.harness.machine import cpu_seconds
from benchmarks.harness.process import Side
from benchmarks.harness.rows import SUBTASKS
from benchmarks.harness.runners import Contender, Round, Runner
from benchmarks.harness.stepped import SparkSide
from benchmarks.harness.turns import rounded, table
from benchmarks.peers import lookups
from benchmarks.peers.environments import DIRECTORY, FLINK
from benchmarks.peers.lookups import SCHEMA, Stopwatch, Work, score, sums
from benchmarks.report.charts import draw_groups
from benchmarks.report.words import page
from pillarbox import Function, KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

# Records per second.
SLOW = 5_000
MOST_RECORDS = 100_000
# For the keyed function.
KEYS = 10_000
HEADLINE = "sleep/10/100"
# Records of the run before each run that counts, to start Python workers and import modules.
PRIMER = 200
FLINK_WARM_UP = 2_000
PEERS = ("gather", "threads", "udf", "flink")
CONTENDERS = {
    "pillarbox": Contender("pillarbox map_async", "ours"),
    "keyed": Contender("pillarbox process, async def", "ours"),
    "called": Contender("pillarbox process, ctx.call", "ours"),
    "recorded": Contender("pillarbox process, ctx.call recorded", "ours"),
    "gather": Contender("asyncio.gather in mapInArrow", "spark"),
    "threads": Contender("thread pool in mapInArrow", "spark"),
    "udf": Contender("Arrow UDF with concurrency", "spark"),
    "flink": Contender("PyFlink AsyncDataStream", "flink"),
    "bare": Contender("(bare loop in mapInArrow)", "limit"),
}
GATHER_FORMS = ("gather", "semaphore")
SMALL = {
    "settings": ["sleep/10/100"],
    "rounds": 1,
    "seconds": 1,
    "flink_records": 2_000,
    "only": ["pillarbox", "keyed", "gather", "threads", "udf", "bare"],
}


@dataclass(frozen=True)
class Setting:
    """A service, its latency, and the maximum number of requests in flight."""

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


# -- the contenders on Spark; peers/lookups.py has the contenders in mapInArrow --


class Lookup(Function):
    """Pillarbox's lookup, with a stopwatch. The HTTP client lives as long as the task."""

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


class KeyedLookup(KeyedProcessFunction):
    """The lookup with keyed state, which numbers the records of a key."""

    def __init__(self, work: Work) -> None:
        self.look_up = Lookup(work)

    async def open(self, ctx):
        self.count = ctx.get_state(ValueStateDescriptor("count", int, default=0))
        await self.look_up.open(ctx)

    async def close(self):
        await self.look_up.close()

    async def process_element(self, row, ctx):
        self.count.update(self.count.value() + 1)
        return [await self.look_up(row)]


class CalledLookup(KeyedLookup):
    """The keyed lookup with ``ctx.call``."""

    async def process_element(self, row, ctx):
        self.count.update(self.count.value() + 1)
        return [await ctx.call(self.request, row)]

    async def request(self, row):
        return await self.look_up(row)


def keyed_query(
    source: DataFrame,
    work: Work,
    function: type[KeyedLookup] = KeyedLookup,
    on_barrier: Literal["drain", "carry"] = "drain",
) -> DataFrame:
    env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession).set_parallelism(SUBTASKS)
    keyed = env.from_dataframe(source).key_by(lambda row: row.id % KEYS)
    return keyed.process(function(work), capacity=work.capacity, on_barrier=on_barrier).to_dataframe(SCHEMA)


def map_in_arrow(form: str) -> Callable[[DataFrame, Work], DataFrame]:
    look_up_all = getattr(lookups, form)

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
    "keyed": keyed_query,
    "called": partial(keyed_query, function=CalledLookup),
    # Carried records may run again, so their answers are recorded.
    "recorded": partial(keyed_query, function=CalledLookup, on_barrier="carry"),
    "udf": udf_query,
    **{form: map_in_arrow(form) for form in (*GATHER_FORMS, "threads", "bare")},
}


class Lookups(SparkSide):
    """A side that runs jobs on request."""

    def __init__(self, directory: str, memory: str, *, ours: bool) -> None:
        super().__init__(directory, {"spark__driver__memory": memory}, ours=ours)
        self._times = tempfile.TemporaryDirectory(prefix="bench-async-")

    def look_up(self, work: Mapping[str, Any], records: int, form: str) -> dict[str, Any]:
        """Run a job, after a tiny job that does not count. Returns its duration and output."""
        settings = Work(**work, times=self._times.name)
        self._run(form, settings, PRIMER)
        return self._run(form, settings, records)

    def _run(self, form: str, work: Work, records: int) -> dict[str, Any]:
        Stopwatch.reset_all(self._times.name)
        self.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10_000)
        before = cpu_seconds(os.getpid())
        start = time.perf_counter()
        result = QUERIES[form](self.spark.range(0, records, 1, SUBTASKS), work)
        observation = Observation()
        result.observe(
            observation,
            F.count(F.lit(1)).alias("n"),
            F.sum("score").alias("scores"),
            F.sum(F.col("id") * F.col("score")).alias("weighted"),
        ).write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - start
        observed = observation.get
        return {
            "seconds": seconds,
            "span": Stopwatch.read_all(self._times.name),
            "cpu": cpu_seconds(os.getpid()) - before,
            "results": [observed["n"], observed["scores"], observed["weighted"]],
        }


# -- the comparison --


@contextmanager
def service(setting: Setting) -> Iterator[int | None]:
    """Run the service within the block. Yields its port."""
    if setting.service != "http":
        yield None
        return
    command = [sys.executable, "-m", "benchmarks.peers.http_service", "--latency", str(setting.latency_ms / 1000)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the HTTP service did not start")
        yield int(line)
        process.stdin.close()


class LookupRunner(Runner):
    """A contender in a setting. Both forms of ``gather`` run in the first round, then only the faster form."""

    contest: LookupContest

    def __init__(self, contest: LookupContest, name: str) -> None:
        super().__init__(contest, name)
        flink = self.contender.kind == "flink"
        self.side = contest.jobs(name, "flink")[0] if flink else contest.process(name, self.contender.kind)
        self.forms = [*GATHER_FORMS] if name == "gather" else [name]
        arguments = contest.arguments
        self.records = min(contest.keys, arguments.flink_records) if flink else contest.keys
        self.rounds = 1 if flink or name == "bare" else arguments.rounds
        self.form, self.size = name, 0
        # Records per second from the first request to the last result, of each round that counts.
        self.spans: list[float] = []

    def measure(self) -> tuple[Round, str, str]:
        setting = self.contest.setting
        work = {"latency": setting.latency_ms / 1000, "capacity": setting.capacity, "port": self.contest.port}
        answer = self.side.ask("look_up", work=work, records=self.size, form=self.form)
        expected = sums((key, score(key)) for key in range(self.size))
        wrong = "" if answer["results"] == expected else f"{answer['results']}, not {expected}"
        done = Round(self.size, 1000 * answer["seconds"], answer.get("cpu"))
        self.spans += [self.size / answer["span"]] if answer.get("span") else []
        return done, f"{done.rate / setting.ideal:.1%} of the ideal, {self.form}", wrong

    def warm_up(self) -> None:
        # PyFlink only in the first setting: its jobs take long, and start cold anyway.
        if self.contender.kind == "flink" and self.contest.done:
            return
        self.size = max(self.contest.keys // 10, 2 * self.contest.setting.capacity)
        if self.contender.kind == "flink":
            self.size = min(self.size, FLINK_WARM_UP)
        for form in self.forms:
            self.form = form
            self.run(counts=False)
        self.spans.clear()

    def turn(self) -> None:
        if len(self.counted) >= self.rounds:
            return
        self.size = self.records
        rates = {}
        for form in self.forms:
            self.form = form
            rates[form] = self.run(counts=True).rate
        if len(rates) > 1:
            self.contest.forms[self.contest.name] = rounded(rates)
            self.forms = [max(rates, key=rates.__getitem__)]
            self.counted = [max(self.counted, key=lambda round_: round_.rate)]
        if self.name == "pillarbox":
            self.contest.spans[self.contest.name] = self.spans


class LookupContest(Contest):
    """A contest in all settings."""

    contenders = CONTENDERS
    of = "records"

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        super().__init__(arguments, directory)
        self.port: int | None = None
        self.forms: dict[str, dict[str, float]] = {}
        self.spans: dict[str, list[float]] = {}

    @property
    def setting(self) -> Setting:
        """The setting of the current comparison."""
        return SETTINGS[self.name]

    @property
    def title(self) -> str:
        return f"at best {self.setting.ideal:,.0f} records a second"

    @property
    def keys(self) -> int:
        return self.setting.records(self.arguments)

    def new_batches(self, share: int, path: Path) -> Any:
        """Return nothing, because records are numbers."""

    def runner(self, kind: str) -> Callable[[Any, str], Runner]:
        return LookupRunner

    def new_process(self, name: str, kind: str) -> Side:
        path = self.directory / f"spark-{name}"
        return Side(Lookups, directory=path, memory=self.arguments.memory, ours=kind == "ours")

    def new_jobs(self, name: str, kind: str) -> list[Side]:
        return [FLINK.side("benchmarks.peers.flink_jobs:Lookups", self.directory_of(FLINK))]

    def do_work(self, sides: Sequence[str], peers: Sequence[str]) -> None:
        with service(self.setting) as self.port:
            super().do_work(sides, peers)

    def compared(self, work: str) -> dict[str, Any]:
        """Return the figures of a setting."""
        figures = self.figures(work, ["pillarbox"] if "pillarbox" in self.done[work] else [])
        rates, over = figures["rows_per_s"], dict(figures["over"].get("pillarbox", {}))
        spans = self.spans.get(work, [])
        if "flink" in over and spans:
            over["flink"] = round(statistics.median(spans) / rates["flink"], 3)
        best = min((name for name in over if name in PEERS), key=over.__getitem__, default=None)
        return {
            "records": self.keys,
            "ideal": round(self.setting.ideal),
            "ratio": over[best] if best else None,
            "best_peer": best,
            "pillarbox_over": over,
            "share_of_ideal": {name: round(rate / self.setting.ideal, 3) for name, rate in rates.items()},
            "records_per_s": rates,
            "pillarbox_records_per_s_without_the_job": rounded(spans),
            "rounds": figures["rounds"],
            **({"gather_forms_in_first_round": self.forms[work]} if work in self.forms else {}),
        }


def options(parser: argparse.ArgumentParser) -> None:
    add_names(parser, "--settings", SETTINGS)
    add_names(parser, "--only", CONTENDERS)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each contender in each setting that count")
    parser.add_argument("--seconds", type=float, default=5, help="how long the ideal takes for a run's records")
    parser.add_argument("--http-records", type=int, default=50_000, help="at most so many over HTTP")
    parser.add_argument("--records", type=int, help="so many everywhere")
    parser.add_argument("--flink-records", type=int, default=15_000, help="at most so many for PyFlink")
    parser.add_argument("--environments", type=Path, default=DIRECTORY, help="of the peers, made when missing")
    parser.add_argument("--memory", default="1g", help="of each Spark")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    settings = [SETTINGS[name] for name in arguments.settings]
    if importlib.util.find_spec("aiohttp") is None and any(setting.service == "http" for setting in settings):
        print("HTTP is left out: aiohttp is not installed")
        settings = [setting for setting in settings if setting.service != "http"]
    uvloop = importlib.util.find_spec("uvloop") is not None
    print(f"event loops: {'uvloop' if uvloop else 'asyncio (uvloop is not installed)'}", flush=True)
    contest = LookupContest(arguments, directory)
    contest.run([setting.name for setting in settings], [], arguments.only)
    compared = {work: contest.compared(work) for work in contest.done}
    figures = {
        "share_of_ideal": compared.get(HEADLINE, {}).get("share_of_ideal", {}).get("pillarbox"),
        "pyflink": "flink" in arguments.only and "flink" not in contest.left_out,
        "subtasks": SUBTASKS,
        "settings": compared,
        "uvloop": uvloop,
    }
    ratio = min((figures["ratio"] for figures in compared.values() if figures["ratio"]), default=0)
    return Outcome("async", ratio, figures, contest.wrong)


def present(result: Result, charts: Path | None) -> str:
    settings = result["settings"]
    names = list(dict.fromkeys(name for figures in settings.values() for name in figures["share_of_ideal"]))
    shares = {
        setting: {name: 100 * figures["share_of_ideal"].get(name, 0) for name in names if name != "bare"}
        for setting, figures in settings.items()
    }
    title = "service / latency in ms / requests at a time: share of the ideal"
    rows = [
        [
            setting,
            f"{figures['ideal']:,}",
            *(f"{figures['share_of_ideal'][name]:.1%}" if name in figures["share_of_ideal"] else "" for name in names),
            f"{figures['ratio']:.3f} ({figures['best_peer']})" if figures["ratio"] else "",
        ]
        for setting, figures in settings.items()
    ]
    return page(
        draw_groups(charts, "async", title, shares, "percent"),
        table(["setting", "ideal a second", *names, "over the best peer"], rows),
    )


BLOCKS = {"async": shown(present, "async")}
