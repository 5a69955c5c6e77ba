"""A standalone cluster of the installed PySpark on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pyspark

from tests.faults.processes import kill, wait_for
from tests.support.sessions import environment_without_spark

__all__ = ["SPARK_HOME", "Daemon", "StandaloneCluster", "environment", "words_of"]

SPARK_HOME = Path(pyspark.__file__).parent
_DEPLOY = "org.apache.spark.deploy"
# Spark takes free ports, and logs them.
_ADDRESS = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_CONNECT = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": "0"}


def words_of(settings: Mapping[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


def environment(**more: str) -> dict[str, str]:
    env = environment_without_spark(SPARK_HOME=str(SPARK_HOME), SPARK_LOCAL_IP="127.0.0.1")
    env.pop("PYTHONPATH", None)
    return {**env, **more}


class Daemon:
    """A Spark process and its children, in a process session of their own."""

    def __init__(self, home: Path, name: str, *arguments: str, **env: str) -> None:
        self.log = home / "log"
        home.mkdir(parents=True)
        with self.log.open("wb") as output:
            # spark-class becomes Java, so this is the process itself.
            self._process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), f"{_DEPLOY}.{name}", *arguments],
                env=environment(**{"SPARK_DAEMON_MEMORY": "256m", **env}),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def says(self, pattern: str) -> list[str]:
        return re.findall(pattern, self.log.read_text())

    def wait_until_it_says(self, pattern: str, times: int = 1) -> str:
        wait_for(lambda: len(self.says(pattern)) >= times, self._process, lambda: self.log.read_text()[-4000:])
        return self.says(pattern)[-1]

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        kill(self._process.pid, "all")
        self._process.wait()


class StandaloneCluster:
    """A master and two workers with a core each.

    Attributes:
        master: its address, as ``spark-submit --master`` accepts it.
    """

    def __init__(self, home: Path, workers: int = 2) -> None:
        self._home = home
        self._daemons: list[Daemon] = []
        try:
            self._master = self._started(Daemon(home / "master", "master.Master", *_ADDRESS))
            self.master = self._master.wait_until_it_says(r"Starting Spark master at (spark://\S+)")
            resources = ["--cores", "1", "--memory", "1g"]
            start = partial(Daemon, SPARK_LOCAL_DIRS=str(home / "local"))
            for number in range(workers):
                folder = home / f"worker {number}"
                work = ["--work-dir", str(self._work(number))]
                self._started(start(folder, "worker.Worker", *_ADDRESS, *resources, *work, self.master))
            self._master.wait_until_it_says("Registering worker ", workers)
        except BaseException:
            self.close()
            raise
        self.workers = self._daemons[1:]

    def serve(self, settings: Mapping[str, str], python: Path) -> str:
        """Start a Spark Connect server, an application of this cluster, and return its address.

        Args:
            python: the Python of its workers.
        """
        words = ["--master", self.master, *words_of({**settings, **_CONNECT}), "--class", _SERVER, "spark-internal"]
        env = {"PYSPARK_PYTHON": str(python), "SPARK_DAEMON_MEMORY": "1g"}
        server = self._started(Daemon(self._home / "server", "SparkSubmit", *words, **env))
        port = server.wait_until_it_says(r"Spark Connect server started at: \S*:(\d+)")
        return f"sc://127.0.0.1:{port}"

    def executors(self, worker: int) -> list[Path]:
        return sorted(self._work(worker).glob("app-*/[0-9]*"))

    def wait_until_a_worker_is_lost(self) -> None:
        self._master.wait_until_it_says("Removing worker ")

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.close()

    def _started(self, daemon: Daemon) -> Daemon:
        self._daemons.append(daemon)
        return daemon

    def _work(self, worker: int) -> Path:
        return self._home / f"work-{worker}"
