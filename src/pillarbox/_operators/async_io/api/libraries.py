"""Imports the libraries that some options of async I/O need."""

from __future__ import annotations

import importlib
from typing import Any

from pillarbox._errors import ConfigurationError


def import_library(name: str, option: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f"{option} of async I/O needs {name}, which the worker cannot import ({error}): install it for the Python"
            f" of Spark's workers, with pip install {name}"
        ) from error
