# SPDX-License-Identifier: Apache-2.0
"""The latency of a record from source to sink, at 500 records per second, compared with ``transformWithState``.

The program counts 1,000 keys, and emits a key's count for each row. The source is Spark's socket source, the trigger is
the default trigger, and the sink is a ``foreachBatch`` function that collects its rows. A record contains the time when
it was written to the socket (ten at a time). Its latency ends when it reaches the sink.

Each side has its own Spark, with two cores and two subtasks. The sides take turns of some seconds, in which one
receives records and the other is idle. The first turn of each side warms up. The result is the median over all records
of the other turns. Spark's side uses Spark's row API. The results are checked: the sink must receive each key's counts
1, 2, 3 and so on.

In the last line, ``ratio`` is the median latency of pillarbox divided by the median latency of ``transformWithState``.
"""

from __future__ import annotations

import argparse
import socket
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.harness.case import Block, Outcome, Result, Results, shown
from benchmarks.harness.process import Side
from benchmarks.harness.stepped import SparkSide, step_settings
from benchmarks.harness.turns import rounded, table, turns
from benchmarks.peers.counts import Count, SparkCount, count
from benchmarks.report.charts import draw_groups
from benchmarks.report.words import page, paragraph

SIDES = {"pillarbox": "pillarbox", "spark": "transformWithState"}
OUTPUT = "key INT, sent LONG, n LONG"
AT_ONCE = 10
PERCENTILES = (50, 90, 99)
SMALL = {"turns": 2, "seconds": 4.0}


def result(side: str, source: DataFrame) -> DataFrame:
    if side == "pillarbox":
        return count(source, OUTPUT, Count("sent"))
    return source.groupBy("key").transformWithState(SparkCount("sent"), OUTPUT, "append", "None")


# -- one side, in its own process --


class Sender:
    """The other end of the socket source."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()
        self._sent = 0

    def _accept(self) -> None:
        while True:
            # Spark first probes the address, and then connects permanently.
            self._connections.append(self._server.accept()[0])

    def send(self, rate: int, seconds: float, keys: int) -> int:
        """Send records evenly, at a rate. Returns their number."""
        while not self._connections:
            time.sleep(0.05)
        started = time.perf_counter()
        count = int(rate * seconds) // AT_ONCE * AT_ONCE
        for number in range(0, count, AT_ONCE):
            time.sleep(max(0.0, started + number / rate - time.perf_counter()))
            now = time.time_ns()
            lines = [f"{(self._sent + offset) * 7919 % keys},{now}\n" for offset in range(AT_ONCE)]
            self._sent += AT_ONCE
            self._connections[-1].sendall("".join(lines).encode())
        return count


class Latencies(SparkSide):
    """A side with a sender and a query that collects its rows."""

    def __init__(self, side: str, directory: str, memory: str) -> None:
        settings = step_settings(memory)
        settings["spark__sql__streaming__pollingDelay"] = "10ms"  # Spark's own
        super().__init__(directory, settings, ours=side == "pillarbox")
        self._sender = Sender()
        lines = self.spark.readStream.format("socket").option("host", "127.0.0.1").option("port", self._sender.port)
        fields = F.split("value", ",")
        source = lines.load().select(fields[0].cast("int").alias("key"), fields[1].cast("long").alias("sent"))
        self._latencies: list[float] = []
        self._batches: list[int] = []
        self._seen: dict[int, list[int]] = defaultdict(list)
        writer = result(side, source).writeStream.foreachBatch(self._take)
        self._query = writer.option("checkpointLocation", f"{directory}/checkpoint").start()

    def _take(self, batch: DataFrame, _: int) -> None:
        rows = batch.collect()
        now = time.time_ns()
        self._batches.append(len(rows))
        self._latencies.extend((now - row.sent) / 1e6 for row in rows)
        for row in rows:
            self._seen[row.key].append(row.n)

    def turn(self, rate: int, seconds: float, keys: int) -> dict[str, Any]:
        """Send records for some time. Returns their latencies (ms)."""
        self._latencies.clear()
        self._batches.clear()
        sent = self._sender.send(rate, seconds, keys)
        deadline = time.monotonic() + 60
        while len(self._latencies) < sent and time.monotonic() < deadline and self._query.isActive:
            time.sleep(0.05)
        counts = (sorted(ns) == list(range(1, len(ns) + 1)) for ns in self._seen.values())
        agrees = len(self._latencies) == sent and all(counts)
        batches = sum(1 for rows in self._batches if rows)
        return {"latencies": self._latencies, "batches": batches, "agrees": agrees, "sent": sent}

    def close(self) -> None:
        """Stop the query and Spark."""
        self._query.stop()
        super().close()


# -- both sides --


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=int, default=500, help="records per second")
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10, help="of a turn")
    parser.add_argument("--turns", type=int, default=4, help="turns of each side that count")
    parser.add_argument("--memory", default="1g", help="of each Spark")


def percentile(latencies: list[float], percent: int) -> float:
    return sorted(latencies)[min(len(latencies) - 1, len(latencies) * percent // 100)]


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    sides = {side: Side(Latencies, side=side, directory=directory / side, memory=arguments.memory) for side in SIDES}
    rounds: dict[str, list[list[float]]] = {side: [] for side in sides}
    batches = dict.fromkeys(sides, 0)
    wrong: list[str] = []
    for index, side in turns(sides, arguments.turns):
        answer = sides[side].ask("turn", rate=arguments.rate, seconds=arguments.seconds, keys=arguments.keys)
        if not answer["agrees"]:
            wrong.append(f"{SIDES[side]}, turn {index}: {len(answer['latencies']):,} of {answer['sent']:,} records")
        if index >= 0:
            rounds[side].append(answer["latencies"])
            batches[side] += answer["batches"]
    for process in sides.values():
        process.close()
    every = {side: [milliseconds for latencies in rounds[side] for milliseconds in latencies] for side in sides}
    p50s = {side: [percentile(latencies, 50) for latencies in rounds[side]] for side in sides}
    latency = {side: {f"p{p}": percentile(every[side], p) for p in PERCENTILES} for side in sides}
    ours, theirs = latency["pillarbox"], latency["spark"]
    figures = {
        "p99_ratio": round(ours["p99"] / theirs["p99"], 3),
        "latency_ms": rounded(latency),
        "p50_of_turns": rounded(p50s),
        "lowest_turns_ratio": round(min(p50s["pillarbox"]) / min(p50s["spark"]), 3),
        "batches_per_s": rounded({side: n / (arguments.turns * arguments.seconds) for side, n in batches.items()}, 1),
        "rate": arguments.rate,
        "keys": arguments.keys,
    }
    return Outcome("latency", ours["p50"] / theirs["p50"], figures, wrong)


# -- pages --


def present(result: Result, charts: Path | None) -> str:
    of = result["latency_ms"]
    points = list(of["pillarbox"])
    groups = {p: {side: of[side][p] for side in of} for p in points}
    title = f"source to sink, {result['rate']:,} rows a second"
    rows = [[side, *(f"{of[side][p]:,}" for p in points)] for side in of]
    rows.append(["pillarbox over Spark's", *(f"{of['pillarbox'][p] / of['spark'][p]:.2f}" for p in points)])
    return page(draw_groups(charts, "latency", title, groups, "milliseconds"), table(["milliseconds", *points], rows))


def in_words(results: Results) -> str:
    result = results["latency"]
    ours, theirs = result["latency_ms"]["pillarbox"], result["latency_ms"]["spark"]
    return paragraph(
        f"At {result['rate']:,} records a second (`make bench-latency`), the median latency from the source to the sink"
        f" is {ours['p50']} ms with pillarbox and {theirs['p50']} ms with `transformWithState` (ratio"
        f" {ours['p50'] / theirs['p50']:.2f}). The 99th percentile is {ours['p99']} ms with pillarbox and"
        f" {theirs['p99']} ms with `transformWithState` (ratio {ours['p99'] / theirs['p99']:.2f})."
    )


BLOCKS = {"latency": shown(present, "latency"), "latency in words": Block(in_words, ("latency",))}
