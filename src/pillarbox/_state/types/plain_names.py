"""The names of plain types, as heads of logs and savepoints have them: ``MAP(STRING, LIST(LONG))``.

A name is all that a checkpoint says of a type, so whoever has no program reads it. A dataclass or named tuple is
written with its module, the form in which it is pickled, and its fields:
``shop.Order[shop:dict](total: LONG, paid: BOOLEAN?)``, where ``?`` marks those that have a default. What cannot be read
as a name is of another class, or of a later version.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["FORMS", "SCALARS", "PlainName", "RecordName", "parse_name", "without_forms"]

FORMS = frozenset({"tuple", "dict", "slots", "list"})
"""How objects of classes are pickled: with their values as arguments, or as attributes, as slots, or as a list."""

SCALARS = frozenset({"STRING", "BINARY", "BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "int", "FLOAT", "DOUBLE"}) | (
    frozenset({"DECIMAL", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIME", "INTERVAL"})
)
_PARTS = {"LIST": 1, "MAP": 2}


class RecordName(NamedTuple):
    """A dataclass or a named tuple.

    Attributes:
        module: its module.
        qualname: its name there.
        form: how its objects are pickled, one of ``FORMS``.
    """

    module: str
    qualname: str
    form: str


class PlainName(NamedTuple):
    """A type by its name.

    Attributes:
        kind: one of ``SCALARS``, or LIST, MAP, ROW, TUPLE, RECORD.
        parts: the types in it.
        fields: of ROW, TUPLE and RECORD, the names of the parts.
        record: of RECORD, which class it is.
    """

    kind: str
    parts: tuple[PlainName, ...] = ()
    fields: tuple[str, ...] = ()
    record: RecordName | None = None


def parse_name(name: str) -> PlainName | None:
    """Return the type of a name; None: it is none that can be read without the user's classes.

    So are rows and classes in which two names are one but for their case: Spark has no such struct.
    """
    if name in SCALARS:
        return PlainName(name)
    record = _RECORD.fullmatch(name)
    if record is not None:
        return _parse_record(*record.groups())
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


_RECORD = re.compile(r"([^()\[\]]+)\[([^()\[\]:]+):(\w+)\]\((.*)\)", re.DOTALL)
_MARK = re.compile(r"\[[^()\[\]:]+:\w+\]")


def without_forms(name: str) -> str:
    """Return a name for people, without the modules and forms of the classes in it."""
    return _MARK.sub("", name)


def _parse_record(kind: str, module: str, form: str, inner: str) -> PlainName | None:
    pairs = [part.removesuffix("?").partition(": ") for part in _split(inner)]
    fields = tuple(field for field, _, _ in pairs)
    parts = [part for _, _, each in pairs if (part := parse_name(each)) is not None]
    if form not in FORMS or not kind.startswith(f"{module}.") or len(parts) < len(pairs):
        return None
    if len({each.lower() for each in fields}) < len(fields):
        return None
    return PlainName("RECORD", tuple(parts), fields, RecordName(module, kind[len(module) + 1 :], form))


def _split(text: str) -> list[str]:
    """Return the parts between commas that are in no brackets."""
    parts, depth, start = [], 0, 0
    for place, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]
