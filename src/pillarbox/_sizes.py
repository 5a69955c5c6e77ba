"""Parses sizes as Spark writes them in its settings, such as ``64m``."""

from __future__ import annotations

import re

_UNITS = "bkmgtp"
_SIZE = re.compile(r"(\d+)(?:([kmgtp])(?:i?b)?|(b))?")


def byte_size(text: str, unit: str) -> int | None:
    """Return a size in bytes, or None if it is invalid. ``unit`` (one of ``bkmgtp``) applies to a bare number."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        return None
    number, letter, bare = match.groups()
    return int(number) << 10 * _UNITS.index(letter or bare or unit)
