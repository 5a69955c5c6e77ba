"""A year of flights through Spark: late aircraft that make their next flight late, and aircraft that do not return.

python -m examples.flights.demo [--batches 37] [--parallelism 2] [--out build/demo] [--months 12] [--no-check]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

import pillarbox
from examples.comparison import equals_the_oracle
from examples.flights.data import flights
from examples.flights.job import LATE, Event, instant
from examples.flights.oracle import expected
from examples.flights.run import read_events, start_streaming
from pillarbox import local_session

AIRLINES = {
    "9E": "Endeavor", "AA": "American", "AS": "Alaska", "B6": "JetBlue", "DL": "Delta", "EV": "ExpressJet",
    "F9": "Frontier", "FL": "AirTran", "HA": "Hawaiian", "MQ": "Envoy", "OO": "SkyWest", "UA": "United",
    "US": "US Airways", "VX": "Virgin", "WN": "Southwest", "YV": "Mesa",
}  # fmt: skip
NEW_YORK = ZoneInfo("America/New_York")
EIGHTHS = " ▏▎▍▌▋▊▉"


def main() -> int:
    """Run the demo. The exit code is 0 if the results equal the oracle's."""
    arguments = parse()
    out: Path = arguments.out.resolve()
    started = time.monotonic()
    table = flights(arguments.months)
    print(f"{table.num_rows:,} flights left New York's airports, or were to. Starting Spark ...", flush=True)
    spark = local_session(2, app_name="flights", spark__log__level="ERROR")
    try:
        query, plan = start_streaming(spark, table, out, arguments.batches, arguments.parallelism)
        print(f"\n{plan}\n", flush=True)
        (out / "plan.md").write_text(f"# The plan of the flights demo\n\n```mermaid\n{plan.to_mermaid()}\n```\n")
        follow(query, table.num_rows)
        outcomes = read_events(spark, out)
    finally:
        spark.stop()
    summary([Event(*event) for event in outcomes], table)
    print(f"\nEvents as Parquet: {shown(out / 'events')}    plan as a diagram: {shown(out / 'plan.md')}")
    equal = arguments.no_check or check(outcomes, table)
    print(f"Took {time.monotonic() - started:.0f} s.")
    return 0 if equal else 1


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", type=positive, default=37, help="micro-batches that the year is cut into")
    parser.add_argument("--parallelism", type=positive, default=2, help="number of keyed subtasks")
    parser.add_argument("--months", type=int, choices=range(1, 13), default=12, help="months of the year to take")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder for all that is written")
    parser.add_argument("--no-check", action="store_true", help="do not compare with the oracle")
    return parser.parse_args()


def positive(text: str) -> int:
    """Parse a number that is at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def shown(path: Path) -> str:
    """Return a path for display, relative to the current folder if the path is inside it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def follow(query: Any, total: int) -> None:
    """Print a line for each micro-batch, until the query ends."""
    print("epoch   flights   event time     rows/s   aircraft   timers   handed on   stay away", flush=True)
    rows, handed_on, away, next_batch = 0, 0, 0, 0
    active = True
    while active:
        active = query.isActive
        for progress in [p for p in query.recentProgress if p["batchId"] >= next_batch and p["numInputRows"]]:
            next_batch = progress["batchId"] + 1
            counts = progress["observedMetrics"]["events"]
            (states,) = [report for report in pillarbox.metrics(progress, by="operator") if report.level == 1]
            assert states.watermark is not None
            handed_on, away = handed_on + counts["propagated"], away + counts["silent"]
            heartbeat = rows == total
            rows = min(rows + progress["numInputRows"], total)
            watermark = instant(states.watermark)
            speed = f"{1000 * progress['numInputRows'] / progress['durationMs']['triggerExecution']:8,.0f}"
            print(
                f"{progress['batchId']:5}  {rows:8,}   {watermark:%d %b %Y}   {'' if heartbeat else speed:>8}"
                f"   {states.keys:8,}  {states.timers:7,}"
                f"   {handed_on:9,}   {away:9,}{'   heartbeat: all timers fire' if heartbeat else ''}",
                flush=True,
            )
        time.sleep(0.1)
    query.awaitTermination()  # raises what the query failed with


def summary(events: list[Event], table: pa.Table) -> None:
    """Print a summary of the results."""
    kinds = Counter(event.kind for event in events)
    delays = [event for event in events if event.kind == "propagated"]
    late = sum((delay or 0) > LATE for delay in table["dep_delay"].to_pylist())
    hours = sum(event.minutes or 0 for event in delays) / 60
    print(f"\n{len(delays):,} of {late:,} late departures came after a late arrival of the same aircraft:")
    print(f"{hours:,.0f} hours of delay were handed on.")

    departures = Counter(table["carrier"].to_pylist())
    print("\nHow many of 1,000 departures, by airline:")
    per_airline = Counter(event.carrier for event in delays)
    rates: dict[str, float] = {
        str(AIRLINES.get(code, code)): 1000 * per_airline[code] / count for code, count in departures.items()
    }
    chart(dict(sorted(rates.items(), key=lambda item: -item[1])))

    print("\nHow many of 1,000 departures, by hour of the day in New York:")
    by_hour = Counter(at.astimezone(NEW_YORK).hour for at in table["departed"].to_pylist())
    late_by_hour = Counter(event.at.astimezone(NEW_YORK).hour for event in delays)
    chart({f"{hour:02}h": 1000 * late_by_hour[hour] / by_hour[hour] for hour in range(5, 24) if by_hour[hour]})

    if delays:
        longest_chain(delays)
    end: datetime = table["departed"][-1].as_py()
    within = sum(event.kind == "silent" and event.at <= end.astimezone(timezone.utc) for event in events)
    print(f"\n{within:,} times an aircraft was not seen for two weeks; {kinds['silent'] - within:,} more were still")
    print("under watch when the data ended.")
    print(f"{kinds['untracked']:,} flights had no tail number; {kinds['overdue']:,} came too late to be followed.")


def chart(values: dict[str, float], width: int = 48) -> None:
    """Print a bar for each value."""
    most = max(values.values(), default=0) or 1
    label = max(map(len, values), default=0)
    for name, value in values.items():
        whole, rest = divmod(round(8 * width * value / most), 8)
        print(f"  {name:{label}} {value:6.1f} {'█' * whole}{EIGHTHS[rest]}".rstrip())


def longest_chain(delays: list[Event]) -> None:
    """Print the longest chain of late departures of one aircraft, each caused by the previous flight."""
    last = max(delays, key=lambda event: (event.chain or 0, event.minutes or 0, event.tail or ""))
    before = [event for event in delays if event.tail == last.tail and event.at <= last.at]
    chain = sorted(before, key=lambda event: event.at)[-(last.chain or 1) :]
    print(f"\nThe longest chain: {last.tail} of {AIRLINES.get(last.carrier, last.carrier)}")
    for event in chain:
        print(
            f"  {event.flight:16} landed {event.arr_delay:4} min late  ──▶  {event.next_flight:16}"
            f" left {event.dep_delay:4} min late, {event.at.astimezone(NEW_YORK):%d %b %H:%M}"
        )


def check(outcomes: list[tuple[Any, ...]], table: pa.Table) -> bool:
    """Compare the results with the oracle's, and print the outcome."""
    oracle = expected(table.to_pylist())
    return equals_the_oracle(outcomes, oracle)


if __name__ == "__main__":
    sys.exit(main())
