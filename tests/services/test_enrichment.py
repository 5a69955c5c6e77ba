"""The enrichment example equals a join of the tables, row for row, in spite of the service's faults."""

from __future__ import annotations

from pathlib import Path

import pytest

import pillarbox
from examples.enrichment.data import flights
from examples.enrichment.oracle import COLUMNS, expected
from examples.enrichment.run import run_batch, start_streaming, writer
from pillarbox import ConfigurationError, ProgramError


def same(tables, files):
    expected_tables = expected(files)
    assert tables.keys() == expected_tables.keys()
    for name, table in expected_tables.items():
        assert tables[name].select(COLUMNS.names).to_pylist() == table.to_pylist()


@pytest.mark.long("spark/recording/test_record.py has refusals")
@pytest.mark.slow("a query that begins with new workers")
def test_a_recording_is_refused(spark, tmp_path, service):
    start_streaming(spark, flights(1), tmp_path, service.url, 1).awaitTermination()
    before = service.stats()["requests"]
    again = writer(spark, tmp_path, service.url)
    recording = str(tmp_path / "recording")
    for caller, recorded in (("WeatherAt", "AircraftOf"), ("AircraftOf", "WeatherAt")):
        refused = rf"^operator 'async_map-2' \({caller}\) is in another program .* and calls a service.*allow_calls"
        with pytest.raises(ConfigurationError, match=refused):
            pillarbox.record(again, recording, epoch=0, uid=recorded, subtask=0)
    several = r"has 2 tasks with an operator 'async_map-2': '.*(WeatherAt.*AircraftOf|AircraftOf.*WeatherAt).*'; give"
    with pytest.raises(ProgramError, match=several):
        pillarbox.record(again, recording, epoch=0, uid="async_map-2", subtask=0)
    assert not Path(recording).exists()
    assert service.stats()["requests"] == before


@pytest.mark.long("test_http.py calls the service from Spark, and make demo-enrichment runs all of this")
def test_batch(spark, tmp_path, service):
    same(run_batch(spark, flights(1), tmp_path, service.url), tmp_path / "flights")
