"""Tests with an S3 gateway (``make test-s3``), in a Spark session with Hadoop's S3A."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.s3.gateway import Gateway
from tests.s3.s3_job import session
from tests.support.sessions import only_session


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    running = Gateway(tmp_path_factory.mktemp("s3"))
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, gateway: Gateway, workers_python: str) -> Iterator[SparkSession]:
    with only_session(lambda: session(tmp_path_factory.mktemp("spark"), gateway.endpoint)) as result:
        # Spark gives a Python of its driver ten seconds to start, which is little on a busy machine.
        result.sparkContext.pythonExec = workers_python
        yield result
