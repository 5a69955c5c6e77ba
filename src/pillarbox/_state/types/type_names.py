"""The names of plain types, as heads of logs and savepoints have them, and which of them may take the place of which.

A name is all that a checkpoint says of a type, so whoever has no program reads it: ``MAP(STRING, LIST(LONG))``. A
dataclass or named tuple is written with its module, the form in which it is pickled, and its fields:
``shop.Order[shop:dict](total: LONG, paid: BOOLEAN?)``, where ``?`` marks fields that have a default. The text in
square brackets is no part of the type. Source of the rules: Flink's evolution of POJOs (fields come and go), and Avro's
resolution of schemas (by name; a new field needs a default; numbers become wider).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pillarbox._rows import Row
from pillarbox._rows import row_class as class_of_rows
from pillarbox._types.scalars import SCALARS

Converter = Callable[[Any], Any]

FORMS = frozenset({"tuple", "dict", "slots", "list"})
"""How objects of classes are pickled: with their values as arguments, or as attributes, as slots, or as a list."""

_INSIDE = {"LIST": ("element",), "MAP": ("key", "value")}
_FORM = re.compile(r"\[([^()\[\]:]+):(\w+)\]")


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


@dataclass(frozen=True)
class TypeName:
    """A type by its name.

    Attributes:
        kind: its name without anything in brackets: of a scalar, LIST, MAP, TUPLE, ROW; or of a class.
        fields: the types inside, by name; None: there are none, or they are not known.
        optional: the fields that have a default.
        record: of a class, how it is pickled; None: nothing says it.
    """

    kind: str
    fields: tuple[tuple[str, TypeName], ...] | None = None
    optional: frozenset[str] = field(default=frozenset(), compare=False)
    record: RecordName | None = field(default=None, compare=False)

    @property
    def is_class(self) -> bool:
        """Whether it is the name of a class."""
        return self.kind not in SCALARS and self.kind not in ("LIST", "MAP", "TUPLE", "ROW")

    @property
    def is_plain(self) -> bool:
        """Whether values of the type can be read without the user's classes.

        Rows and classes are not plain in which two names are one but for their case: Spark has no such struct.
        """
        if self.kind in SCALARS:
            return self.fields is None
        names = {name.lower() for name, _ in self.fields or ()}
        if not names or len(names) < len(self.parts) or (self.is_class and self.record is None):
            return False
        return all(part.is_plain for part in self.parts)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the fields; None: they are not known."""
        return None if self.fields is None else tuple(name for name, _ in self.fields)

    @property
    def parts(self) -> tuple[TypeName, ...]:
        """The types of the fields."""
        return tuple(part for _, part in self.fields or ())

    def every(self) -> Iterator[TypeName]:
        """Return it, and all types inside."""
        yield self
        for part in self.parts:
            yield from part.every()

    @property
    def described(self) -> str:
        """The name as heads have it: of classes with their fields."""
        if self.fields is None:
            return self.kind
        has_names = self.kind not in ("LIST", "MAP", "TUPLE")
        inside = [
            (f"{name}: " if has_names else "") + part.described + ("?" if name in self.optional else "")
            for name, part in self.fields
        ]
        form = "" if self.record is None else f"[{self.record.module}:{self.record.form}]"
        return f"{self.kind}{form}({', '.join(inside)})"

    def __str__(self) -> str:
        if self.is_class or self.fields is None:
            return self.kind
        inside = (f"{name}: {part}" if self.kind == "ROW" else str(part) for name, part in self.fields)
        return f"{self.kind}({', '.join(inside)})"


def parse(text: str) -> TypeName:
    """Return a type from its name in a head; where the name cannot be read, its fields are not known."""
    kind, bracket, rest = text.partition("(")
    form = _FORM.search(kind)
    kind = without_forms(kind)
    if not bracket or not rest.endswith(")"):
        return TypeName(text)
    parts = _split(rest[:-1])
    named = kind not in _INSIDE and (kind != "TUPLE" or all(re.match(r"\w+: ", part) for part in parts))
    if named:  # the parts of a tuple may have names, too: the columns of a key have
        pairs = [part.partition(": ") for part in parts]
        if not all(separator for _, separator, _ in pairs):
            return TypeName(kind)
        names, parts = tuple(name for name, _, _ in pairs), [part for _, _, part in pairs]
    else:
        names = _INSIDE.get(kind) or tuple(f"f{place}" for place in range(len(parts)))
    if len(names) != len(parts) or len(set(names)) < len(names):
        return TypeName(kind)
    optional = frozenset(name for name, part in zip(names, parts) if part.endswith("?"))
    record = None
    if form is not None and form[2] in FORMS and kind.startswith(f"{form[1]}."):
        record = RecordName(form[1], kind[len(form[1]) + 1 :], form[2])
    fields = tuple((name, parse(part.removesuffix("?"))) for name, part in zip(names, parts))
    return TypeName(kind, fields, optional, record)


def without_forms(name: str) -> str:
    """Return a name for people, without the modules and forms of the classes in it."""
    return _FORM.sub("", name)


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
    if then.kind in SCALARS and now.kind in SCALARS:
        is_like = SCALARS[then.kind].family == SCALARS[now.kind].family and "BOOLEAN" not in (then.kind, now.kind)
        if is_like or (then.kind, now.kind) == ("BOOLEAN", "int"):
            return None  # checked value by value
    if then.is_class and now.is_class:
        module, _, name = then.kind.rpartition(".")
        return (
            f"it was {then}, and is {now}: if the class has moved, say"
            f" env.add_class_alias('{module}:{name}', {now.kind.rpartition('.')[2]})"
        )
    return f"it was {then}, and is {now}"


# -- values --


def change_of_type(then: TypeName, now: TypeName, moved: Mapping[str, str]) -> Callable[[Any], Any] | None:
    """Return what makes of a value of one type a value of another that may take its place; None: nothing is to be done.

    It is rows that change: those inside a class are taken care of here as well, the class's own fields where it is
    unpickled.
    """
    if then.fields is None or now.fields is None or moved.get(then.kind, then.kind) != now.kind:
        return None
    old = dict(then.fields)
    inner = {name: change_of_type(old[name], part, moved) for name, part in now.fields if name in old}
    if now.kind == "ROW" and (tuple(old) != now.names or any(inner.values())):
        return _Rows(tuple(old), now.names or (), inner)
    return within(now, inner)


def within(name: TypeName, inner: Mapping[str, Converter | None]) -> Converter | None:
    """Return what converts the values inside a type's values, or None, by field; None: nothing is to be done."""
    if not any(inner.values()):
        return None
    if name.kind == "LIST":
        return _each(inner["element"])
    return _both(inner["key"], inner["value"]) if name.kind == "MAP" else _fields(inner, name.names or ())


def or_none(convert: Converter | None, value: Any) -> Any:
    """Return a value converted; None, and where nothing is to be done, the value itself."""
    return value if convert is None or value is None else convert(value)


def chained(first: Converter | None, then: Converter | None) -> Converter | None:
    """Return what converts in two steps, either of which may be nothing."""
    if first is None or then is None:
        return first or then
    return lambda value: then(first(value))


def _each(convert: Converter | None) -> Converter:
    def of(values: Any) -> Any:
        return type(values)(or_none(convert, each) for each in values)

    return of


def _both(key: Converter | None, value: Converter | None) -> Converter:
    def of(values: Any) -> Any:
        return {or_none(key, one): or_none(value, other) for one, other in values.items()}

    return of


def _fields(inner: Mapping[str, Converter | None], names: tuple[str, ...]) -> Converter:
    """Return what converts fields of tuples, of named tuples and of dataclasses."""

    def of(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            made = [or_none(inner.get(name), each) for name, each in zip(names, value)]
            kind: Any = type(value)
            return made if kind is list else tuple.__new__(kind, made)
        for name, convert in inner.items():
            object.__setattr__(value, name, or_none(convert, getattr(value, name)))
        return value

    return of


class _Rows:
    """Makes rows with other columns: by name; from tuples and lists instead of rows, by their former places."""

    def __init__(self, then: tuple[str, ...], now: tuple[str, ...], inner: Mapping[str, Converter | None]) -> None:
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
        made = [or_none(self._inner.get(name), by_name.get(name)) for name in self._now]
        return self._make(made) if is_row else type(value)(made)
