"""How late flights leave each hour, in which weather, and whether this exceeds a limit that changes over time.

python -m examples.delays.demo [--batches 13] [--parallelism 2] [--out build/demo-windows] [--months 12] [--no-check]
"""

from __future__ import annotations

import argparse
import sys
import time
from calendar import day_name
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pillarbox
from examples.comparison import equals_the_oracle
from examples.delays.chart import NEW_YORK, draw
from examples.delays.data import Tables, tables
from examples.delays.job import Hour
from examples.delays.oracle import Row, expected
from examples.delays.run import read_hours, start_streaming
from examples.flights.demo import chart, positive, shown
from examples.flights.job import instant
from pillarbox import local_session


def main() -> int:
    """Run the demo. The exit code is 0 if the results equal the oracle's."""
    arguments = parse()
    out: Path = arguments.out.resolve()
    started = time.monotonic()
    streams = tables(arguments.months)
    rows = {name: f"{table.num_rows:,}" for name, table in streams.items()}
    print(
        f"{rows['flights']} flights, {rows['weather']} observations of the weather, {rows['limits']} times a limit."
        " Starting Spark ...",
        flush=True,
    )
    spark = local_session(2, app_name="delays", spark__log__level="ERROR")
    try:
        query, plan = start_streaming(spark, streams, out, arguments.batches, arguments.parallelism)
        print(f"\n{plan}\n", flush=True)
        (out / "plan.md").write_text(f"# The plan of the windows demo\n\n```mermaid\n{plan.to_mermaid()}\n```\n")
        follow(query)
        results = read_hours(spark, out)
    finally:
        spark.stop()
    hours = [Hour(*row) for row in results]
    summary(hours)
    day = draw(hours, out / "delays.svg")
    print(f"\nThe days around {day:%d %b} as a picture: {shown(out / 'delays.svg')}")
    print(f"Hours as Parquet: {shown(out / 'hours')}    plan as a diagram: {shown(out / 'plan.md')}")
    equal = arguments.no_check or check(results, streams)
    print(f"Took {time.monotonic() - started:.0f} s.")
    return 0 if equal else 1


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", type=positive, default=13, help="micro-batches that the year is cut into")
    parser.add_argument("--parallelism", type=positive, default=2, help="number of keyed subtasks")
    parser.add_argument("--months", type=int, choices=range(1, 13), default=12, help="months of the year to take")
    parser.add_argument("--out", type=Path, default=Path("build/demo-windows"), help="folder for all output")
    parser.add_argument("--no-check", action="store_true", help="do not compare with the oracle")
    return parser.parse_args()


def follow(query: Any) -> None:
    """Print a line for each micro-batch, until the query ends."""
    print("epoch      rows   event time     rows/s   hours waiting   hours     alarms", flush=True)
    rows, hours, alarms, next_batch = 0, 0, 0, 0
    active = True
    while active:
        active = query.isActive
        for progress in [p for p in query.recentProgress if p["batchId"] >= next_batch and p["numInputRows"]]:
            next_batch = progress["batchId"] + 1
            counts = progress["observedMetrics"]["hours"]
            last = max(pillarbox.metrics(progress, by="operator"), key=lambda report: report.level)
            assert last.watermark is not None
            rows += progress["numInputRows"]
            hours, alarms = hours + counts["hours"], alarms + counts["alarms"]
            speed = 1000 * progress["numInputRows"] / progress["durationMs"]["triggerExecution"]
            watermark = instant(last.watermark)
            print(
                f"{progress['batchId']:5}  {rows:8,}   {watermark:%d %b %Y}   {speed:8,.0f}   {last.timers:13,}"
                f"   {hours:7,}   {alarms:8,}",
                flush=True,
            )
        time.sleep(0.1)
    query.awaitTermination()  # raises what the query failed with


def summary(hours: Sequence[Hour]) -> None:
    """Print a summary of the results."""
    print("\nHow many of 100 rolling hours were above their limit, by airport:")
    chart(share(hours, lambda hour: hour.origin))
    print("\n... by the weather:")
    chart(share(hours, weather, ["calm and dry", "wind above 20 mph", "rain", "much rain"]))
    print("\n... by day of the week:")
    chart(share(hours, lambda hour: day_name[hour.ends.astimezone(NEW_YORK).weekday()], list(day_name)))
    worst = max((hour for hour in hours if hour.departures >= 10), key=lambda hour: hour.delay or 0)
    print(
        f"\nThe worst hour with ten departures or more: {worst.origin}, until"
        f" {worst.ends.astimezone(NEW_YORK):%d %b %H:%M}: {worst.departures} departures,"
        f" {worst.delay:.0f} minutes late on average, where {worst.limit} would have been fair."
    )


def weather(hour: Hour) -> str:
    """Return an hour's weather in words."""
    if hour.rain:
        return "rain" if hour.rain < 0.1 else "much rain"
    return "wind above 20 mph" if (hour.wind or 0) > 20 else "calm and dry"


def share(hours: Sequence[Hour], group: Callable[[Hour], str], order: Sequence[str] = ()) -> dict[str, float]:
    """Return the percentage of hours with an alarm in each group."""
    count: Counter[str] = Counter()
    alarms: defaultdict[str, int] = defaultdict(int)
    for hour in hours:
        name = group(hour)
        count[name] += 1
        alarms[name] += hour.alarm
    return {name: 100 * alarms[name] / count[name] for name in order or count if count[name]}


def check(results: list[Row], streams: Tables) -> bool:
    """Compare the results with the oracle's, and print the outcome."""
    oracle = expected(**{name: table.to_pylist() for name, table in streams.items()})
    return equals_the_oracle(results, oracle)


if __name__ == "__main__":
    sys.exit(main())
