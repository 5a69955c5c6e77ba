"""Tests with Delta Lake: ``make test-delta`` runs them. They have a Spark of their own, with Delta's package."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.delta.delta_job import session
from tests.delta.shop import Shop


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "PILLARBOX_DELTA" not in os.environ:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="takes Delta Lake: make test-delta runs it"))


@pytest.fixture(scope="session")
def spark(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of these tests."""
    with pytest.MonkeyPatch.context() as env:
        env.setenv("PYTHONPATH", str(pytestconfig.rootpath), prepend=os.pathsep)
        found = session(tmp_path_factory.mktemp("spark"))
        try:
            yield found
        finally:
            for query in found.streams.active:
                query.stop()
            found.stop()


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    """Tables of the test's own."""
    return Shop(spark, tmp_path)
