"""The enrichment example gives what joining the tables gives, row for row, whatever the service does."""

from __future__ import annotations

from examples.enrichment.data import flights
from examples.enrichment.oracle import COLUMNS, expected
from examples.enrichment.run import run_batch


def same(found, files):
    wanted = expected(files)
    assert found.keys() == wanted.keys()
    for name, table in wanted.items():
        assert found[name].select(COLUMNS.names).to_pylist() == table.to_pylist()


def test_batch(spark, tmp_path, service):
    same(run_batch(spark, flights(1), tmp_path, service.url), tmp_path / "flights")
