"""The flights program's second version continues from the first version's state. The rows equal the oracle's."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest

from examples.flights.data import heartbeat, slices
from examples.flights.job import build
from examples.flights.oracle import canonical, expected, milestones
from examples.flights.second_version import build_second
from pillarbox import StreamExecutionEnvironment
from pillarbox._elements.records import ArrowRecords
from tests.examples.test_flights import first

DAYS, EVERY = 20, 60


@pytest.mark.parametrize("changed_after", [pytest.param(1, marks=pytest.mark.long("the same earlier")), 4])
def test_a_state_more_on_the_way(changed_after):
    table = first(DAYS)
    parts = [*slices(table, 6), heartbeat(table)]
    last: datetime = parts[changed_after - 1]["departed"][-1].as_py()
    since = last + timedelta(hours=1)
    expected_rows = expected(table.to_pylist())
    expected_rows = canonical([*expected_rows, *milestones(expected_rows, since, EVERY)])
    assert Counter(kind for kind, *_ in expected_rows)["milestone"] > 20

    results: list[Any] = []
    savepoint = None
    versions: list[tuple[Any, Any]] = [
        (build, parts[:changed_after]),
        (partial(build_second, since=since, every=EVERY), parts[changed_after:]),
    ]
    for version, its_parts in versions:
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
        program = version(env.from_collection([]))
        with env.local_job(events=program, savepoint=savepoint) as running:
            for part in its_parts:
                records = [ArrowRecords(batch) for batch in part.to_batches(max_chunksize=10_000)]
                results += running.run_epoch({0: [records]})["events"]
            savepoint = running.savepoint()
    assert canonical(results) == expected_rows
