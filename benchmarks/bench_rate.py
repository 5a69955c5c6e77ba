# SPDX-License-Identifier: Apache-2.0
"""How much of ``job_rate_limit`` a query uses, and whether it ever exceeds it.

A keyed stream asks a service that answers at once, with a limit of 100 requests a second for the whole query and work
in every partition. All requests are in one epoch. The time of each request is a column of its result. Once with two
task slots and two partitions, and once with eight of each.

Run it with ``make bench-rate`` or ``python benchmarks/bench_rate.py``. The last line of the output is one JSON object;
``ratio`` is the number of requests in the first 30 seconds over what the limit allows in that time, the lower of both;
``second_ratio`` is the highest number in any one second over the limit and its burst, the higher of both.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import Side, answer, find_pillarbox, finish, print_table, questions, spark_version

find_pillarbox()

import pillarbox
from pillarbox import StreamExecutionEnvironment, local_session

SLOTS = (2, 8)
# The part of a second's requests by which a share may exceed the limit after a pause (docs/async.md).
BURST = 0.5


async def ask(row: Any) -> tuple[int, float]:
    return row.id, time.time()


def times_of_requests(slots: int, limit: int, seconds: int, directory: Path) -> tuple[list[float], float]:
    """Run the query; return the times of its requests, and the longest wait of a task for the limit (seconds)."""
    spark = local_session(slots, spark__local__dir=str(directory / "local"))
    # Somewhat more than the limit lets through: no partition is to run out of work.
    records = round(1.3 * limit * seconds)
    spark.range(records).coalesce(1).write.parquet(str(directory / "in"))
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(slots)
    source = env.from_dataframe(spark.readStream.schema("id LONG").parquet(str(directory / "in")))
    asked = source.key_by("id").map_async(ask, "id LONG, at DOUBLE", job_rate_limit=limit, timeout=None).uid("ask")
    rows: list[Any] = []
    writer = asked.to_dataframe().writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
    writer = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True)
    query = pillarbox.start(writer)
    query.awaitTermination()
    if sorted(row.id for row in rows) != list(range(records)):
        sys.exit(f"WRONG RESULTS: {len(rows)} answers to {records} requests")
    reports = [report for progress in query.recentProgress for report in pillarbox.metrics(progress, by="operator")]
    spark.stop()
    return sorted(row.at for row in rows), max(report.rate_limited_ms or 0 for report in reports) / 1000


def most_in_a_second(times: Sequence[float]) -> int:
    """Return the highest number of requests in any one second."""
    return max(bisect_left(times, at + 1) - index for index, at in enumerate(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--limit", type=int, default=100, help="requests per second")
    parser.add_argument("--seconds", type=int, default=30, help="the time in which they are counted")
    parser.add_argument("--slots", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.slots:
        for _ in questions():
            times, waited = times_of_requests(arguments.slots, arguments.limit, arguments.seconds, arguments.directory)
            answer(times=times, waited=waited)
        return
    found = {}
    with tempfile.TemporaryDirectory(prefix="bench-rate-") as directory:
        for slots in SLOTS:
            options = {"slots": slots, "limit": arguments.limit, "seconds": arguments.seconds}
            words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
            side = Side(*words, "--directory", str(Path(directory) / str(slots)))
            found[slots] = side.ask(what="run")
            side.close()
    allowed = arguments.limit * arguments.seconds
    counts = {slots: bisect_left(each["times"], each["times"][0] + arguments.seconds) for slots, each in found.items()}
    peaks = {slots: most_in_a_second(each["times"]) for slots, each in found.items()}
    print_table(
        ["task slots", f"in {arguments.seconds} s", "of what is allowed", "in one second", "longest wait of a task, s"],
        [
            [slots, counts[slots], f"{counts[slots] / allowed:.1%}", peaks[slots], f"{each['waited']:.1f}"]
            for slots, each in found.items()
        ],
    )
    finish(
        "rate",
        min(counts.values()) / allowed,
        second_ratio=round(max(peaks.values()) / ((1 + BURST) * arguments.limit), 3),
        limit=arguments.limit,
        requests={str(slots): count for slots, count in counts.items()},
        in_one_second={str(slots): peak for slots, peak in peaks.items()},
        waited_s={str(slots): round(each["waited"], 1) for slots, each in found.items()},
        spark=spark_version(),
    )


if __name__ == "__main__":
    main()
