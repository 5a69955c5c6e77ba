"""The flights demo on a standalone cluster whose workers have neither pillarbox nor the program.

The query ships both. The results equal the oracle's.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from examples.flights.oracle import expected
from tests.cluster.standalone import SPARK_HOME, StandaloneCluster, environment, words_of
from tests.examples.test_flights import first
from tests.faults.processes import kill, wait_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.fault,
    pytest.mark.slow("a cluster of processes, each with a JVM"),
    pytest.mark.timeout(900),
    pytest.mark.skipif("PILLARBOX_CLUSTER" not in os.environ, reason="takes a cluster: make test-cluster runs it"),
]

ROOT = Path(__file__).resolve().parents[2]
WORKERS_PYTHON = ROOT / ".venvs" / "worker" / "bin" / "python"
DRIVER = Path(__file__).with_name("flights_driver.py")
DAYS, BATCHES = 20, 8
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "600m",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    assert WORKERS_PYTHON.exists(), "scripts/setup.sh worker makes it"
    running = StandaloneCluster(tmp_path / "cluster")
    try:
        yield running
    finally:
        running.close()


def shipped(folder: Path) -> list[str]:
    pillarbox = folder / "pillarbox.zip"
    subprocess.run([sys.executable, str(ROOT / "scripts" / "zip_package.py"), str(pillarbox)], check=True)
    pq.write_table(first(DAYS), folder / "table.parquet")
    return [str(pillarbox), shutil.make_archive(str(folder / "program"), "zip", ROOT, "examples")]


def start(folder: Path, command: list[str], arguments: Iterable[str] = (), **env: str) -> subprocess.Popen[bytes]:
    with (folder / "log").open("wb") as output:
        return subprocess.Popen(
            [*command, str(DRIVER), str(folder), str(BATCHES), *arguments],
            env=environment(**env),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def assert_right(folder: Path) -> None:
    assert (folder / "checkpoint" / "commits" / str(BATCHES)).exists(), "the last epoch is the heartbeat's"
    assert pickle.loads((folder / "found").read_bytes()) == expected(first(DAYS).to_pylist())


def test_a_worker_is_killed_in_the_middle(cluster: StandaloneCluster, tmp_path: Path) -> None:
    log, commits = tmp_path / "log", tmp_path / "checkpoint" / "commits"
    settings = {**SETTINGS, "spark.local.dir": str(tmp_path / "local")}
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master, *words_of(settings)]
    command += ["--py-files", ",".join(shipped(tmp_path))]
    driver = start(tmp_path, command, PYSPARK_PYTHON=str(WORKERS_PYTHON), PYSPARK_DRIVER_PYTHON=sys.executable)
    try:
        wait_for((commits / "2").exists, driver, lambda: log.read_text()[-6000:])
        assert [len(cluster.executors(worker)) for worker in (0, 1)] == [1, 1]
        cluster.workers[0].kill()
        assert not (commits / str(BATCHES)).exists(), "it was killed after the last epoch"
        cluster.wait_until_a_worker_is_lost()
        wait_for((tmp_path / "found").exists, driver, lambda: log.read_text()[-6000:])
        assert driver.wait() == 0, log.read_text()[-6000:]
    finally:
        kill(driver.pid, "all")
        driver.wait()
    assert "Lost executor" in log.read_text(), "its executor ended with it"
    assert_right(tmp_path)


def test_a_client_of_spark_connect(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """Spark sends a client's artifacts to workers of batch queries only, so the server names the archives."""
    archives = {"spark.executorEnv.PYTHONPATH": os.pathsep.join(shipped(tmp_path))}
    remote = cluster.serve({**SETTINGS, **archives, "spark.local.dir": str(tmp_path / "local")}, WORKERS_PYTHON)
    # The client builds the program, so it has both: from this checkout.
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    driver = start(tmp_path, [sys.executable], [remote], PYTHONPATH=path)
    try:
        assert driver.wait() == 0, (tmp_path / "log").read_text()[-6000:]
    finally:
        kill(driver.pid, "all")
        driver.wait()
    assert all(cluster.executors(worker) for worker in (0, 1))
    assert_right(tmp_path)
