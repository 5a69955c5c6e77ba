"""The flights demo's query on a standalone cluster, whose workers have neither pillarbox nor the program: both are
shipped with ``--py-files``. A worker is killed in the middle, and the results are those of the oracle."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from examples.flights.oracle import expected
from tests.cluster.standalone import SPARK_HOME, StandaloneCluster, environment
from tests.examples.test_flights import first
from tests.faults.test_driver import kill, wait_for

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
    running = StandaloneCluster(tmp_path / "cluster")
    try:
        yield running
    finally:
        running.close()


def submit(cluster: StandaloneCluster, folder: Path) -> subprocess.Popen[bytes]:
    """Start the driver, which finds pillarbox and the program where its workers find them: in what it ships."""
    shipped = folder / "pillarbox.zip"
    subprocess.run([sys.executable, str(ROOT / "scripts" / "zip_package.py"), str(shipped)], check=True)
    program = shutil.make_archive(str(folder / "program"), "zip", ROOT, "examples")
    settings = {**SETTINGS, "spark.local.dir": str(folder / "local")}
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command += ["--py-files", f"{shipped},{program}", str(DRIVER), str(folder), str(BATCHES)]
    with (folder / "log").open("wb") as output:
        return subprocess.Popen(
            command,
            env=environment(PYSPARK_PYTHON=str(WORKERS_PYTHON), PYSPARK_DRIVER_PYTHON=sys.executable),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def test_a_worker_is_killed_in_the_middle(cluster: StandaloneCluster, tmp_path: Path) -> None:
    assert WORKERS_PYTHON.exists(), "scripts/setup.sh worker makes it"
    table = first(DAYS)
    pq.write_table(table, tmp_path / "table.parquet")
    log = tmp_path / "log"
    commits = tmp_path / "checkpoint" / "commits"
    driver = submit(cluster, tmp_path)
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
    assert (commits / str(BATCHES)).exists(), "the last epoch is the heartbeat's"
    assert pickle.loads((tmp_path / "found").read_bytes()) == expected(table.to_pylist())
