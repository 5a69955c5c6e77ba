"""Tests with Delta Lake (``make test-delta``), in a Spark session with Delta's package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.delta.delta_job import session
from tests.delta.shop import Shop
from tests.support.sessions import only_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with only_session(lambda: session(tmp_path_factory.mktemp("spark"))) as result:
        yield result


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path)
