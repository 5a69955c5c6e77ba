"""Looks up weather and aircraft for flights, at a service that is slow and sometimes fails.

python -m examples.enrichment.demo [--days 14] [--batches 7] [--latency 20] [--errors 0.02] [--hangs 0.0005]
                                   [--dead-seconds 2] [--out build/demo-enrichment] [--no-check]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import pillarbox
from examples.enrichment.data import flights
from examples.enrichment.oracle import COLUMNS, expected
from examples.enrichment.run import read_enriched, start_streaming
from examples.enrichment.service import running_service
from examples.flights.demo import EIGHTHS, positive, shown
from examples.service_process import RunningService
from pillarbox import local_session

LATE = 15  # minutes
Flight = dict[str, Any]


def main() -> int:
    """Run the demo. The exit code is 0 if the results equal the oracle's."""
    arguments = parse()
    out: Path = arguments.out.resolve()
    started = time.monotonic()
    table = flights(arguments.days)
    with running_service(latency=arguments.latency, errors=arguments.errors, hangs=arguments.hangs) as service:
        service.control(die_after=table.num_rows // 8, dead_seconds=arguments.dead_seconds)
        print(f"The service is at {service.url}: {bad_days(arguments)}.")
        print(f"{table.num_rows:,} flights left New York's airports, or were to. Starting Spark ...\n", flush=True)
        spark = local_session(2, app_name="enrichment", spark__log__level="ERROR")
        try:
            query = start_streaming(spark, table, out, service.url, arguments.batches)
            counters = follow(query)
            tables = read_enriched(spark, out)
        finally:
            spark.stop()
        lookups(counters, service)
    summary([flight for file in tables.values() for flight in file.to_pylist()])
    print(f"\nThe flights as Parquet: {shown(out / 'enriched')}")
    equal = arguments.no_check or check(tables, out / "flights")
    print(f"Took {time.monotonic() - started:.0f} s.")
    return 0 if equal else 1


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--days", type=positive, default=14, help="days of the year to take")
    parser.add_argument("--batches", type=positive, default=7, help="micro-batches that they are cut into")
    parser.add_argument("--latency", type=float, default=20.0, help="milliseconds that half of the answers take")
    parser.add_argument("--errors", type=float, default=0.02, help="share of requests that the service fails with 500")
    parser.add_argument("--hangs", type=float, default=0.0005, help="share of requests that it never answers")
    parser.add_argument("--dead-seconds", type=float, default=2.0, help="how long it is dead, once")
    parser.add_argument("--out", type=Path, default=Path("build/demo-enrichment"), help="folder for all output")
    parser.add_argument("--no-check", action="store_true", help="do not compare with the oracle")
    return parser.parse_args()


def bad_days(arguments: argparse.Namespace) -> str:
    """Return a description of the service's faults."""
    return (
        f"answers in {arguments.latency:g} ms, {arguments.errors:.2%} of them HTTP 500;"
        f" {arguments.hangs:.2%} never; once dead for {arguments.dead_seconds:g} s"
    )


def follow(query: Any) -> Counter[str]:
    """Print a line for each micro-batch, until the query ends. Returns the sums of the lookups' counters."""
    print("epoch   flights   flights/s   requests   retried   from cache   half within   99% within")
    total: Counter[str] = Counter()
    rows, next_batch = 0, 0
    active = True
    while active:
        active = query.isActive
        for progress in [p for p in query.recentProgress if p["batchId"] >= next_batch and p["numInputRows"] > 1]:
            next_batch = progress["batchId"] + 1
            rows += progress["numInputRows"]
            counts, most = counted(progress)
            total.update(counts)
            speed = 1000 * progress["numInputRows"] / progress["durationMs"]["triggerExecution"]
            print(
                f"{progress['batchId']:5}  {rows:8,}  {speed:10,.0f}   {counts['requests']:8,}  {counts['retried']:8,}"
                f"  {counts['cache_hits']:11,}  {most['latency_p50_us'] / 1000:9,.0f} ms"
                f"  {most['latency_p99_us'] / 1000:8,.0f} ms",
                flush=True,
            )
        time.sleep(0.1)
    query.awaitTermination()  # raises what the query failed with
    return total


def counted(progress: Any) -> tuple[Counter[str], Counter[str]]:
    """Return the sum and the maximum of each counter in a micro-batch, over all lookups and tasks."""
    total: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for task in pillarbox.metrics(progress):
        for name, value in task.counters.items():
            counter = name.rpartition(".")[2]
            total[counter] += value
            most[counter] = max(most[counter], value)
    return total, most


def lookups(counters: Counter[str], service: RunningService) -> None:
    """Print statistics of the lookups, as counted by the program and by the service."""
    stats = service.stats()
    outcomes = Counter(stats["outcomes"])
    completed, cached = counters["completed"], counters["cache_hits"]
    print(
        f"\n{completed:,} times weather or an aircraft was wanted. {cached:,} times it was in a cache; the others took"
    )
    print(f"{counters['requests']:,} requests, {counters['retried']:,} of them because one before had failed.")
    print(f"\nWhat the service did with {stats['requests']:,} requests, {stats['in_flight_max']} at once:")
    names = {
        "200": "answered", "404": "said that it does not know", "500": "failed with HTTP 500",
        "cut": "was dead", "hung": "never answered",
    }  # fmt: skip
    chart({name: outcomes[outcome] for outcome, name in names.items()}, "8,")
    if stats["requests"] > counters["requests"]:
        print("(More than the program counts: aiohttp itself asks again where a connection that it kept is cut.)")


def summary(flights: list[Flight]) -> None:
    """Print a summary of the results."""
    flown = [flight for flight in flights if flight["dep_delay"] is not None]
    print(f"\nHow many of 100 departures were more than {LATE} minutes late, by the weather at the airport:")
    chart(late_by(flown, weather_of, ["fair", "strong wind", "rain or snow", "poor visibility", "not recorded"]))
    print(f"\nHow many of 100 departures were more than {LATE} minutes late, by temperature:")
    warmth = [f"{low:3} to {low + 10:2} °F" for low in range(-10, 110, 10)]
    chart(late_by(flown, lambda f: None if f["temp"] is None else warmth[int(f["temp"] // 10) + 1], warmth))

    identified = [flight for flight in flights if flight["manufacturer"] is not None]
    makers = Counter(maker_of(flight) for flight in identified)
    print(f"\n{len(identified):,} of {len(flights):,} flights have an aircraft that the service knows. Their makers:")
    chart(dict(makers.most_common(6)), "8,")
    ages = Counter(2013 - flight["built"] for flight in identified if flight["built"] is not None)
    print("\n... and their age in years:")
    by_five = {f"{low:2} to {low + 4:2}": sum(ages[year] for year in range(low, low + 5)) for low in range(0, 40, 5)}
    chart(by_five, "8,")


def late_by(flown: list[Flight], kind_of: Callable[[Flight], str | None], kinds: list[str]) -> dict[str, float]:
    """Return the percentage of late departures among the flights of each kind."""
    delays: dict[str | None, list[bool]] = defaultdict(list)
    for flight in flown:
        delays[kind_of(flight)].append(flight["dep_delay"] > LATE)
    return {kind: 100 * sum(delays[kind]) / len(delays[kind]) for kind in kinds if delays[kind]}


def weather_of(flight: Flight) -> str:
    """Return a flight's weather in words."""
    if flight["visib"] is None or flight["precip"] is None:
        return "not recorded"
    if flight["visib"] < 3:
        return "poor visibility"
    if flight["precip"] > 0:
        return "rain or snow"
    return "strong wind" if (flight["wind_speed"] or 0) > 20 else "fair"


def maker_of(flight: Flight) -> str:
    """Return an aircraft's manufacturer. Several spellings of one manufacturer become one name."""
    name: str = flight["manufacturer"]
    if name.startswith("MCDONNELL DOUGLAS"):
        return "McDonnell Douglas"
    return "Airbus" if name.startswith("AIRBUS") else name.title()


def chart(values: Mapping[str, float], form: str = "8.1f", width: int = 48) -> None:
    """Print a bar for each value."""
    most = max(values.values(), default=0) or 1
    label = max(map(len, values), default=0)
    for name, value in values.items():
        whole, rest = divmod(round(8 * width * value / most), 8)
        print(f"  {name:{label}} {value:{form}} {'█' * whole}{EIGHTHS[rest]}".rstrip())


def check(tables: dict[str, pa.Table], files: Path) -> bool:
    """Compare the results of each file with the oracle's, row by row, and print the outcome."""
    oracle = expected(files)
    rows = sum(table.num_rows for table in oracle.values())
    different = [
        (name, index, row, right)
        for name in sorted(tables.keys() | oracle.keys())
        for index, (row, right) in enumerate(pairs(tables.get(name), oracle.get(name)))
        if row != right
    ]
    if not different:
        print(f"equal to the oracle: {rows:,} flights, row for row, in the order of their files")
        return True
    print(f"NOT equal to the oracle: {len(different):,} of {rows:,} rows, such as")
    for name, index, row, right in different[:3]:
        print(f"  {name}, row {index}:\n    found    {row}\n    expected {right}")
    return False


def pairs(result: pa.Table | None, oracle: pa.Table | None) -> list[tuple[Any, Any]]:
    """Return pairs of a file's rows: the result and the expected row. A missing row is None."""
    from itertools import zip_longest

    rows = [table.select(COLUMNS.names).to_pylist() if table is not None else [] for table in (result, oracle)]
    return list(zip_longest(*rows))


if __name__ == "__main__":
    sys.exit(main())
