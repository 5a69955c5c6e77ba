"""Windows of the flights equal Spark's own, row for row, in every execution mode. (More: ``make equality``.)"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone

import pytest

from examples.flights.data import flights
from examples.flights.run import Job, collected, run_local
from examples.flights.windows import Departures, build, by_spark

WINDOWS = Job(build, Departures)


@pytest.fixture(scope="module")
def january():
    table = flights(1)
    end = datetime(2013, 1, 10, tzinfo=timezone.utc)
    return table.slice(0, sum(at < end for at in table["departed"].to_pylist()))


@pytest.fixture(scope="module")
def spark_windows(spark, january):
    result = collected(by_spark(spark.createDataFrame(january)), WINDOWS)
    assert set(Counter(row[0] for row in result)) == {"hour", "three hours", "day"}
    assert len(result) > 5_000
    return result


@pytest.mark.long("spark/test_windows.py compares all windows with Spark's own")
@pytest.mark.parametrize(("batches", "parallelism"), [(7, 1), (1, 4), (30, 2)])
def test_windows_equal_sparks_own_on_the_local_runtime(january, spark_windows, batches, parallelism):
    assert run_local(january, batches, parallelism, shuffle=batches, forget=True, job=WINDOWS) == spark_windows
