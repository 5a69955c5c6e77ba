"""Converts dataclasses to and from JSON.

Default values are omitted, unknown fields are skipped, and missing fields get their defaults, so fields can be added
without a new format version. JSON has no NaN and no infinity: both become null.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def json_of(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(plain(value), indent=indent, separators=(",", ":") if indent is None else None)


def plain(value: Any) -> Any:
    if is_dataclass(value):
        kind: Any = type(value)
        defaults = _defaults(kind)
        return {
            name: plain(item) for name, item in vars(value).items() if name not in defaults or item != defaults[name]
        }
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return {name: plain(item) for name, item in value.items()} if isinstance(value, dict) else value


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    defaults = {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    return {
        **defaults,
        **{field.name: field.default_factory() for field in fields(kind) if callable(field.default_factory)},
    }


def read(kind: type[T], value: Any) -> T:
    """Convert the result of :func:`plain` to a dataclass. Raises TypeError for missing fields and wrong types."""
    return _read(kind, value)  # type: ignore[no-any-return]


def _read(kind: Any, value: Any) -> Any:
    if kind is Any:
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _read(next(option for option in arguments if option is not type(None)), value)
    if origin in (list, dict) and not isinstance(value, origin):
        raise TypeError(f"{origin.__name__} expected, got {type(value).__name__}")
    if origin is tuple:
        return tuple(_read(part_kind, part) for part_kind, part in zip(arguments, value))
    if origin is list:
        return [_read(arguments[0], item) for item in value]
    if origin is dict:
        return {name: _read(arguments[1], item) for name, item in value.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise TypeError(f"{kind.__name__} expected, got {type(value).__name__}")
        hints = _hints(kind)
        return kind(**{name: _read(hints[name], item) for name, item in value.items() if name in hints})
    return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
