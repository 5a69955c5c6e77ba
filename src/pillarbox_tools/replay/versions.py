"""Runs two versions of a program in one process, by importing the recorded modules from the recording."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

from pillarbox._errors import ConfigurationError
from pillarbox._operators.frame.captured import Captured
from pillarbox._task.vertex import Vertex
from pillarbox_tools.recording.modules import (
    ModuleSource,
    find_module,
    is_installed,
    is_users,
    may_be_users,
    versions_here,
)
from pillarbox_tools.recording.recording import Recording


class _Loader(ExecutionLoader):
    def __init__(self, source: ModuleSource) -> None:
        self._source = source

    def get_source(self, fullname: str) -> str | None:
        return self._source.text

    def get_filename(self, fullname: str) -> str:
        return self._source.path or f"<{fullname} of the recording>"

    def is_package(self, fullname: str) -> bool:
        return self._source.is_package


class VersionModules(MetaPathFinder):
    """Finds user modules only in a recording.

    Attributes:
        missing: the first imported user module that is not in the recording, or None.
    """

    def __init__(self, sources: dict[str, ModuleSource]) -> None:
        self._sources = sources
        self.missing: str | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        source = self._sources.get(fullname)
        if source is not None and source.text is not None:
            spec = spec_from_loader(fullname, _Loader(source), origin=source.path, is_package=source.is_package)
            assert spec is not None
            spec.has_location = bool(source.path)
            return spec
        if source is not None or is_users(fullname, find_module(fullname)):
            self.missing = self.missing or fullname
            raise ModuleNotFoundError(f"the recording has no source code of the module {fullname}", name=fullname)
        return None


@contextmanager
def recorded_modules(recording: Recording) -> Iterator[None]:
    """Use the recorded user modules within the block. Raises if the recording lacks a module of the program."""
    sources, _ = recording.modules()
    finder = VersionModules(sources)
    before = _take_modules()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _take_modules()
        sys.modules.update(before)
        if finder.missing is not None:
            raise ConfigurationError(
                f"{recording.folder} does not contain the source code of the module {finder.missing}, which the"
                f" recorded program imports. The recorded and the current program cannot be compared, because both"
                f" would use the installed module: record the task again with a script that imports the module at the"
                f" top"
            )


def _take_modules() -> dict[str, Any]:
    users = [name for name, module in list(sys.modules.items()) if is_users(name, getattr(module, "__spec__", None))]
    return {name: sys.modules.pop(name) for name in users}


def check_installed(recording: Recording, vertex: Vertex) -> None:
    """Raise if the recorded program uses functions from an installed package whose version differs here."""
    _, versions = recording.modules()
    for node in vertex.nodes:
        for name in _modules_of(node.factory.make):
            file = getattr(sys.modules.get(name), "__file__", None)
            if file is None or not is_installed(file) or not may_be_users(name):
                continue
            for package in packages_distributions().get(name.partition(".")[0], ()):
                then, now = versions.get(package), versions_here().get(package)
                if then != now:
                    raise ConfigurationError(
                        f"the recorded program uses {name} of {package} {then}, but {package} {now} is installed, and"
                        f" the recorded program would run with it: run pip install '{package}=={then}' to compare the"
                        " recorded and the current program"
                    )


def _modules_of(value: Any) -> Iterator[str]:
    if isinstance(value, Captured):
        yield from _modules_of(value.function)
    elif isinstance(value, partial):
        for part in (*value.args, *value.keywords.values()):
            yield from _modules_of(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _modules_of(part)
    else:
        yield str(getattr(value if callable(value) and hasattr(value, "__name__") else type(value), "__module__", ""))
