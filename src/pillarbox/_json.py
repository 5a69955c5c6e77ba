"""Dataclasses as JSON, and back: of reports, histories, bundles, heartbeats, requests, recordings and pages.

A field that has its default is left out. Unknown fields are skipped, and missing ones get their defaults, so fields may
be added without a new format.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def json_of(value: Any, *, indent: int | None = None) -> str:
    """Return the JSON of a dataclass, or of a list of dataclasses."""
    return json.dumps(plain(value), indent=indent, separators=(",", ":") if indent is None else None)


def plain(value: Any) -> Any:
    """Return a dataclass as plain data for JSON, without the fields that have their default."""
    if is_dataclass(value):
        kind: Any = type(value)
        defaults = _defaults(kind)
        return {
            name: plain(each) for name, each in vars(value).items() if name not in defaults or each != defaults[name]
        }
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return {name: plain(each) for name, each in value.items()} if isinstance(value, dict) else value


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    found = {each.name: each.default for each in fields(kind) if each.default is not MISSING}
    return {**found, **{each.name: each.default_factory() for each in fields(kind) if callable(each.default_factory)}}


def read(kind: type[T], value: Any) -> T:
    """Return the dataclass that :func:`plain` and JSON have made plain data of.

    Raises:
        TypeError: a field without a default is missing, or a value is of another kind.
    """
    return _read(kind, value)  # type: ignore[no-any-return]


def _read(kind: Any, value: Any) -> Any:
    if kind is Any:
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _read(next(each for each in arguments if each is not type(None)), value)
    if origin in (list, dict) and not isinstance(value, origin):
        raise TypeError(f"a {origin.__name__} is not {type(value).__name__}")
    if origin is tuple:
        return tuple(_read(one, each) for one, each in zip(arguments, value))
    if origin is list:
        return [_read(arguments[0], each) for each in value]
    if origin is dict:
        return {name: _read(arguments[1], each) for name, each in value.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise TypeError(f"{kind.__name__} is not {type(value).__name__}")
        hints = _hints(kind)
        return kind(**{name: _read(hints[name], each) for name, each in value.items() if name in hints})
    return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}
