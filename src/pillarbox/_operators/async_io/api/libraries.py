"""Libraries that one option of async I/O needs: workers that run no such requests can do without them."""

from __future__ import annotations

import importlib
from typing import Any

from pillarbox._errors import ConfigurationError


def import_library(name: str, option: str) -> Any:
    """Import the library that an option needs.

    Raises:
        ConfigurationError: it is not installed here.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f"{option} of async I/O needs {name}, which cannot be imported in the worker ({error}): pip install {name}"
            " where Spark's Python workers run"
        ) from error
