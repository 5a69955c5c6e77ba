"""Tests with a real Kafka (``make test-kafka``), in a Spark session with Kafka's package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kafka.broker import Broker
from tests.kafka.kafka_job import session
from tests.kafka.shop import Shop
from tests.support.sessions import only_session


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = Broker(tmp_path_factory.mktemp("kafka") / "broker")
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with only_session(lambda: session(tmp_path_factory.mktemp("spark"))) as result:
        yield result


@pytest.fixture
def shop(spark: SparkSession, broker: Broker, tmp_path: Path) -> Iterator[Shop]:
    opened = Shop(spark, broker.servers, tmp_path, tmp_path.name)
    try:
        yield opened
    finally:
        opened.close()
