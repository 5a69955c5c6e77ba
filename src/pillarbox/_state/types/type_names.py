"""Names of plain types, as heads of logs have them: reading them, and which of them may take the place of which.

A class is written with its fields: ``shop.Order[shop:dict](total: LONG, paid: BOOLEAN?)``, where ``?`` marks those that
have a default. How it is pickled stands in square brackets, and is no part of the type. Source of the rules: Flink's
evolution of POJOs (fields come and go), and Avro's resolution of schemas (by name; a new field needs a default; numbers
become wider).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pillarbox._rows import Row
from pillarbox._rows import row_class as class_of_rows
from pillarbox._state.types.plain_names import without_forms

__all__ = ["TypeName", "converter", "parse", "refusal"]

_NUMBERS = frozenset({"BYTE", "SHORT", "INT", "LONG", "int", "FLOAT", "DOUBLE", "DECIMAL"})
_TIMES = frozenset({"TIMESTAMP", "TIMESTAMP_NTZ"})
_OTHERS = frozenset({"STRING", "BINARY", "BOOLEAN", "DATE", "TIME", "INTERVAL"})
_SCALARS = _NUMBERS | _TIMES | _OTHERS
_INSIDE = {"LIST": ("element",), "MAP": ("key", "value")}


@dataclass(frozen=True)
class TypeName:
    """A type by its name.

    Attributes:
        kind: its name without anything in brackets: of a scalar, LIST, MAP, TUPLE, ROW; or of a class.
        fields: the types inside, by name; None: there are none, or they are not known.
        optional: the fields that have a default.
    """

    kind: str
    fields: tuple[tuple[str, TypeName], ...] | None = None
    optional: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def is_class(self) -> bool:
        """Whether it is the name of a class."""
        return self.kind not in _SCALARS and self.kind not in ("LIST", "MAP", "TUPLE", "ROW")

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the fields."""
        return None if self.fields is None else tuple(name for name, _ in self.fields)

    def every(self) -> Iterator[TypeName]:
        """Return it, and all types inside."""
        yield self
        for _, part in self.fields or ():
            yield from part.every()

    def __str__(self) -> str:
        if self.is_class or self.fields is None:
            return self.kind
        inside = (f"{name}: {part}" if self.kind == "ROW" else str(part) for name, part in self.fields)
        return f"{self.kind}({', '.join(inside)})"


def parse(text: str) -> TypeName:
    """Return a type from its name in a head; where the name cannot be read, its fields are not known."""
    kind, bracket, rest = text.partition("(")
    kind = without_forms(kind)
    if not bracket or not rest.endswith(")"):
        return TypeName(text)
    parts = _split(rest[:-1])
    if kind in _INSIDE:
        names: tuple[str, ...] = _INSIDE[kind]
    elif kind == "TUPLE":
        names = tuple(f"f{place}" for place in range(len(parts)))
    else:
        pairs = [part.partition(": ") for part in parts]
        if not all(separator for _, separator, _ in pairs):
            return TypeName(kind)
        names, parts = tuple(name for name, _, _ in pairs), [part for _, _, part in pairs]
    if len(names) != len(parts) or len(set(names)) < len(names):
        return TypeName(kind)
    optional = frozenset(name for name, part in zip(names, parts) if part.endswith("?"))
    return TypeName(kind, tuple((name, parse(part.removesuffix("?"))) for name, part in zip(names, parts)), optional)


def _split(text: str) -> list[str]:
    """Return the parts between commas that are in no brackets."""
    parts, depth, start = [], 0, 0
    for place, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append(text[start:place].strip())
            start = place + 1
    last = text[start:].strip()
    return [*parts, last] if last or parts else []


def refusal(then: TypeName, now: TypeName, moved: Mapping[str, str], *, of_keys: bool = False) -> str | None:
    """Return why values of one type cannot become values of another; None: they can, or each has to be looked at.

    Args:
        moved: the new names of classes that have moved.
        of_keys: whether the values are the keys of maps: entries whose keys become equal would be lost.
    """
    kind = moved.get(then.kind, then.kind)
    if kind != now.kind:
        return _refused_kind(then, now)
    if then.fields is None or now.fields is None:
        return None
    old, new = dict(then.fields), dict(now.fields)
    if kind == "TUPLE" and len(old) != len(new):
        return f"it was {then}, and is {now}: a tuple keeps its length"
    for name, part in new.items():
        if name not in old:
            if now.is_class and name not in now.optional:
                return f"the field {name!r} of {now.kind} is new, and has no default: give it one"
            continue
        why = refusal(old[name], part, moved, of_keys=of_keys or (kind == "MAP" and name == "key"))
        if why is not None:
            where = f"the field {name!r} of {now.kind}" if now.is_class else f"{name!r} of {kind}"
            return f"{where}: {why}" if kind not in _INSIDE else why
    gone = [name for name in old if name not in new]
    if of_keys and gone:
        return (
            f"keys of a map lose the field {gone[0]!r} of {now.kind}, and entries whose keys differ by it alone would"
            " become one: keep the field"
        )
    return None


def _refused_kind(then: TypeName, now: TypeName) -> str | None:
    for like in (_NUMBERS, _TIMES):
        if then.kind in like and now.kind in like:
            return None  # each value tells
    if then.kind == "BOOLEAN" and now.kind == "int":
        return None
    if then.is_class and now.is_class:
        module, _, name = then.kind.rpartition(".")
        return (
            f"it was {then}, and is {now}: if the class has moved, say"
            f" env.add_class_alias('{module}:{name}', {now.kind.rpartition('.')[2]})"
        )
    return f"it was {then}, and is {now}"


# -- values --


def converter(then: TypeName, now: TypeName, moved: Mapping[str, str]) -> Callable[[Any], Any] | None:
    """Return what makes of a value of one type a value of another that may take its place; None: nothing is to be done.

    It is rows that change: those inside a class are taken care of here as well, the class's own fields where it is
    unpickled.
    """
    if then.fields is None or now.fields is None or moved.get(then.kind, then.kind) != now.kind:
        return None
    old = dict(then.fields)
    inner = {name: converter(old[name], part, moved) for name, part in now.fields if name in old}
    if now.kind == "ROW" and set(old) != {name for name, _ in now.fields}:
        return _Rows(tuple(old), tuple(name for name, _ in now.fields), inner)
    if now.kind == "ROW" and tuple(old) != now.names:
        return _Rows(tuple(old), now.names or (), inner)
    if not any(inner.values()):
        return None
    if now.kind == "LIST":
        return _each(inner["element"])
    if now.kind == "MAP":
        return _both(inner["key"], inner["value"])
    if now.kind == "ROW":
        return _Rows(tuple(old), now.names or (), inner)
    return _fields(inner, now.names or ())


_Converter = Callable[[Any], Any]


def _or_none(convert: _Converter | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _each(convert: _Converter | None) -> _Converter:
    def of(values: Any) -> Any:
        return type(values)(_or_none(convert, each) for each in values)

    return of


def _both(key: _Converter | None, value: _Converter | None) -> _Converter:
    def of(values: Any) -> Any:
        return {_or_none(key, one): _or_none(value, other) for one, other in values.items()}

    return of


def _fields(inner: Mapping[str, _Converter | None], names: tuple[str, ...]) -> _Converter:
    """Return what converts fields of tuples, of named tuples and of dataclasses."""

    def of(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            made = [_or_none(inner.get(name), each) for name, each in zip(names, value)]
            kind: Any = type(value)
            return made if kind is list else tuple.__new__(kind, made)
        for name, convert in inner.items():
            object.__setattr__(value, name, _or_none(convert, getattr(value, name)))
        return value

    return of


class _Rows:
    """Makes rows with other columns: by name; of tuples and lists in the place of rows, by their places of before."""

    def __init__(self, then: tuple[str, ...], now: tuple[str, ...], inner: Mapping[str, _Converter | None]) -> None:
        self._then = then
        self._now = now
        self._inner = inner
        self._make = class_of_rows(now)

    def __call__(self, value: Any) -> Any:
        is_row = isinstance(value, Row)
        names = value._fields if is_row else self._then
        if not isinstance(value, (tuple, list)) or len(value) != len(names) or set(names) != set(self._then):
            return value  # no such row: it is looked at by who checks it
        by_name = dict(zip(names, value))
        made = [_or_none(self._inner.get(name), by_name.get(name)) for name in self._now]
        return self._make(made) if is_row else type(value)(made)
