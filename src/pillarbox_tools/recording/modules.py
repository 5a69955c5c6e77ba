"""Collects user modules' source for a recording."""

from __future__ import annotations

import ast
import os
import sys
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import distributions
from typing import Any, NamedTuple

_OURS = frozenset({"__main__", "__mp_main__", "pillarbox", "pillarbox_tools", "pyspark", "py4j"})
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = ("site-packages", "dist-packages")


class ModuleSource(NamedTuple):
    """The source text of a Python module."""

    text: str | None
    is_package: bool
    path: str


def is_installed(path: str) -> bool:
    return any(folder in path.split(os.sep) for folder in _INSTALLED)


def is_users(name: str, spec: ModuleSpec | None) -> bool:
    """Return whether a module is neither installed nor part of Python, Spark or pillarbox."""
    if spec is None or not may_be_users(name):
        return False
    paths = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
    return any(path and not is_installed(path) and not path.startswith(_LIBRARY) for path in paths)


def may_be_users(name: str) -> bool:
    top = name.partition(".")[0]
    return top not in _OURS and top not in sys.stdlib_module_names


def sources_here() -> dict[str, ModuleSource]:
    """Return the sources of user modules that this process has imported or may import, by name."""
    sources: dict[str, ModuleSource] = {}
    pending = [(name, getattr(module, "__spec__", None)) for name, module in list(sys.modules.items())]
    main = str(getattr(sys.modules.get("__main__"), "__file__", ""))
    imported = set(_imports_of(_text_of(main), "", False))
    while pending or imported:
        for name, spec in pending:
            if name not in sources and is_users(name, spec):
                sources[name] = source = _source_of(name, spec)
                imported.update(_imports_of(source.text, name, source.is_package))
        pending = [(name, _find_once(name)) for name in imported - sources.keys()]
        imported = set()
    return sources


def find_module(name: str) -> ModuleSpec | None:
    spec: ModuleSpec | None = None
    for package in _with_packages(name):
        paths = None if spec is None else list(spec.submodule_search_locations or ())
        spec = PathFinder.find_spec(package, paths)
        if spec is None:
            return None
    return spec


_find_once = cache(find_module)


def _source_of(name: str, spec: Any) -> ModuleSource:
    text = None
    if spec.loader is None or spec.origin is None:
        text = ""
    with suppress(Exception):
        text = spec.loader.get_source(name)
    if text is None and str(spec.origin).endswith(".py"):
        text = _text_of(spec.origin)
    return ModuleSource(text, spec.submodule_search_locations is not None, str(spec.origin or ""))


def _text_of(path: str) -> str | None:
    with suppress(OSError, SyntaxError, UnicodeDecodeError), tokenize.open(path) as file:
        return file.read()
    return None


@cache
def _imports_of(text: str | None, name: str, is_package: bool) -> frozenset[str]:
    try:
        tree = ast.parse(text or "")
    except SyntaxError:
        return frozenset()
    package = name if is_package else name.rpartition(".")[0]
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return frozenset(part for name in names if may_be_users(name) for part in _with_packages(name))


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1) if name)


@cache
def versions_here() -> dict[str, str]:
    return {str(distribution.metadata["Name"]): distribution.version for distribution in distributions()}
