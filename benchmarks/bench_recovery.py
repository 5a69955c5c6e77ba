# SPDX-License-Identifier: Apache-2.0
"""How long it takes to start again: from the restart to the first output, by the number of keys in state.

Each key has two values and an event-time timer. Before, every key was written once and then as many again, twice,
drawn at random: so the state log has reached the length at which it is cleaned, with what is out of date in it.

The task alone, on the local runtime: a new job is given the chunks of the log in a file, and runs an epoch of 1,000
records, each of which emits its key's count. Beside it ``pickle.loads`` of the same chunks from the same file, which
no reader of them can beat: with the garbage collector off, and nothing done with what it gives. And beside it a restore
as one would write it by hand: ``pickle.loads`` of one file with a dictionary of all keys' values and a heap of their
timers, the collector off as well; nothing in it is out of date, and nothing proves that it is what was written. All in
turn, in one process, and with two kinds of timers: spread over an hour by the millisecond, so that hardly two are at
one time; and at full minutes, as those of windows are.

On Spark: a query is loaded and stopped, and its process ends. A new process restarts it from its checkpoint, with new
Python workers and a new Java, and finds one micro-batch waiting: what counts is the time from building the query to
the first rows at the sink. Most of that is Spark's own first micro-batch, so there is also one with 1,000 keys.

The results are checked: each row that comes out must have its key's count over all that was ever written.

With ``--digests`` only the cost of the digests is found out, by which chunks are proved: the task's cold start with and
without a look at them, in turn, and CRC-32 of the same bytes by itself: ``--digests --keys 5000000``. Then ``ratio`` is
the time that CRC-32 takes, over that of the cold start with it.

Run it with ``make bench-recovery`` or ``python benchmarks/bench_recovery.py``. The last line of the output is one JSON
object; ``ratio`` is the task's cold start at 1,000,000 keys over ``pickle.loads`` of the chunks, of both kinds of
timers the larger, and ``ratios_by_hand`` those over the restore by hand.
"""

from __future__ import annotations

import argparse
import gc
import pickle
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import (
    Side,
    SteppedQuery,
    answer,
    find_pillarbox,
    finish,
    print_table,
    questions,
    run_to_the_end,
    spark_version,
    spread,
    step_settings,
    task_reports,
)

find_pillarbox()

import numpy as np
import numpy.typing as npt

from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from pillarbox._elements import Records
from pillarbox._runtime.local import LocalJob, Savepoint
from pillarbox._state import MemoryChunkStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MINUTE = 60_000
HOUR = 60 * MINUTE
TIMERS = {"spread": "timers by the millisecond", "minutes": "timers at full minutes"}
FEW = 1_000
TOUCHED = 1_000
OUTPUT = "key INT, n LONG"


class Count(KeyedProcessFunction):
    """A count and the time of the last row; one timer that each row moves. Each row gives its key's count."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))
        self.due = ctx.get_state(ValueStateDescriptor("due"))

    def process_element(self, row, ctx):
        key, at = row
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        timers = ctx.timer_service()
        due = self.due.value()
        if due is not None:
            timers.delete_event_time_timer(due)
        timers.register_event_time_timer(at)
        self.due.update(at)
        yield key, n

    def on_timer(self, timestamp, ctx):
        self.due.clear()


class Rows:
    """The rows: keys, and when their timers are due; always the same for a number of keys."""

    def __init__(self, keys: int, timers: str) -> None:
        random = np.random.default_rng(1)
        self._random = random
        self._keys = keys
        self._unit = MINUTE if timers == "minutes" else 1
        self._order = np.concatenate([random.permutation(keys), random.integers(0, keys, 2 * keys)])
        self.counts = np.bincount(self._order, minlength=keys)

    def _at(self, count: int) -> npt.NDArray[np.int64]:
        return self._random.integers(0, HOUR, count) // self._unit * self._unit + HOUR

    def load(self, most: int) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Return at least a dozen epochs of at most ``most`` rows."""
        step = min(most, len(self._order) // 12)
        for start in range(0, len(self._order), step):
            keys = self._order[start : start + step]
            yield keys, self._at(len(keys))

    def touch(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        keys = self._random.choice(self._keys, min(TOUCHED, self._keys), replace=False)
        return keys, self._at(len(keys))


# -- the task alone, in its own process --


def local_job(savepoint: Savepoint | None = None) -> LocalJob:
    env = StreamExecutionEnvironment.get_execution_environment()
    counts = env.from_collection([]).key_by(lambda row: row[0]).process(Count()).uid("count")
    return env.local_job(counts=counts, savepoint=savepoint)


def run_epoch(job: LocalJob, keys: npt.NDArray[np.int64], at: npt.NDArray[np.int64]) -> list[Any]:
    (source,) = job.program.sources
    return job.run_epoch({source: [[Records(list(zip(keys.tolist(), at.tolist())))]]})["counts"]


def serve_local(keys: int, timers: str, directory: Path) -> None:
    rows = Rows(keys, timers)
    with local_job() as job:
        for touch in rows.load(100_000):
            run_epoch(job, *touch)
        ((place, store),) = job.savepoint().items()
    log = directory / "log"
    lengths = {number: len(chunk) for number, chunk in store.chunks.items()}
    log.write_bytes(b"".join(store.chunks.values()))
    del job, store
    gc.collect()

    def read() -> dict[int, bytes]:
        with log.open("rb") as file:
            return {number: file.read(length) for number, length in lengths.items()}

    def plain() -> tuple[float, int]:
        started = time.perf_counter()
        loaded = [pickle.loads(chunk) for number, chunk in read().items() if number]
        seconds = time.perf_counter() - started
        # (A log of format 1 has tuples, so that a version of before can be measured by this file, too.)
        rows = [chunk["rows"] if isinstance(chunk, dict) else chunk[1] for chunk in loaded]
        return seconds, sum(map(len, rows))

    def write_by_hand() -> None:
        values: dict[int, tuple[int, int]] = {}
        chunks = read()
        for number in sorted(number for number in chunks if number > 0):
            chunk = pickle.loads(chunks[number])
            of, found = (chunk["keys"], chunk["rows"]) if isinstance(chunk, dict) else chunk[:2]
            values.update((key, (n, due)) for key, (*_, n, due) in zip(of, found))
        timers = sorted((due, key) for key, (_, due) in values.items())  # which is a heap
        with by_hand.open("wb") as file:
            pickle.dump({"values": values, "timers": timers}, file, protocol=5)

    by_hand = directory / "by-hand"

    for question in questions():
        gc.collect()
        if question["what"] == "plain":
            gc.disable()
            seconds, entries = plain()
            gc.enable()
            answer(seconds=seconds, entries=entries, bytes=sum(lengths.values()))
        elif question["what"] == "by hand":
            if not by_hand.exists():
                write_by_hand()
                gc.collect()
            gc.disable()
            started = time.perf_counter()
            loaded = pickle.loads(by_hand.read_bytes())
            seconds = time.perf_counter() - started
            gc.enable()
            same = np.array([loaded["values"][key][0] for key in range(keys)]) == rows.counts
            answer(seconds=seconds, agrees=bool(same.all()) and len(loaded["timers"]) == keys)
            del loaded
        elif question["what"] == "digests":
            chunks = list(read().values())
            started = time.perf_counter()
            for chunk in chunks:
                zlib.crc32(chunk)
            answer(seconds=time.perf_counter() - started, bytes=sum(lengths.values()))
            del chunks
        else:
            touched, at = rows.touch()
            from pillarbox._state.chunks.head import Mark  # only here, as older revisions have it elsewhere

            unchecked = patch.object(Mark, "fits", lambda mark, payload: True)
            with unchecked if question["what"] == "unchecked" else nullcontext():
                started = time.perf_counter()
                store = MemoryChunkStore()
                store.chunks = read()
                job = local_job({place: store})
                out = run_epoch(job, touched, at)
                seconds = time.perf_counter() - started
            answer(seconds=seconds, agrees=agrees(out, touched, rows.counts))
            del job, store, out


def agrees(out: list[Any], touched: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> bool:
    """Return whether each key came out, with its count in the state and one more."""
    return sorted(map(tuple, out)) == sorted((key, int(counts[key]) + 1) for key in touched.tolist())


# -- on Spark --


def serve_spark(keys: int, directory: Path, memory: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pillarbox import local_session

    rows = Rows(keys, "spread")
    spark = local_session(2, **step_settings(directory, memory))
    query = SteppedQuery(spark, directory, "key INT, at LONG")

    def result() -> DataFrame:
        env = StreamExecutionEnvironment.get_execution_environment(spark)
        return env.from_dataframe(query.source).key_by("key").process(Count()).uid("count").to_dataframe(OUTPUT)

    def write(place: Path, keys: npt.NDArray[np.int64], at: npt.NDArray[np.int64]) -> Path:
        place.mkdir(parents=True)
        for part in range(2):
            table = pa.table({"key": keys[part::2].astype(np.int32), "at": at[part::2]})
            pq.write_table(table, place / f"{part}.parquet")
        return place

    for question in questions():
        if question["what"] == "load":
            query.start(result())
            for number, touch in enumerate(rows.load(500_000)):
                query.step(write(directory / "staging" / f"load-{number:04}", *touch))
            query.stop()
            answer()
            continue
        number = question["number"]
        for _ in range(number + 1):
            # Keys differ from restart to restart; what earlier ones touched counts.
            touched, at = rows.touch()
            rows.counts[touched] += 1
        rows.counts[touched] -= 1
        write(directory / "in" / f"restart-{number:04}", touched, at)
        seconds, out, restarted = run_to_the_end(result, directory / "checkpoint")
        (progress,) = (each for each in restarted.recentProgress if each.numInputRows)
        tasks = task_reports(progress)
        answer(
            seconds=seconds,
            agrees=agrees(out, touched, rows.counts),
            state_ms=max(task.state_ms for task in tasks),
            loaded=all(task.state_sync == "loaded" for task in tasks),
            keys=sum(task.keys or 0 for task in tasks),
        )
    spark.stop()


# -- all of it --


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys of the task alone")
    parser.add_argument("--rounds", type=int, default=5, help="cold starts of the task alone that count")
    parser.add_argument("--spark-keys", type=int, nargs="*", default=[100_000, 1_000_000], help="none: without Spark")
    parser.add_argument("--restarts", type=int, default=3, help="restarts on Spark for each number of keys")
    parser.add_argument("--large", action="store_true", help="also 5,000,000 keys on Spark (5 minutes more)")
    parser.add_argument("--memory", default="2g", help="of Spark")
    parser.add_argument("--digests", action="store_true", help="only what checking the digests costs the task alone")
    parser.add_argument("--local", choices=TIMERS, help=argparse.SUPPRESS)
    parser.add_argument("--spark", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.local:
        serve_local(arguments.keys, arguments.local, arguments.directory)
    elif arguments.spark:
        serve_spark(arguments.spark, arguments.directory, arguments.memory)
    else:
        if arguments.large:
            arguments.spark_keys.append(5_000_000)
        with tempfile.TemporaryDirectory(prefix="bench-recovery-") as directory:
            if arguments.digests:
                measure_digests(arguments, Path(directory))
            else:
                measure(arguments, Path(directory))


def measure(arguments: argparse.Namespace, directory: Path) -> None:
    wrong: list[str] = []
    alone = {timers: measure_local(arguments, directory / timers, timers, wrong) for timers in TIMERS}
    keys = arguments.keys
    ratios = {
        timers: statistics.median(said["cold"]) / statistics.median(said["plain"]) for timers, said in alone.items()
    }
    by_hand = {
        timers: statistics.median(said["cold"]) / statistics.median(said["by hand"]) for timers, said in alone.items()
    }
    print_table(
        [
            f"the task alone, {keys:,} keys",
            "s",
            "lowest",
            "highest",
            "us a key",
            "pickle.loads s",
            "lowest",
            "highest",
            "ratio",
            "by hand s",
            "lowest",
            "highest",
            "ratio",
            "entries a key",
            "log B a key",
        ],
        [
            [
                TIMERS[timers],
                *spread(said["cold"], 2),
                f"{statistics.median(said['cold']) / keys * 1e6:.2f}",
                *spread(said["plain"], 2),
                f"{ratios[timers]:.2f}",
                *spread(said["by hand"], 2),
                f"{by_hand[timers]:.2f}",
                f"{said['entries'] / keys:.2f}",
                f"{said['bytes'] / keys:.0f}",
            ]
            for timers, said in alone.items()
        ],
    )
    more: dict[str, Any] = {}
    if arguments.spark_keys:
        sizes = [FEW, *arguments.spark_keys]
        restarts = {size: measure_spark(arguments, directory / str(size), size, wrong) for size in sizes}
        print()
        print_table(
            ["restart on Spark to the first output", "s", "lowest", "highest", "of it reading state"],
            [
                [
                    f"{size:,} keys in state",
                    *spread([each["seconds"] for each in said], 1),
                    f"{statistics.median(each['state_ms'] for each in said) / 1000:.2f}",
                ]
                for size, said in restarts.items()
            ],
        )
        more["spark_restart_s"] = {
            size: [round(each["seconds"], 2) for each in said] for size, said in restarts.items()
        }
        more["spark_state_s"] = {
            size: round(statistics.median(each["state_ms"] for each in said) / 1000, 3)
            for size, said in restarts.items()
        }
        more["spark"] = spark_version()
    for line in wrong:
        print(f"WRONG RESULTS: {line}")
    finish(
        "recovery",
        max(ratios.values()),
        results_agree=not wrong,
        ratios={timers: round(ratio, 3) for timers, ratio in ratios.items()},
        ratios_by_hand={timers: round(ratio, 3) for timers, ratio in by_hand.items()},
        us_per_key={timers: round(statistics.median(said["cold"]) / keys * 1e6, 3) for timers, said in alone.items()},
        keys=keys,
        **more,
    )
    if wrong:
        sys.exit(1)


def measure_digests(arguments: argparse.Namespace, directory: Path) -> None:
    wrong: list[str] = []
    said = measure_local(arguments, directory / "spread", "spread", wrong, ("digests", "unchecked", "cold"))
    cold, unchecked, digests = (statistics.median(said[what]) for what in ("cold", "unchecked", "digests"))
    print_table(
        [f"the task alone, {arguments.keys:,} keys", "s", "lowest", "highest", "of a cold start"],
        [
            ["cold start", *spread(said["cold"], 2), ""],
            ["without a look at the digests", *spread(said["unchecked"], 2), f"{unchecked / cold:.1%}"],
            ["CRC-32 of the same bytes", *spread(said["digests"], 3), f"{digests / cold:.1%}"],
        ],
    )
    for line in wrong:
        print(f"WRONG RESULTS: {line}")
    finish(
        "recovery-digests",
        digests / cold,
        results_agree=not wrong,
        cold_s=round(cold, 3),
        unchecked_s=round(unchecked, 3),
        digests_s=round(digests, 4),
        megabytes=round(said["bytes"] / 1e6, 1),
        keys=arguments.keys,
    )
    if wrong:
        sys.exit(1)


def measure_local(
    arguments: argparse.Namespace,
    place: Path,
    timers: str,
    wrong: list[str],
    kinds: tuple[str, ...] = ("plain", "cold", "by hand"),
) -> dict[str, Any]:
    place.mkdir()
    side = Side("--local", timers, "--directory", str(place), "--keys", str(arguments.keys))
    print(f"{arguments.keys:,} keys, {TIMERS[timers]}: writing them", file=sys.stderr, flush=True)
    found: dict[str, Any] = {what: [] for what in kinds}
    for index in range(-1, arguments.rounds):
        # Alternating, and every other round backwards, so that none gains by its place.
        for what in kinds[::-1] if index % 2 else kinds:
            said = side.ask(what=what)
            if not said.get("agrees", True):
                wrong.append(f"the task alone, {TIMERS[timers]}, round {index}")
            if index >= 0:  # the round before that warms up
                found[what].append(said["seconds"])
            turn = f"round {index + 1} of {arguments.rounds}" if index >= 0 else "warming up"
            print(f"  {turn}, {what}: {said['seconds']:.2f} s", file=sys.stderr, flush=True)
            found.update({name: said[name] for name in ("entries", "bytes") if name in said})
    side.close()
    return found


def measure_spark(arguments: argparse.Namespace, place: Path, keys: int, wrong: list[str]) -> list[dict[str, Any]]:
    place.mkdir()
    restarts = []
    for number in range(-1, arguments.restarts):
        side = Side("--spark", str(keys), "--directory", str(place), "--memory", arguments.memory)
        if number < 0:
            side.ask(what="load")
        else:
            said = side.ask(what="restart", number=number)
            if not (said["agrees"] and said["loaded"] and said["keys"] == keys):
                wrong.append(f"restart {number} with {keys:,} keys: {said}")
            restarts.append(said)
        side.close()
    return restarts


if __name__ == "__main__":
    main()
