"""The enrichment example gives what joining the tables gives, row for row, whatever the service does."""

from __future__ import annotations

import pytest

from examples.enrichment.data import flights
from examples.enrichment.oracle import COLUMNS, expected
from examples.enrichment.run import read_enriched, run_batch, start_streaming


def same(found, files):
    wanted = expected(files)
    assert found.keys() == wanted.keys()
    for name, table in wanted.items():
        assert found[name].select(COLUMNS.names).to_pylist() == table.to_pylist()


@pytest.mark.long("faults/test_async.py has such a service in a streaming query")
def test_streaming(spark, tmp_path, service):
    service.control(latency=2, errors=0.05, die_after=200, dead_seconds=0.5)
    table = flights(2)
    start_streaming(spark, table, tmp_path, service.url, 3).awaitTermination()
    same(read_enriched(spark, tmp_path), tmp_path / "flights")
    stats = service.stats()
    assert stats["outcomes"]["cut"] and stats["outcomes"]["500"] and stats["outcomes"]["404"]
    # Two are wanted for each flight; how many are remembered depends on how many workers Spark has.
    assert stats["requests"] < 2 * table.num_rows


def test_batch(spark, tmp_path, service):
    same(run_batch(spark, flights(1), tmp_path, service.url), tmp_path / "flights")
