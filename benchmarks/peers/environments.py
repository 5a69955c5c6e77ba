# SPDX-License-Identifier: Apache-2.0
"""Environments of peers that do not use Spark. Missing environments are created."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.process import ROOT, Side

DIRECTORY = ROOT / ".bench"


class NotInstalled(Exception):
    """A peer cannot be installed on this machine."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment for one peer.

    Attributes:
        title: the peer's name.
        name: its directory's name.
        packages: pip's requirements, with the peer's version.
        size: the download's size, as text.
        pythons: the Python versions for which the peer has wheels, best first.
        build: packages that pip installs first, to build the others from source.
        variables: environment variables of its processes.
    """

    title: str
    name: str
    packages: tuple[str, ...]
    size: str
    pythons: tuple[str, ...] = ("python3.11", "python3.12", "python3.10")
    build: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    def make(self, directory: Path | None = None) -> Path:
        """Return the environment's Python. Creates a missing environment.

        Args:
            directory: its directory, by default ``.bench/NAME``.

        Raises:
            NotInstalled: a suitable Python is missing, or pip fails.
        """
        directory = directory or DIRECTORY / self.name
        python = directory / "bin" / "python"
        installed = directory / "installed"
        packages = " ".join(self.packages)
        if installed.exists() and installed.read_text() == packages:
            return python
        executable = next(filter(None, map(shutil.which, self.pythons)), None)
        if executable is None:
            raise NotInstalled(f"{self.title} needs one of {', '.join(self.pythons)}")
        print(f"installing {self.title} into {directory} (some {self.size}, once)", flush=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            subprocess.run([executable, "-m", "venv", "--clear", str(directory)], check=True)
            if self.build:
                subprocess.run([*pip, *self.build], check=True)
            subprocess.run([*pip, *self.packages], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotInstalled(f"{self.title} cannot be installed: {error}") from error
        installed.write_text(packages)
        return python

    def side(self, kind: str, directory: Path | None = None, **arguments: Any) -> Side:
        """Start a side in the environment. Creates a missing environment.

        Args:
            kind: its class, as ``module:name``.
            directory: the environment's directory.
            arguments: the class's arguments.
        """
        python = self.make(directory)
        # PyFlink's thread mode, which runs Python in the JVM, needs the path of the packages.
        packages = [str(path) for path in python.parent.parent.glob("lib/python3*/site-packages")]
        env = {"PYTHONPATH": os.pathsep.join([str(ROOT), *packages]), **dict(self.variables)}
        return Side(kind, python=python, env=env, **arguments)


FLINK = Environment(
    "PyFlink",
    "pyflink",
    ("apache-flink==2.3.0", "aiohttp", "uvloop"),
    "900 MB",
    # Some of its requirements are built from source, and need older setuptools.
    build=("setuptools<80", "wheel"),
    # By default, PyFlink runs the Python workers of a local job as threads of the script's process, which share an
    # interpreter lock. Here they are processes, as on a cluster.
    variables=(("_python_worker_execution_mode", "process"),),
)
PATHWAY = Environment("Pathway", "pathway", ("pathway==0.33.0",), "600 MB", variables=(("PATHWAY_THREADS", "2"),))
BYTEWAX = Environment("Bytewax", "bytewax", ("bytewax==0.21.1", "pyarrow"), "200 MB")
# Waitress, because Amazon's client rejects the answer of moto's own server to "Expect: 100-continue".
MOTO = Environment("moto", "moto", ("moto[server,s3]==5.2.5", "waitress==3.0.2"), "150 MB")
