# SPDX-License-Identifier: Apache-2.0
"""What an epoch's state costs: it must grow with the keys that are touched, not with those that exist.

Two jobs run the same epochs of 1,000 records with 1,000 different keys, in turn, each in a process of its own: one has
10,000 keys in its state, the other 2,000,000. Each record changes its key's count, and moves the key's event-time
timer. Before that every key is written once and then as many again, twice, drawn at random: so both logs have reached
the length at which epochs clean up, and what they find is in part still current. What counts is the median; the means
are there as well, because cleaning comes in portions.

More keys take more memory, and more of it is out of the processor's caches. How much of the ratio is due to that alone
shows in the same touches of a plain dictionary of lists.

Then each job forgets its live state and runs an epoch more: the cold start. It is compared with ``pickle.loads`` of
the same chunks, which no reader of them can beat.

Run it with ``python benchmarks/bench_state.py``: on the local runtime, without Spark. With ``--spark`` the same on
Spark: there the ratio is that of whole micro-batches, most of which is Spark's own. The last line of the output is
one JSON object; ``ratio`` is the time of an epoch at 2,000,000 keys over that at 10,000,
``bytes_ratio`` that of the bytes written.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import (
    Side,
    SteppedQuery,
    answer,
    find_pillarbox,
    finish,
    memory_kib,
    print_table,
    questions,
    spread,
    step_settings,
    task_reports,
)

find_pillarbox()

import numpy as np
import numpy.typing as npt

from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor, WatermarkStrategy
from pillarbox._elements import Records
from pillarbox._runtime.local import LocalJob

HOUR = 3_600_000
LOAD = 100_000


class Count(KeyedProcessFunction):
    """A count, and one timer that each record moves ahead; the count is emitted when it fires."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))
        self.timer = ctx.get_state(ValueStateDescriptor("timer"))

    def process_element(self, row, ctx):
        self.n.update((self.n.value() or 0) + 1)
        timers = ctx.timer_service()
        present = self.timer.value()
        wanted = ctx.timestamp() + HOUR
        if present is not None:
            timers.delete_event_time_timer(present)
        timers.register_event_time_timer(wanted)
        self.timer.update(wanted)

    def on_timer(self, timestamp, ctx):
        self.timer.clear()
        yield ctx.get_current_key(), self.n.value()


class Epochs:
    """The keys of each epoch: first all of them, then as many again, twice, at random; then a few, anywhere."""

    def __init__(self, keys: int, touched: int) -> None:
        self._random = np.random.default_rng(1)
        self._keys = keys
        self._touched = touched

    def load(self, most: int = LOAD) -> list[npt.NDArray[np.int64]]:
        """Return the keys of at least a dozen epochs, of at most ``most`` records each."""
        drawn = self._random.integers(0, self._keys, 2 * self._keys)
        order = np.concatenate([self._random.permutation(self._keys), drawn])
        step = min(most, len(order) // 12)
        return [order[start : start + step] for start in range(0, len(order), step)]

    def touch(self) -> npt.NDArray[np.int64]:
        return self._random.choice(self._keys, self._touched, replace=False)


# -- one side, on the local runtime --


def serve_local(keys: int, touched: int) -> None:
    epochs = Epochs(keys, touched)
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([]).assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda record, _: record[1])
    )
    stream.key_by(lambda record: record[0]).process(Count())
    program = env.get_execution_graph()
    (source,) = program.sources

    with LocalJob(program) as job:
        before = _rss()

        def run(touch: npt.NDArray[np.int64]) -> tuple[float, float]:
            records = Records([(key, job.epoch) for key in touch.tolist()])
            started, started_cpu = time.perf_counter(), time.process_time()
            job.run_epoch({source: [[records]]})
            return time.perf_counter() - started, time.process_time() - started_cpu

        for question in questions():
            report: dict[str, Any] = {}
            if question["what"] == "load":
                for touch in epochs.load():
                    run(touch)
                gc.collect()
                (store,) = job.savepoint().values()
                log = sum(map(len, store.chunks.values()))
                report = {"bytes_per_key": (_rss() - before - log) / keys, "log_bytes_per_key": log / keys}
            elif question["what"] == "epoch":
                seconds, cpu = run(epochs.touch())
                (task,) = (task for task in job.reports if task.level == 1)
                report = {"ms": seconds * 1000, "cpu_ms": cpu * 1000, "bytes": task.state_bytes_written}
                report["state_ms"] = task.state_ms
            elif question["what"] == "plain":
                report = {"ns": _plain_dictionary(epochs, keys, touched)}
            else:
                (store,) = job.savepoint().values()
                chunks = [chunk for number, chunk in store.chunks.items() if number]
                gc.collect()
                gc.disable()
                started = time.perf_counter()
                loaded = [pickle.loads(chunk) for chunk in chunks]
                plain = time.perf_counter() - started
                entries = sum(len(chunk["rows"]) for chunk in loaded)
                del loaded
                gc.enable()
                job.reset()
                gc.collect()
                seconds, _ = run(epochs.touch())
                report = {"seconds": seconds, "plain_seconds": plain, "entries": entries}
            answer(**report)


def _plain_dictionary(epochs: Epochs, keys: int, touched: int) -> float:
    """Touch keys of a plain dictionary: what caches and memory make of more keys, without any of our doing.

    Returns:
        nanoseconds to look up a key's list and change an item of it.
    """
    rows: dict[int, list[Any]] = {int(key): [0, 0, None] for key in np.random.default_rng(2).permutation(keys)}
    rounds = []
    for _ in range(50):
        touch = epochs.touch().tolist()
        started = time.perf_counter()
        for key in touch:
            row = rows[key]
            row[1] += 1
        rounds.append(time.perf_counter() - started)
    return statistics.median(rounds) / touched * 1e9


def _rss() -> int:
    (kib,) = memory_kib(os.getpid(), "VmRSS")
    return kib * 1024


# -- one side, on Spark --


def serve_spark(keys: int, touched: int, directory: Path, memory: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pillarbox import local_session

    epochs = Epochs(keys, touched)
    spark = local_session(2, **step_settings(directory, memory))
    query = SteppedQuery(spark, directory, "key INT, ts LONG")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    stream = env.from_dataframe(query.source).assign_timestamps_and_watermarks(strategy)
    query.start(stream.key_by("key").process(Count()).to_dataframe("key INT, n LONG"))
    number = 0

    def run(touch: npt.NDArray[np.int64]) -> dict[str, Any]:
        nonlocal number
        batch = directory / "staging" / f"{number:04}"
        batch.mkdir(parents=True)
        for part in range(2):
            key = touch[part::2].astype(np.int32)
            pq.write_table(pa.table({"key": key, "ts": np.full(len(key), number)}), batch / f"{part}.parquet")
        number += 1
        progress = query.step(batch)
        tasks = task_reports(progress)
        return {
            "ms": progress.durationMs["triggerExecution"],
            "cpu_ms": sum(task.busy_ms + task.state_ms for task in tasks),
            "state_ms": max(task.state_ms for task in tasks),
            "bytes": sum(task.state_bytes_written or 0 for task in tasks),
            "in_step": all(task.state_sync == "in step" for task in tasks),
        }

    for question in questions():
        if question["what"] == "load":
            for touch in epochs.load(5 * LOAD):
                run(touch)
            answer()
        else:
            answer(**run(epochs.touch()))
    query.stop()
    spark.stop()


# -- both sides --


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--few", type=int, default=10_000, help="keys in the state of the small job")
    parser.add_argument("--many", type=int, default=2_000_000, help="keys in the state of the large job")
    parser.add_argument("--touched", type=int, default=1_000, help="keys that an epoch touches")
    parser.add_argument("--epochs", type=int, default=0, help="epochs that count (default 100; 20 on Spark)")
    parser.add_argument("--spark", action="store_true", help="on Spark, not on the local runtime")
    parser.add_argument("--memory", default="2g", help="of each Spark")
    parser.add_argument("--side", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side and arguments.spark:
        serve_spark(arguments.side, arguments.touched, arguments.directory, arguments.memory)
    elif arguments.side:
        serve_local(arguments.side, arguments.touched)
    else:
        with tempfile.TemporaryDirectory(prefix="bench-state-") as directory:
            compare(arguments, Path(directory))


def compare(arguments: argparse.Namespace, directory: Path) -> None:
    wanted = arguments.epochs or (20 if arguments.spark else 100)
    common = ["--touched", str(arguments.touched), "--memory", arguments.memory, *(["--spark"] * arguments.spark)]
    sides: dict[int, Side] = {}
    loaded: dict[int, dict[str, Any]] = {}
    for keys in (arguments.few, arguments.many):
        place = directory / str(keys)
        place.mkdir()
        sides[keys] = Side("--side", str(keys), "--directory", str(place), *common)
        loaded[keys] = sides[keys].ask(what="load")
    epochs: dict[int, list[dict[str, Any]]] = {keys: [] for keys in sides}
    for index in range(wanted + 5):
        # Alternating, and every other round backwards, so that neither gains by its place.
        for keys in list(sides) if index % 2 else reversed(list(sides)):
            said = sides[keys].ask(what="epoch")
            if index >= 5:
                epochs[keys].append(said)
    recovered = {} if arguments.spark else {keys: side.ask(what="recover") for keys, side in sides.items()}
    plain = {} if arguments.spark else {keys: side.ask(what="plain")["ns"] for keys, side in sides.items()}
    for side in sides.values():
        side.close()

    def figures(what: str) -> dict[int, list[float]]:
        return {keys: [said[what] for said in epochs[keys]] for keys in sides}

    def ratio(what: str, of: Any = statistics.median) -> float:
        values = figures(what)
        return float(of(values[arguments.many]) / max(of(values[arguments.few]), 1e-9))

    milliseconds, written = figures("ms"), figures("bytes")
    print_table(
        [
            f"an epoch of {arguments.touched:,} keys",
            "median ms",
            "lowest",
            "highest",
            "mean",
            "KiB written",
            "mean KiB",
        ],
        [
            [
                f"{keys:,} keys in state",
                *spread(milliseconds[keys], 2),
                f"{statistics.mean(milliseconds[keys]):.2f}",
                f"{statistics.median(written[keys]) / 1024:,.1f}",
                f"{statistics.mean(written[keys]) / 1024:,.1f}",
            ]
            for keys in sides
        ],
    )
    ratios = {
        "bytes_ratio": ratio("bytes", statistics.mean),
        "mean_ratio": ratio("ms", statistics.mean),
        "cpu_ratio": ratio("cpu_ms"),
    }
    print(
        f"time at {arguments.many:,} over {arguments.few:,} keys: {ratio('ms'):.2f} (medians),"
        f" {ratios['mean_ratio']:.2f} (means), {ratios['cpu_ratio']:.2f} (processor time, medians);"
        f" bytes {ratios['bytes_ratio']:.2f} (means)"
    )
    more: dict[str, Any] = {}
    if recovered:
        usual = {keys: statistics.median(milliseconds[keys]) / 1000 for keys in sides}
        print()
        print_table(
            [
                "cold start",
                "s",
                "us per key",
                "pickle.loads us per key",
                "over pickle.loads",
                "entries per key",
                "memory B per key",
                "log B per key",
            ],
            [
                [
                    f"{keys:,} keys in state",
                    f"{said['seconds']:.2f}",
                    f"{(said['seconds'] - usual[keys]) / keys * 1e6:.2f}",
                    f"{said['plain_seconds'] / keys * 1e6:.2f}",
                    f"{(said['seconds'] - usual[keys]) / said['plain_seconds']:.1f}",
                    f"{said['entries'] / keys:.2f}",
                    f"{loaded[keys]['bytes_per_key']:.0f}",
                    f"{loaded[keys]['log_bytes_per_key']:.0f}",
                ]
                for keys, said in recovered.items()
            ],
        )
        said = recovered[arguments.many]
        few, many = plain[arguments.few], plain[arguments.many]
        print(
            f"\nOf this the machine's caches: to touch a key of a plain dictionary of lists takes {few:.0f} ns with"
            f" {arguments.few:,} keys, {many:.0f} ns with {arguments.many:,}: {many / few:.1f}"
        )
        more["plain_dict_ratio"] = round(many / few, 2)
        more["recovery_us_per_key"] = round((said["seconds"] - usual[arguments.many]) / arguments.many * 1e6, 3)
        more["recovery_over_pickle"] = round((said["seconds"] - usual[arguments.many]) / said["plain_seconds"], 2)
        more["memory_bytes_per_key"] = round(loaded[arguments.many]["bytes_per_key"])
    else:
        state = figures("state_ms")
        more["state_ms"] = {keys: round(statistics.median(values)) for keys, values in state.items()}
        more["in_step"] = {keys: sum(said["in_step"] for said in epochs[keys]) for keys in sides}
        print(
            f"of it reading and writing state, ms: {more['state_ms']}; epochs that found the live state: "
            f"{more['in_step']} of {wanted}"
        )
    finish(
        "state_spark" if arguments.spark else "state",
        ratio("ms"),
        **{name: round(value, 3) for name, value in ratios.items()},
        epoch_ms={keys: round(statistics.median(values), 3) for keys, values in milliseconds.items()},
        **more,
        touched=arguments.touched,
        epochs=wanted,
    )


if __name__ == "__main__":
    main()
