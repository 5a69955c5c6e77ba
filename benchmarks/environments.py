# SPDX-License-Identifier: Apache-2.0
"""Peers that are not on Spark: each has an environment of its own, made when it is missing, and processes in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support import ROOT, Side

DIRECTORY = ROOT / ".bench"


class NotInstalled(Exception):
    """A peer that cannot be had on this machine, and why."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with exactly one peer in it.

    Attributes:
        title: the peer's name.
        name: of its directory.
        packages: what pip installs, with the peer's own version.
        size: how much that is, in words.
        pythons: the versions of Python that the peer has wheels for, best first.
        build: what pip installs first, to build the others from source.
    """

    title: str
    name: str
    packages: tuple[str, ...]
    size: str
    pythons: tuple[str, ...] = ("python3.11", "python3.12", "python3.10")
    build: tuple[str, ...] = ()

    def make(self, directory: Path | None = None) -> Path:
        """Return the environment's Python; the environment is made when it is missing.

        Args:
            directory: its place; by default ``.bench`` and its name.

        Raises:
            NotInstalled: there is no Python for it, or pip cannot install it.
        """
        directory = directory or DIRECTORY / self.name
        python = directory / "bin" / "python"
        installed = directory / "installed"
        wanted = " ".join(self.packages)
        if installed.exists() and installed.read_text() == wanted:
            return python
        found = next(filter(None, map(shutil.which, self.pythons)), None)
        if found is None:
            raise NotInstalled(f"{self.title} needs one of {', '.join(self.pythons)}")
        print(f"installing {self.title} into {directory} (some {self.size}, once)", flush=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            subprocess.run([found, "-m", "venv", "--clear", str(directory)], check=True)
            if self.build:
                subprocess.run([*pip, *self.build], check=True)
            subprocess.run([*pip, *self.packages], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotInstalled(f"{self.title} cannot be installed: {error}") from error
        installed.write_text(wanted)
        return python


class PeerSide(Side):
    """A side with a peer's Python and a script of its own: it is asked and answers as others do."""

    def __init__(self, python: Path, script: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(python), str(ROOT / "benchmarks" / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        )
