"""Programs from other tests and from the examples."""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from examples.flights import job as flights
from pillarbox import WatermarkStrategy
from pillarbox.testing import row
from tests.faults.programs import job as faults_job
from tests.simulation import oracles
from tests.simulation.programs.program import FAR, SimulatedProgram
from tests.support.programs import second

ROOT = Path(__file__).parents[3]


def ledgers(env, events):
    return faults_job.program(events)


def fault_events(rng: random.Random) -> list[Any]:
    epochs = faults_job.make_events(rng.randrange(10**6), epochs=rng.randrange(1, 5), keys=12, records=30)
    return [event for parts in epochs[:-1] for part in parts for event in part]


def without_places(name: str, values: Sequence[Any]) -> Sequence[Any]:
    return [value[:4] for value in values]


def follow_aircraft(env, flights_of_a_week):
    return flights.build(flights_of_a_week)


def some_flights(rng: random.Random) -> list[Any]:
    rows = []
    minute = 0
    for _ in range(rng.randrange(60)):
        minute += rng.randrange(120)
        cancelled = rng.random() < 0.1
        rows.append(
            a_flight(
                "flight",
                minute + rng.choice([0, 0, 0, -200]),
                rng.choice(["N1", "N2", "N3", None]),
                None if cancelled else rng.choice([0, 5, 20, 60]),
                None if cancelled or rng.random() < 0.1 else rng.choice([0, 20, 90]),
                None if cancelled else rng.choice([30, 60, 120]),
            )
        )
    return rows


def a_flight(kind: str, minute: int, tail: str | None, dep: int | None, arr: int | None, air: int | None) -> Any:
    departed = datetime(2013, 1, 1, tzinfo=timezone.utc) + timedelta(minutes=minute)
    return row(
        kind=kind,
        departed=departed,
        tail=tail,
        carrier="PB",
        flight=minute % 97,
        origin="JFK",
        dest="BOS",
        dep_delay=dep,
        arr_delay=arr,
        air_time=air,
    )


def class_of_the_first_program() -> Any:
    path = ROOT / "examples" / "first_program.py"
    tree = ast.parse(path.read_text())
    tree.body = [part for part in tree.body if isinstance(part, (ast.ClassDef, ast.ImportFrom))]
    names: dict[str, Any] = {"__name__": "first_program"}
    exec(compile(tree, str(path), "exec"), names)
    (result,) = (value for value in names.values() if isinstance(value, type) and value.__module__ == "first_program")
    return result


def first_program(env, orders):
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("at")
    function = class_of_the_first_program()()
    return orders.assign_timestamps_and_watermarks(strategy).key_by("order_id").process(function)


def some_orders(rng: random.Random) -> list[Any]:
    events = []
    for number in range(rng.randrange(30)):
        at = 1000 * rng.randrange(3000)
        events.append(row(order_id=f"A{number}", what="ordered", at=at))
        if rng.random() < 0.7:
            events.append(row(order_id=f"A{number}", what="paid", at=at + 1000 * rng.randrange(1200)))
    return sorted(events, key=lambda event: event.at)


PROGRAMS: dict[str, SimulatedProgram] = {
    "ledgers": SimulatedProgram(
        ledgers,
        lambda rng: {"events": fault_events(rng)},
        last={"events": [faults_job.Event(10**6, faults_job.HEARTBEAT, faults_job.FAR)]},
        together={"events": second},
        view=without_places,
        batch_oracle="tests/faults have its oracle",
    ),
    "flights": SimulatedProgram(
        follow_aircraft,
        lambda rng: {"flights_of_a_week": some_flights(rng)},
        last={"flights_of_a_week": [a_flight("heartbeat", 200 * 24 * 60, None, None, None, None)]},
        batch_oracle="tests/examples have its oracle",
    ),
    "first-program": SimulatedProgram(
        first_program,
        lambda rng: {"orders": some_orders(rng)},
        last={"orders": [row(order_id="Z", what="paid", at=FAR)]},
        batch_oracle=oracles.each_key(oracles.unpaid_orders),
    ),
}
