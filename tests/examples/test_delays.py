from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa
import pytest

from examples.delays.chart import draw
from examples.delays.data import slices, tables
from examples.delays.job import Hour
from examples.delays.oracle import expected
from examples.delays.run import run_local

_LONG = pytest.mark.long("the same in other batches")


@pytest.fixture(scope="module")
def streams():
    end = datetime(2013, 1, 6, tzinfo=timezone.utc)
    return {
        name: table.filter(
            [next(v for v in row.values() if isinstance(v, datetime)) < end for row in table.to_pylist()]
        )
        for name, table in tables(1).items()
    }


@pytest.fixture(scope="module")
def oracle(streams):
    rows = expected(**{name: table.to_pylist() for name, table in streams.items()})
    hours = [Hour(*row) for row in rows]
    assert len(hours) > 2_000
    assert len({(hour.origin, hour.limit) for hour in hours}) > 6
    assert 0 < sum(hour.alarm for hour in hours) < len(hours) / 2
    assert len({hour.wind for hour in hours}) > 10
    return rows


@pytest.mark.long("make demo-windows compares all results with an oracle")
def test_slices_have_each_row_once(streams):
    for count in (1, 4):
        parts = [*slices(streams, count)]
        assert len(parts) == count + 1
        for name, table in streams.items():
            assert pa.concat_tables([part[name] for part in parts[:-1]]).equals(table)
            assert parts[-1][name].num_rows == 1


@pytest.mark.parametrize(
    ("batches", "parallelism"), [pytest.param(1, 1, marks=_LONG), pytest.param(5, 2, marks=_LONG), (3, 4)]
)
def test_equal_to_the_oracle_on_the_local_runtime(streams, oracle, batches, parallelism):
    assert run_local(streams, batches, parallelism) == oracle


@pytest.mark.long("make demo-windows draws it")
def test_the_picture_shows_the_days_with_most_alarms(oracle, tmp_path):
    draw([Hour(*row) for row in oracle], tmp_path / "delays.svg")
    drawn = (tmp_path / "delays.svg").read_text()
    assert all(f">{text}</text>" in drawn for text in ("EWR", "JFK", "LGA", "delay", "limit", "above the limit"))
