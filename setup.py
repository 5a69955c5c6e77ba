# SPDX-License-Identifier: Apache-2.0
"""Adds ``examples/shipped`` to the wheel, beside ``pillarbox.examples``. All else is in pyproject.toml."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithExamples(build_py):
    """Copies Python's modules, and the shipped examples."""

    def run(self) -> None:
        """Copy the files into the build folder. An editable install finds the examples in the checkout."""
        super().run()
        if not self.editable_mode:
            shutil.copytree(
                Path(__file__).parent / "examples" / "shipped",
                Path(self.build_lib) / "pillarbox" / "_examples",
                ignore=shutil.ignore_patterns("__pycache__"),
                dirs_exist_ok=True,
            )


setup(cmdclass={"build_py": BuildWithExamples})
