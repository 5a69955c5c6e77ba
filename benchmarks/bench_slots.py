# SPDX-License-Identifier: Apache-2.0
"""What task slots cost: the same work with 8 partitions on 2, 8 and 16 of them.

A keyed count over 400,000 keys works off 24 micro-batches of 100,000 rows. Each side is a Spark of its own, one after
the other, and then once more in reverse order; the mean counts. Python processes are all that Spark and pillarbox
start: workers, which are relays; homes; and the process that makes homes. Their processor time per micro-batch is
taken over the second half. Their memory is the proportional one (``Pss``), at the end, less the memory of the same
query whose function keeps no state.

``--works many`` runs 64 partitions with three keyed levels on two slots, with homes and without: ``ratio`` is
their memory. ``--works broadcast`` has 200,000 broadcast rules at the default max parallelism and at two. ``--works
cluster --revision REVISION`` compares this checkout with another revision on two executors with four slots each, with
1,000,000 keys and an uneven load: ``ratio`` divides the 99th percentiles of epochs' times, and ``moves`` how often a
key was on another executor than in the epoch before.

Run it with ``python benchmarks/bench_slots.py`` (Linux: it reads /proc). The last line of the output is one JSON
object: ``ratio`` is the processor time with 8 slots over that with 2, ``memory_ratio`` the memory; ``in_step`` is the
share of subtasks' epochs with 8 slots, in the second half, that read nothing but the head of their log.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import (
    ROOT,
    SOURCE,
    descendants,
    find_pillarbox,
    finish,
    kind_of_python,
    print_table,
    revision_source,
)

find_pillarbox()

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pillarbox
from pillarbox import (
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    local_session,
)

_TICKS = os.sysconf("SC_CLK_TCK")
RULES = MapStateDescriptor("rules")


class Count(KeyedProcessFunction):
    """Counts the rows of a key."""

    def __init__(self, *, keeps: bool) -> None:
        self.keeps = keeps

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))

    def process_element(self, row, ctx):
        if self.keeps:
            self.n.update((self.n.value() or 0) + 1)
        if row.key < 4:
            yield row.key, os.getpid()


class Pass(KeyedProcessFunction):
    """Hands rows on, and counts them."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))

    def process_element(self, row, ctx):
        self.n.update((self.n.value() or 0) + 1)
        yield row


class Where(KeyedProcessFunction):
    """Counts the rows of a key, and says of some on which executor: each has a folder of its own."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))

    def process_element(self, row, ctx):
        self.n.update((self.n.value() or 0) + 1)
        if row.key % 20_000 == 0:
            yield row.key, int(os.path.basename(os.getcwd()))


class Rule(KeyedBroadcastProcessFunction):
    """Keeps all rules."""

    def process_element(self, row, ctx):
        yield row.key, os.getpid()

    def process_broadcast_element(self, row, ctx):
        ctx.get_broadcast_state(RULES).put(row.key, "a rule of some length, as rules are")


def pythons() -> dict[int, str]:
    """Return the Python processes below this one, each with what it is."""
    kinds = ((pid, kind_of_python(pid)) for pid in descendants(os.getpid()))
    return {pid: kind for pid, kind in kinds if kind is not None}


def memory_mb(pid: int, kind: str) -> float:
    """Return the memory of a process: ``Pss:``, its proportional share; ``Private_``, what it shares with nobody."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(kind)) / 1024


def processor_s(pids: Any) -> float:
    """Return the processor time of processes."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def cluster_side(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run one query on two executors in this process; return its epochs' times (ms), and how often keys moved."""
    spark = local_session(
        8,
        spark__master="local-cluster[2,4,2048]",
        spark__sql__shuffle__partitions="8",
        spark__local__dir=str(folder / "local"),
        spark__sql__streaming__numRecentProgressUpdates="1000",
    )
    (folder / "in").mkdir()
    rng, keys, loads = np.random.default_rng(1), 1_000_000, 8
    for epoch in range(loads + arguments.epochs):
        if epoch < loads:  # all keys come
            given = np.arange(keys)[epoch::loads]
        else:
            given = np.minimum(rng.zipf(1.3, 30_000) * 7919 % keys, keys - 1)
            given[:7_500] = rng.integers(0, keys, 7_500)
            given[:50] = np.arange(50) * 20_000
        pq.write_table(pa.table({"key": given.astype("int64")}), folder / "in" / f"{epoch:04}.parquet")
    rows = spark.readStream.schema("key LONG").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(8).set_max_parallelism(16)
    frame = env.from_dataframe(rows).key_by("key").process(Where()).uid("count").to_dataframe("key LONG, at LONG")
    places: dict[int, int] = {}
    moves = [0]

    def take(batch: Any, number: int) -> None:
        for key, at in set(map(tuple, batch.collect())):
            moves[0] += places.setdefault(key, at) != at
            places[key] = at

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint"))
    query = pillarbox.start(writer.trigger(availableNow=True))
    query.awaitTermination()
    times = [progress.durationMs["triggerExecution"] for progress in query.recentProgress if progress.numInputRows]
    return {"times": times[loads + 2 :], "moves": moves[0]}


def side(work: str, slots: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run one query in this process, and return what its Python processes took."""
    if work == "cluster":
        return cluster_side(arguments, folder)
    parts = 64 if work.startswith("many") else 2 if work.startswith("broadcast") else arguments.partitions
    settings = {"spark__driver__memory": "4g", "spark__local__dir": str(folder / "local")}
    if work == "many without homes":
        settings["spark__pillarbox__homes"] = "off"
    spark = local_session(slots, spark__sql__shuffle__partitions=str(parts), **settings)
    (folder / "in").mkdir()
    rng = np.random.default_rng(1)
    for epoch in range(arguments.epochs):
        keys = rng.integers(0, arguments.keys, arguments.rows)
        pq.write_table(pa.table({"key": keys.astype("int64")}), folder / "in" / f"{epoch:04}.parquet")
    rows = spark.readStream.schema("key LONG").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(parts)
    stream = env.from_dataframe(rows)
    if work.startswith("broadcast"):
        if work == "broadcast 2":
            env.set_max_parallelism(2)
        (folder / "rules").mkdir()
        table = pa.table({"key": np.arange(arguments.rules).astype("int64")})
        pq.write_table(table, folder / "rules" / "0.parquet")
        rules = env.from_dataframe(spark.readStream.schema("key LONG").parquet(str(folder / "rules")))
        out = stream.key_by("key").connect(rules.broadcast(RULES)).process(Rule()).uid("rules")
    else:
        if work.startswith("many"):
            env.set_max_parallelism(64)
            for level in ("one", "two"):
                stream = stream.key_by("key").process(Pass()).uid(level)
        else:
            env.set_max_parallelism(parts)
        out = stream.key_by("key").process(Count(keeps=work != "empty")).uid("count")
    processor, memory, last, epochs = [], [0.0], [0], []
    own: dict[str, list[float]] = {"worker": [], "home": []}  # homes end with the query

    def take(batch: Any, number: int) -> None:
        batch.collect()
        present = pythons()
        last[0] = len(present)
        processor.append(processor_s(present))
        if number >= arguments.epochs - 2:
            memory[0] = sum(memory_mb(pid, "Pss:") for pid in present)
            for kind in own:
                own[kind] = [memory_mb(pid, "Private_") for pid in present if present[pid] == kind]

    writer = out.to_dataframe("key LONG, pid LONG").writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    query = pillarbox.start(writer)
    query.awaitTermination()
    for progress in query.recentProgress[arguments.epochs // 2 :]:
        epochs += [task.state_sync == "in step" for task in pillarbox.metrics(progress) if task.level]
    half = len(processor) // 2
    log = sum(path.stat().st_size for path in (folder / "checkpoint" / "state").rglob("*") if path.is_file())
    return {
        "cpu_ms": 1000 * (processor[-1] - processor[half]) / (len(processor) - 1 - half),
        "pss_mb": memory[0],
        "in_step": statistics.fmean(epochs) if epochs else 0.0,
        "processes": last[0],
        "relay_mb": statistics.median(own["worker"]) if own["worker"] else 0.0,
        "home_mb": statistics.median(own["home"]) if own["home"] else 0.0,
        "checkpoint_mb": log / 1e6,
    }


def run_side(work: str, slots: int, arguments: list[str], source: Path = SOURCE) -> dict[str, Any]:
    """Run one query in a process of its own, with the pillarbox of a source tree."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [source, ROOT]))}
    command = [sys.executable, os.path.abspath(__file__), "--side", work, "--slots", str(slots), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_sides(works: list[tuple[str, int]], arguments: list[str]) -> dict[tuple[str, int], dict[str, Any]]:
    """Run queries one after the other."""
    return {(work, slots): run_side(work, slots, arguments) for work, slots in works}


def compare_on_cluster(arguments: argparse.Namespace, given: list[str]) -> None:
    """Compare this checkout with a revision on two executors, twice each, in turns."""
    if arguments.revision is None:
        raise SystemExit("--works cluster compares with a --revision")
    with revision_source(arguments.revision) as revision:
        order = [("this", SOURCE), ("revision", revision), ("revision", revision), ("this", SOURCE)]
        found = [(name, run_side("cluster", 4, given, source)) for name, source in order]
    times: dict[str, list[int]] = {"this": [], "revision": []}
    moves = {"this": 0, "revision": 0}
    for name, one in found:
        times[name] += one["times"]
        moves[name] += one["moves"]
    p50 = {name: float(np.median(several)) for name, several in times.items()}
    p99 = {name: float(np.percentile(several, 99)) for name, several in times.items()}
    print_table(
        ["", "p50 (ms)", "p99 (ms)", "moves"],
        [[name, f"{p50[name]:,.0f}", f"{p99[name]:,.0f}", moves[name]] for name in times],
    )
    finish(
        "slots-cluster",
        p99["this"] / p99["revision"],
        p50_ratio=round(p50["this"] / p50["revision"], 3),
        moves=moves["this"],
    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", choices=["slots", "many", "broadcast", "cluster"], default="slots")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--keys", type=int, default=400_000)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rules", type=int, default=200_000)
    parser.add_argument("--revision", help="what to compare with, for the work cluster")
    parser.add_argument("--side")
    parser.add_argument("--slots", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.side is not None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            print(json.dumps(side(arguments.side, arguments.slots, arguments, Path(folder))), flush=True)
            os._exit(0)
    given = [f"--{name}={getattr(arguments, name)}" for name in ("partitions", "epochs", "keys", "rows", "rules")]
    if arguments.works == "cluster":
        compare_on_cluster(arguments, given)
        return
    works = {
        "slots": [("work", 2), ("work", 8), ("work", 16), ("empty", 2), ("empty", 8)],
        "many": [("many", 2), ("many without homes", 2)],
        "broadcast": [("broadcast", 2), ("broadcast 2", 2)],
    }[arguments.works]
    rounds = [run_sides(works, given), run_sides(works[::-1], given)]
    names = ["cpu_ms", "pss_mb", "in_step", "processes", "relay_mb", "home_mb", "checkpoint_mb"]
    found = {key: {name: statistics.fmean(each[key][name] for each in rounds) for name in names} for key in works}
    lines = [
        [f"{work}, {slots} slots", *(f"{one[name]:,.2f}" for name in names)] for (work, slots), one in found.items()
    ]
    print_table(["", *names], lines)
    if arguments.works == "slots":
        two, eight = found["work", 2], found["work", 8]
        kept = {slots: found["work", slots]["pss_mb"] - found["empty", slots]["pss_mb"] for slots in (2, 8)}
        more = {"memory_ratio": round(kept[8] / kept[2], 3), "in_step": round(eight["in_step"], 4)}
        more |= {name: round(found["empty", 8][name], 1) for name in ("relay_mb", "home_mb")}
        finish("slots", eight["cpu_ms"] / two["cpu_ms"], **more)
    elif arguments.works == "many":
        finish("slots-many", found["many", 2]["pss_mb"] / found["many without homes", 2]["pss_mb"])
    else:
        by_default, by_two = found["broadcast", 2], found["broadcast 2", 2]
        checkpoint_ratio = round(by_default["checkpoint_mb"] / by_two["checkpoint_mb"], 3)
        finish("slots-broadcast", by_default["pss_mb"] / by_two["pss_mb"], checkpoint_ratio=checkpoint_ratio)


if __name__ == "__main__":
    main()
