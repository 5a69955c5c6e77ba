"""The names of plain types, as heads of logs and savepoints have them: ``MAP(STRING, LIST(LONG))``.

A name is all that a checkpoint says of a type, so whoever has no program reads it. What cannot be read as a name is of
a class of the user's, or of a later version.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["SCALARS", "PlainName", "parse_name"]

SCALARS = frozenset({"STRING", "BINARY", "BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "int", "FLOAT", "DOUBLE"}) | (
    frozenset({"DECIMAL", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIME", "INTERVAL"})
)
_PARTS = {"LIST": 1, "MAP": 2}


class PlainName(NamedTuple):
    """A type by its name.

    Attributes:
        kind: one of ``SCALARS``, or LIST, MAP, ROW, TUPLE.
        parts: the types in it.
        fields: of ROW and TUPLE, the names of the parts.
    """

    kind: str
    parts: tuple[PlainName, ...] = ()
    fields: tuple[str, ...] = ()


def parse_name(name: str) -> PlainName | None:
    """Return the type of a name; None: it is none that can be read without the user's classes.

    So are rows in which two names are one but for their case: Spark has no such struct.
    """
    if name in SCALARS:
        return PlainName(name)
    found = re.fullmatch(r"(LIST|MAP|ROW|TUPLE)\((.*)\)", name, re.DOTALL)
    if found is None:
        return None
    kind, inner = found[1], _split(found[2])
    fields = tuple(f"f{index}" for index in range(len(inner)))
    # (A part of a tuple may have a name: the columns of a key have.)
    if kind == "ROW" or (kind == "TUPLE" and all(re.match(r"\w+: ", part) for part in inner)):
        pairs = [part.partition(": ") for part in inner]
        fields, inner = tuple(pair[0] for pair in pairs), [pair[2] for pair in pairs]
    parts = [part for each in inner if (part := parse_name(each)) is not None]
    if len(parts) < len(inner) or not parts or len(parts) != _PARTS.get(kind, len(parts)):
        return None
    if kind in _PARTS:
        return PlainName(kind, tuple(parts))
    return PlainName(kind, tuple(parts), fields) if len({each.lower() for each in fields}) == len(fields) else None


def _split(text: str) -> list[str]:
    """Return the parts between commas that are in no brackets."""
    parts, depth, start = [], 0, 0
    for place, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]
