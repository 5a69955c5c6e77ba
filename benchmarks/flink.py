# SPDX-License-Identifier: Apache-2.0
"""PyFlink for the benchmarks: an environment of its own, made when it is missing, and processes in it that obey."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.support import ROOT, Side

DIRECTORY = ROOT / ".bench" / "pyflink"
PACKAGES = ("apache-flink==2.3.0", "aiohttp", "uvloop")
# apache-flink's requirements have no wheels for newer ones.
PYTHONS = ("python3.11", "python3.12", "python3.10")


def flink_python(directory: Path = DIRECTORY) -> Path | None:
    """Return the Python of PyFlink's virtual environment, which is made when it is missing, or nothing."""
    python = directory / "bin" / "python"
    installed = directory / "installed"
    wanted = " ".join(PACKAGES)
    if installed.exists() and installed.read_text() == wanted:
        return python
    found = next(filter(None, map(shutil.which, PYTHONS)), None)
    if found is None:
        print(f"PyFlink is left out: it needs one of {', '.join(PYTHONS)}")
        return None
    print(f"installing PyFlink into {directory} (some 900 MB, once)", flush=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        subprocess.run([found, "-m", "venv", "--clear", str(directory)], check=True)
        # Some of its requirements are built from source, with what newer setuptools no longer have.
        subprocess.run([*pip, "setuptools<80", "wheel"], check=True)
        subprocess.run([*pip, *PACKAGES], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"PyFlink is left out, as it cannot be installed: {error}")
        return None
    installed.write_text(wanted)
    return python


class FlinkSide(Side):
    """A side with PyFlink's Python and a script of its own: it is asked and answers as others do.

    Where nothing else is said, PyFlink runs the Python workers of a local job as threads of the script's process, all
    under one interpreter lock. Here they are processes, as on a cluster. For thread mode, which runs Python within the
    JVM, that JVM is told where PyFlink's packages are.
    """

    def __init__(self, python: Path, script: str, *arguments: str) -> None:
        packages = [str(path) for path in python.parent.parent.glob("lib/python3*/site-packages")]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(python), str(ROOT / "benchmarks" / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), *packages]),
                "_python_worker_execution_mode": "process",
            },
        )
