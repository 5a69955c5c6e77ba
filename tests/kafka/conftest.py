"""Tests with a real Kafka: ``make test-kafka`` runs them. They have a Spark of their own, with Kafka's package."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kafka.broker import Broker
from tests.kafka.kafka_job import session
from tests.kafka.shop import Shop


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "PILLARBOX_KAFKA" not in os.environ:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="takes a Kafka: make test-kafka runs it"))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The one broker of the test run."""
    running = Broker(tmp_path_factory.mktemp("kafka") / "broker")
    try:
        yield running
    finally:
        running.close()


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
def shop(spark: SparkSession, broker: Broker, tmp_path: Path) -> Iterator[Shop]:
    """Topics of the test's own, and a folder."""
    opened = Shop(spark, broker.servers, tmp_path, tmp_path.name)
    try:
        yield opened
    finally:
        opened.close()
