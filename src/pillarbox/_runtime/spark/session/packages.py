"""Versions of Python and packages in this process."""

from __future__ import annotations

import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGES = ("pillarbox", "pyspark", "pandas", "pyarrow", "numpy", "protobuf")


@cache
def packages_here() -> Mapping[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            # Shipped packages may have no metadata.
            module = sys.modules.get(package)
            if module is not None and hasattr(module, "__version__"):
                versions[package] = str(module.__version__)
    return MappingProxyType(versions)
