"""The flights program equals the oracle, row for row, in every execution mode.

``PILLARBOX_LONG`` makes it run the whole year. The full matrix is in ``examples/flights/equality.py``.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import datetime, timedelta, timezone
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples.flights.data import COLUMNS, FILES_PER_SLICE, deal, flights, heartbeat, slices, write_files
from examples.flights.job import Event
from examples.flights.oracle import Outcome, expected
from examples.flights.run import run_batch, run_local, run_streaming

LONG = "PILLARBOX_LONG" in os.environ
MOST_DAYS = 365 if LONG else 60  # more than twice as long as a plane may be silent


@cache
def year() -> pa.Table:
    return flights()


def first(days: int) -> pa.Table:
    if days == 365:
        return year()
    end = datetime(2013, 1, 1, 5, tzinfo=timezone.utc) + timedelta(days=days)
    return year().filter(pc.field("departed") < pa.scalar(end, COLUMNS.field("departed").type))


@cache
def result(days: int) -> list[Outcome]:
    return expected(first(days).to_pylist())


Case = tuple[int, int, int | None, int | None]
MORNING = datetime(2013, 3, 1, 12, tzinfo=timezone.utc)


def hand_made(*rows: Case) -> pa.Table:
    flights = [
        {
            "kind": "flight", "departed": MORNING + timedelta(minutes=minute), "tail": "N1", "carrier": "UA",
            "flight": number, "origin": "EWR", "dest": "BOS", "dep_delay": dep_delay, "arr_delay": arr_delay,
            "air_time": None if arr_delay is None else 60,
        }
        for minute, number, dep_delay, arr_delay in rows
    ]  # fmt: skip
    return pa.Table.from_pylist(flights, schema=COLUMNS)


TWO_WEEKS = 14 * 24 * 60
CASES: dict[str, tuple[list[Case], int, int]] = {
    "late, then late again": ([(0, 1, 0, 40), (120, 2, 20, 0)], 1, 1),
    "too early to have come back": ([(0, 1, 0, 40), (119, 2, 20, 0)], 0, 1),
    "after twelve hours on the ground": ([(0, 1, 0, 40), (60 + 720, 2, 20, 0)], 1, 1),
    "after a minute more": ([(0, 1, 0, 40), (60 + 721, 2, 20, 0)], 0, 1),
    "a quarter of an hour is not late": ([(0, 1, 0, 15), (200, 2, 20, 16), (400, 3, 15, 0)], 0, 1),
    "a cancelled flight in between": ([(0, 1, 0, 40), (60, 2, None, None), (200, 3, 20, 0)], 1, 1),
    "a diverted flight": ([(0, 1, 30, None), (200, 3, 20, 0)], 0, 1),
    "a chain, broken, and another": (
        [(0, 1, 0, 40), (200, 2, 20, 30), (400, 3, 30, 16), (600, 4, 0, 30), (800, 5, 99, 0)], 3, 1,
    ),
    "back at the last moment": ([(0, 1, 0, 0), (TWO_WEEKS, 2, 0, 0)], 0, 1),
    "back a minute too late": ([(0, 1, 0, 0), (TWO_WEEKS + 1, 2, 0, 0)], 0, 2),
    "another flight before the one at that moment": ([(0, 1, 0, 0), (99, 2, 0, 0), (TWO_WEEKS, 3, 0, 0)], 0, 1),
    "cancelled at that moment": ([(0, 1, 0, 0), (TWO_WEEKS, 2, None, None)], 0, 1),
    "only cancelled": ([(0, 1, None, None)], 0, 0),
    "two at the same minute": ([(0, 2, 0, 50), (0, 1, 0, 60), (200, 4, 50, 20), (200, 3, 60, 20)], 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batches", [1, 3])
def test_by_hand(name, batches):
    rows, propagated, silent = CASES[name]
    table = hand_made(*rows)
    events = run_local(table, batches, 2)
    assert events == expected(table.to_pylist())
    assert Counter(kind for kind, *_ in events) == +Counter(propagated=propagated, silent=silent)


def test_chains_and_cancellations_are_counted():
    table = hand_made((0, 1, 0, 40), (200, 2, 20, 30), (300, 9, None, None), (400, 3, 30, 16), (600, 4, 0, 0))
    events = [Event(*event) for event in run_local(table, 2, 1)]
    assert [(e.flight, e.next_flight, e.minutes, e.chain, e.cancelled) for e in events if e.kind == "propagated"] == [
        ("UA1 EWR-BOS", "UA2 EWR-BOS", 20, 1, 0),
        ("UA2 EWR-BOS", "UA3 EWR-BOS", 30, 2, 1),
    ]


@pytest.mark.long("the table of all flights, which make demo reads")
def test_event_time():
    table = year()
    assert table.num_rows == 336_776
    assert table["tail"].null_count == 2_512
    rows = table.slice(0, 1).to_pylist()
    assert rows[0]["departed"] == datetime(2013, 1, 1, 10, 17, tzinfo=timezone.utc)
    assert (rows[0]["carrier"], rows[0]["flight"], rows[0]["dep_delay"]) == ("UA", 1545, 2)


def test_files_are_slices_in_time_and_then_a_heartbeat(tmp_path):
    table = first(3)
    write_files(table, tmp_path / "flights", 5)
    paths = sorted((tmp_path / "flights").iterdir(), key=lambda path: path.stat().st_mtime)
    assert [path.name for path in paths] == sorted(path.name for path in paths)
    assert len(paths) == 5 * FILES_PER_SLICE + 1
    files = [pa.parquet.read_table(path)["departed"].to_pylist() for path in paths]
    for number in range(FILES_PER_SLICE, len(files)):
        assert min(files[number]) >= max(files[number // FILES_PER_SLICE * FILES_PER_SLICE - 1])
    assert len(files[-1]) == 1
    assert sum(map(len, files)) == table.num_rows + 1


def test_slices_and_deals_keep_every_row():
    table = first(2)
    for shuffle in (None, 7):
        dealt = [file for part in slices(table, 9) for file in deal(part, 4, shuffle)]
        assert pa.concat_tables(dealt).sort_by([(name, "ascending") for name in COLUMNS.names]).equals(table)
    assert heartbeat(table)["kind"].to_pylist() == ["heartbeat"]


def test_local_runtime_when_all_tasks_die_after_every_epoch():
    assert run_local(first(16), 6, 3, forget=True) == result(16)


@pytest.mark.long("the streaming query gives the same results, and spark/test_execution.py has batch mode")
def test_batch_on_spark(spark, tmp_path):
    assert run_batch(spark, first(MOST_DAYS), tmp_path, 4) == result(MOST_DAYS)


@pytest.mark.long("make demo compares all results with the oracle")
@pytest.mark.parametrize(("days", "parallelism", "batches"), [(MOST_DAYS, 2, 4), (10, 3, 2)])
def test_streaming_on_spark(spark, tmp_path, days, parallelism, batches):
    assert run_streaming(spark, first(days), tmp_path, batches, parallelism, shuffle=batches) == result(days)
