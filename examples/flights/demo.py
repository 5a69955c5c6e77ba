"""A year of flights through Spark: which late aircraft make their next flight late, and which do not come back.

python examples/flights/demo.py [--batches 37] [--parallelism 2] [--out build/demo] [--months 12] [--no-check]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from data import flights
from job import Event
from oracle import expected
from pyspark.sql.streaming.query import StreamingQuery
from run import read_events, start_streaming

from pillarbox import local_session

AIRLINES = {
    "9E": "Endeavor", "AA": "American", "AS": "Alaska", "B6": "JetBlue", "DL": "Delta", "EV": "ExpressJet",
    "F9": "Frontier", "FL": "AirTran", "HA": "Hawaiian", "MQ": "Envoy", "OO": "SkyWest", "UA": "United",
    "US": "US Airways", "VX": "Virgin", "WN": "Southwest", "YV": "Mesa",
}  # fmt: skip


def main() -> int:
    arguments = parse()
    started = time.monotonic()
    print("Reading the flights of 2013 that left New York ...", flush=True)
    rows = flights(arguments.months)
    without_tail = sum(row["tail"] is None for row in rows)
    print(f"{len(rows):,} flights, {without_tail:,} of them without a tail number. Starting Spark ...", flush=True)
    spark = local_session(arguments.parallelism)
    spark.sparkContext.setLogLevel("OFF")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    env, query = start_streaming(spark, rows, arguments.out, arguments.batches, arguments.parallelism)
    plan = env.get_execution_graph()
    print(f"\n{plan}\n", flush=True)
    (arguments.out / "plan.md").write_text(f"```mermaid\n{plan.to_mermaid()}\n```\n")
    follow(query, rows)
    events = read_events(spark, arguments.out)
    summary(events, rows)
    print(f"\nEvents: {arguments.out / 'events'} (Parquet)   plan: {arguments.out / 'plan.md'}")
    spark.stop()
    print(f"Took {time.monotonic() - started:.0f} s.")
    if arguments.no_check:
        return 0
    if events != expected(rows):
        print("NOT equal to the oracle.")
        return 1
    print(f"Equal to the oracle, a plain-Python program over all flights at once: {len(events):,} rows, row for row.")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", type=int, default=37, help="micro-batches that the year is cut into")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--months", type=int, default=12, help="months of the year to take")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "build" / "demo")
    parser.add_argument("--no-check", action="store_true", help="do not compare with the oracle")
    return parser.parse_args()


def follow(query: StreamingQuery, rows: list[dict[str, Any]]) -> None:
    """Print a line for each micro-batch, until the query ends."""
    print(" batch   flights  up to        rows/s   aircraft   waiting timers   events   state written", flush=True)
    done = taken = found = 0
    while True:
        active = query.isActive
        for progress in query.recentProgress[done:]:
            done += 1
            if not progress["numInputRows"]:
                continue
            tasks = progress["observedMetrics"]["pillarbox"]["tasks"]
            keyed = [task for task in tasks if task["level"] == 1]
            taken = min(taken + progress["numInputRows"], len(rows))
            found += sum(task["records_out"] for task in keyed)
            seconds = progress["durationMs"]["triggerExecution"] / 1000
            print(
                f" {progress['batchId'] + 1:5}  {taken:8,}  {rows[taken - 1]['departed']:%d %b %Y}"
                f"  {progress['numInputRows'] / seconds:7,.0f}   {sum(task['keys'] for task in keyed):8,}"
                f"   {sum(task['event_time_timers'] for task in keyed):14,}   {found:6,}"
                f"   {sum(task['state_bytes_written'] for task in keyed) / 1024:9,.0f} KiB",
                flush=True,
            )
        if not active:
            break
        time.sleep(0.2)
    query.awaitTermination()


def summary(events: list[Event], rows: list[dict[str, Any]]) -> None:
    """Print what came out."""
    delays = [event for event in events if event.kind == "propagated"]
    late = sum((row["dep_delay"] or 0) > 15 for row in rows)
    total = sum(event.minutes or 0 for event in delays)
    print(f"\n{len(delays):,} of {late:,} late departures came from the aircraft's own late arrival before:")
    print(f"{total / 60:,.0f} hours of delay handed on. By airline, per 1,000 of its departures:\n")
    departures = Counter(row["carrier"] for row in rows)
    handed_on = Counter(event.carrier for event in delays)
    rates = {carrier: 1000 * handed_on[carrier] / count for carrier, count in departures.items()}
    most = max(rates.values()) or 1
    for carrier, rate in sorted(rates.items(), key=lambda item: -item[1]):
        minutes = sum(event.minutes or 0 for event in delays if event.carrier == carrier)
        mean = f"{minutes / handed_on[carrier]:4.0f} min each" if handed_on[carrier] else ""
        print(f"  {AIRLINES.get(carrier, carrier):11} {rate:6.1f} {'█' * round(40 * rate / most):40} {mean}")
    quiet = [event for event in events if event.kind == "silent"]
    print(f"\n{len(quiet):,} times an aircraft did not show up again within two weeks. The longest chain handed on:")
    worst = max(delays, key=lambda event: event.minutes or 0)
    print(
        f"  {worst.tail}: {worst.last_flight} landed {worst.arr_delay} min late,"
        f" {worst.next_flight} left {worst.dep_delay} min late on {worst.at:%d %b %Y}"
    )


if __name__ == "__main__":
    sys.exit(main())
