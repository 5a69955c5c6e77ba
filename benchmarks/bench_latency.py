# SPDX-License-Identifier: Apache-2.0
"""How long a record takes from the source to the sink, at 500 records a second, beside ``transformWithState``.

A count per key, of 1,000 keys: each row gives its key's count. The source is Spark's socket source, the trigger is the
default one, the sink a ``foreachBatch`` function that collects its rows. A record carries the time at which it was
written to the socket, ten at a time; its latency ends when the sink has it.

Each side has a Spark of its own, with two cores and two subtasks. They take turns of some seconds, in which one is
sent records and the other is idle; the first turn of each warms up. What counts is the median over all records of the
turns that count. Spark's side is its row flavour. The results are checked: each key's rows must come out with the
counts 1, 2, 3 and so on.

Run it with ``make bench-latency`` or ``python benchmarks/bench_latency.py``. The last line of the output is one JSON
object; ``ratio`` is the median latency of pillarbox over that of ``transformWithState``.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import (
    AS_SPARK_COMES,
    Side,
    answer,
    find_pillarbox,
    finish,
    print_table,
    questions,
    spark_version,
    step_settings,
)

find_pillarbox()

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor, local_session

SIDES = {"pillarbox": "pillarbox", "spark": "transformWithState"}
OUTPUT = "key INT, sent LONG, n LONG"
AT_ONCE = 10


class Count(KeyedProcessFunction):
    """Each row gives its key's count."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))

    def process_element(self, row, ctx):
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        yield row.key, row.sent, n


class SparkCount(StatefulProcessor):
    """The same in Spark's row flavour."""

    def init(self, handle):
        self.n = handle.getValueState("n", "n LONG")

    def handleInputRows(self, key, rows, timerValues):
        state = self.n.get()
        n = 0 if state is None else state[0]
        for row in rows:
            n += 1
            yield Row(key=key[0], sent=row[1], n=n)
        self.n.update((n,))

    def close(self):
        pass


def result(side: str, source: DataFrame) -> DataFrame:
    if side == "pillarbox":
        env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession)
        return env.from_dataframe(source).key_by("key").process(Count()).to_dataframe(OUTPUT)
    return source.groupBy("key").transformWithState(SparkCount(), OUTPUT, "append", "None")


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
            # Spark looks whether there is somebody, and then connects for good.
            self._connections.append(self._server.accept()[0])

    def send(self, rate: int, seconds: float, keys: int) -> int:
        """Send records at a rate, evenly; give their number."""
        while not self._connections:
            time.sleep(0.05)
        started = time.perf_counter()
        count = int(rate * seconds) // AT_ONCE * AT_ONCE
        for number in range(0, count, AT_ONCE):
            time.sleep(max(0.0, started + number / rate - time.perf_counter()))
            now = time.time_ns()
            lines = [f"{(self._sent + each) * 7919 % keys},{now}\n" for each in range(AT_ONCE)]
            self._sent += AT_ONCE
            self._connections[-1].sendall("".join(lines).encode())
        return count


def serve(side: str, directory: Path, memory: str) -> None:
    settings = step_settings(directory, memory)
    settings["spark__sql__streaming__pollingDelay"] = "10ms"  # Spark's own
    if side != "pillarbox":
        settings |= AS_SPARK_COMES
    spark = local_session(2, **settings)
    sender = Sender()
    lines = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", sender.port).load()
    fields = F.split("value", ",")
    source = lines.select(fields[0].cast("int").alias("key"), fields[1].cast("long").alias("sent"))
    latencies: list[float] = []
    batches: list[int] = []
    seen: dict[int, list[int]] = defaultdict(list)

    def take(batch: DataFrame, _: int) -> None:
        rows = batch.collect()
        now = time.time_ns()
        batches.append(len(rows))
        latencies.extend((now - row.sent) / 1e6 for row in rows)
        for row in rows:
            seen[row.key].append(row.n)

    query = (
        result(side, source)
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )
    for question in questions():
        latencies.clear()
        batches.clear()
        sent = sender.send(question["rate"], question["seconds"], question["keys"])
        deadline = time.monotonic() + 60
        while len(latencies) < sent and time.monotonic() < deadline and query.isActive:
            time.sleep(0.05)
        agrees = len(latencies) == sent and all(sorted(ns) == list(range(1, len(ns) + 1)) for ns in seen.values())
        answer(latencies=latencies, batches=sum(1 for rows in batches if rows), agrees=agrees, sent=sent)
    query.stop()
    spark.stop()


# -- both sides --


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", type=int, default=500, help="records per second")
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10, help="of a turn")
    parser.add_argument("--turns", type=int, default=4, help="turns of each side that count")
    parser.add_argument("--memory", default="1g", help="of each Spark")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve(arguments.side, arguments.directory, arguments.memory)
        return
    with tempfile.TemporaryDirectory(prefix="bench-latency-") as directory:
        compare(arguments, Path(directory))


def compare(arguments: argparse.Namespace, directory: Path) -> None:
    sides: dict[str, Side] = {}
    for side in SIDES:
        (directory / side).mkdir()
        sides[side] = Side("--side", side, "--directory", str(directory / side), "--memory", arguments.memory)
    turns: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    wrong: list[str] = []
    for index in range(-1, arguments.turns):
        # Alternating, and every other round backwards, so that neither gains by its place.
        for side in list(sides) if index % 2 else reversed(list(sides)):
            said = sides[side].ask(rate=arguments.rate, seconds=arguments.seconds, keys=arguments.keys)
            if not said["agrees"]:
                wrong.append(f"{SIDES[side]}, turn {index}: {len(said['latencies']):,} of {said['sent']:,} records")
            if index >= 0:  # the turn before that warms up
                turns[side].append(said)
    for process in sides.values():
        process.close()

    def percentile(latencies: list[float], percent: int) -> float:
        return sorted(latencies)[min(len(latencies) - 1, len(latencies) * percent // 100)]

    every = {side: [each for said in turns[side] for each in said["latencies"]] for side in sides}
    p50s = {side: [percentile(said["latencies"], 50) for said in turns[side]] for side in sides}
    figures = {side: {p: percentile(latencies, p) for p in (50, 90, 99)} for side, latencies in every.items()}
    seconds = arguments.turns * arguments.seconds
    print_table(
        ["latency, ms", "p50", "p90", "p99", "highest", "p50 of turns from", "to", "micro-batches/s"],
        [
            [
                SIDES[side],
                *(f"{value:,.0f}" for value in figures[side].values()),
                f"{max(every[side]):,.0f}",
                f"{min(p50s[side]):,.0f}",
                f"{max(p50s[side]):,.0f}",
                f"{sum(said['batches'] for said in turns[side]) / seconds:.1f}",
            ]
            for side in sides
        ],
    )
    ratios = {p: figures["pillarbox"][p] / figures["spark"][p] for p in (50, 90, 99)}
    print(f"pillarbox over {SIDES['spark']}: {ratios[50]:.2f} at the median, {ratios[99]:.2f} at the 99th percentile")
    for line in wrong:
        print(f"WRONG RESULTS: {line}")
    finish(
        "latency",
        ratios[50],
        results_agree=not wrong,
        p99_ratio=round(ratios[99], 3),
        latency_ms={side: {f"p{p}": round(value) for p, value in said.items()} for side, said in figures.items()},
        p50_of_turns={side: [round(value) for value in values] for side, values in p50s.items()},
        lowest_turns_ratio=round(min(p50s["pillarbox"]) / min(p50s["spark"]), 3),
        rate=arguments.rate,
        keys=arguments.keys,
        spark=spark_version(),
    )
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
