"""Hypothesis profiles, the Spark session, and the Spark Connect client."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from tests.support.class_archive import java_options
from tests.support.connect import ConnectClient
from tests.support.forked_python import forked_python
from tests.support.local_files import use_local_files
from tests.support.sessions import active_session, only_session, tasks_are_tried_once

pytest_plugins = ["tests.support.budgets", "tests.support.collector"]

# Profiles of hypothesis. "ci": the same examples in every run. "dev": new ones each time; failures in .hypothesis/.
# Tests set no number of their own: each has 10 examples, and 300 in `make test-all`. There is no deadline: on a busy
# machine a slow example is not a bug. A fixture that a test shares between its examples only sets things up.
_both = settings(
    deadline=None,
    max_examples=300 if "PILLARBOX_LONG" in os.environ else 10,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
settings.register_profile("ci", _both, derandomize=True, database=None, print_blob=True)
settings.register_profile("dev", _both)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

os.environ.setdefault("JDK_JAVA_OPTIONS", java_options())
use_local_files()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test with a Spark session. With several processes, slow files run first."""
    for item in items:
        if not {"spark", "connect"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.spark)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    slow = {item.path for item in items if item.get_closest_marker("spark") or item.get_closest_marker("fault")}
    # The simulation is one file, and the longest of the others.
    items.sort(key=lambda item: (item.path not in slow, "simulation" not in item.path.parts))


@pytest.fixture(scope="session")
def workers_python() -> Iterator[str]:
    with forked_python() as program:
        yield program


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, workers_python: str) -> Iterator[SparkSession]:
    """The test run's only local Spark session.

    `local[2, 4]` means two cores, and that a job survives three failures of a task, so that tests can kill workers. To
    change settings for one test, use `spark.newSession()`.
    """
    home = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2, 4]")
        .appName("pillarbox-tests")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        .config("spark.local.dir", str(home / "local"))
        .config("spark.log.level", "ERROR")
        # Queries of other tests may still have some.
        .config("spark.pillarbox.homes.max", "64")
        .config("spark.python.daemon.module", "tests.support.daemon")
        .config("spark.speculation", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.ui.enabled", "false")
    )
    with only_session(builder.getOrCreate) as session:
        session.sparkContext.pythonExec = workers_python
        yield session


@pytest.fixture(autouse=True)
def _the_session_stays_active(request: pytest.FixtureRequest) -> Iterator[None]:
    """Activate the shared session again. (Creating a DataFrame from rows activates that DataFrame's session.)"""
    yield
    if "spark" in request.fixturenames:
        active_session(request.getfixturevalue("spark"))


@pytest.fixture
def one_attempt(spark: SparkSession) -> Iterator[None]:
    with tasks_are_tried_once(spark):
        yield


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory, workers_python: str) -> Iterator[ConnectClient]:
    """The test run's only Spark Connect client, which runs functions in a separate process."""
    client = ConnectClient(tmp_path_factory.mktemp("connect"), python=workers_python)
    try:
        yield client
    finally:
        client.close()
