# SPDX-License-Identifier: Apache-2.0
"""PyFlink for the benchmarks: its environment, and processes in it that obey."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.environments import DIRECTORY as ENVIRONMENTS
from benchmarks.environments import Environment, NotInstalled, PeerSide
from benchmarks.support import ROOT

FLINK = Environment(
    "PyFlink",
    "pyflink",
    ("apache-flink==2.3.0", "aiohttp", "uvloop"),
    "900 MB",
    # Some of its requirements are built from source, with what newer setuptools no longer have.
    build=("setuptools<80", "wheel"),
)
DIRECTORY = ENVIRONMENTS / FLINK.name


def flink_python(directory: Path = DIRECTORY) -> Path | None:
    """Return the Python of PyFlink's virtual environment, which is made when it is missing, or nothing."""
    try:
        return FLINK.make(directory)
    except NotInstalled as error:
        print(f"PyFlink is left out: {error}")
        return None


class FlinkSide(PeerSide):
    """A side with PyFlink's Python and a script of its own.

    Where nothing else is said, PyFlink runs the Python workers of a local job as threads of the script's process, all
    under one interpreter lock. Here they are processes, as on a cluster. For thread mode, which runs Python within the
    JVM, that JVM is told where PyFlink's packages are.
    """

    def __init__(self, python: Path, script: str, *arguments: str) -> None:
        packages = [str(path) for path in python.parent.parent.glob("lib/python3*/site-packages")]
        env = {
            "PYTHONPATH": os.pathsep.join([str(ROOT), *packages]),
            "_python_worker_execution_mode": "process",
        }
        super().__init__(python, script, *arguments, env=env)
