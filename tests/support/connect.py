"""A child process with a Spark Connect session, because one process cannot have both a classic and a Connect session.

The fixture ``connect`` (tests/conftest.py) is a client for the whole test run. A test passes it functions of the test's
own module, whose first argument is the session. Their results are returned, and their errors raised::

    def count(spark, rows):
        return spark.range(rows).count()

    def test_count(connect):
        assert connect.run(count, 5) == 5
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from tests.support.sessions import environment_without_spark

__all__ = ["ConnectClient", "RaisedInTheClient"]

_ROOT = Path(__file__).resolve().parents[2]


class RaisedInTheClient(Exception):
    """An exception that a function raised in the child process.

    Attributes:
        type: name of the exception's class.
        message: the exception's text, as the user sees it.
    """

    def __init__(self, type: str, message: str, formatted: str) -> None:
        super().__init__(formatted)
        self.type = type
        self.message = message


class ConnectClient:
    """Runs functions in a separate process with a Spark Connect session.

    Args:
        remote: as in ``SparkSession.builder.remote``. ``local[n]`` starts a server in the same process.
        python: the Python command that starts Spark's workers.
    """

    def __init__(
        self,
        home: Path,
        remote: str = "local[2]",
        settings: dict[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        here, there = Pipe()
        env = environment_without_spark(
            PYSPARK_PYTHON=python,
            PYSPARK_DRIVER_PYTHON=sys.executable,
            SPARK_LOCAL_IP="127.0.0.1",
            SPARK_TESTING="1",  # the server takes a free port
            PYTHONPATH=os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])),
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.connect", str(there.fileno())],
            env=env,
            pass_fds=[there.fileno()],
            cwd=home,
        )
        there.close()
        self._connection = here
        self._connection.send((remote, settings or {}))

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        self._connection.send_bytes(cloudpickle.dumps((function, args)))
        raised, result = self._connection.recv()
        if raised is not None:
            raise RaisedInTheClient(*raised)
        return result

    def close(self) -> None:
        self._connection.close()
        try:
            self._process.wait(100)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _serve(connection: Connection) -> None:
    from pyspark.sql import SparkSession

    remote, settings = connection.recv()
    builder: Any = SparkSession.builder.remote(remote)
    # The server's settings, which a client cannot set: ignore Spark's warning.
    warnings.filterwarnings("ignore", "Failed to set spark")
    local = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.python.daemon.module": "tests.support.daemon",
        "spark.ui.enabled": "false",
    }
    for name, value in {**(local if remote.startswith("local") else {}), **settings}.items():
        builder = builder.config(name, value)
    session: SparkSession | None = None
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            break
        result = raised = None
        try:
            session = session or builder.getOrCreate()
            function, args = cloudpickle.loads(request)
            result = function(session, *args)
        except BaseException as error:
            raised = (type(error).__name__, str(error), traceback.format_exc())
        connection.send((raised, result))
    if session is not None:
        for query in session.streams.active:
            query.stop()
        session.stop()


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
