"""Converts values to trees of plain data, to compare values between two versions of a program.

Objects of two versions have different classes, so they are never equal. A tree contains the same data as a pickle.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from pillarbox._errors import shorten
from pillarbox._rows import Row
from pillarbox._state.types.opaque import AnyNames, Opaque, pickled
from pillarbox._unpickle import loads_allowed

_ATOMS = frozenset({type(None), bool, int, float, str, bytes})
_SHOWN = 120
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# (path within a value, values on both sides). These values are trees or ``MISSING``.
ValueDifference = tuple[str, Any, Any]
MISSING = ("missing",)


class ValueTree(NamedTuple):
    """A composite value.

    Attributes:
        kind: its type, and anything else that is part of its identity.
        parts: plain values or trees by label, such as ``.price`` or ``['x']``.
    """

    kind: Any
    parts: tuple[tuple[str, Any], ...] = ()


def tree_of(value: Any) -> Any:
    try:
        return _tree_of(value)
    except RecursionError:
        try:
            return ValueTree(("pickle", type(value).__qualname__), (("", pickled(value)),))
        except Exception:
            return _of_text(value)


def _tree_of(value: Any) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list or kind is tuple:
        return ValueTree(kind.__name__, _numbered(value))
    if kind is dict:
        return _of_pairs("dict", value.items())
    if kind is set or kind is frozenset:
        parts = sorted(map(_tree_of, value), key=digest)
        return ValueTree((kind.__name__, *map(digest, parts)), tuple((f"{{{shown(part)}}}", part) for part in parts))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        name = "Row" if isinstance(value, Row) else f"{kind.__module__}.{kind.__qualname__}"
        fields = tuple((f".{field}", _tree_of(part)) for field, part in zip(value._fields, value))
        return ValueTree((name, *value._fields), fields)
    if isinstance(value, Opaque):
        return _of_steps(value)
    if isinstance(value, type) and issubclass(value, Opaque):
        return ValueTree(("name", *value.where))
    return _of_object(value)


def _numbered(values: Iterable[Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((f"[{index}]", _tree_of(value)) for index, value in enumerate(values))


def _of_pairs(kind: Any, pairs: Iterable[tuple[Any, Any]]) -> ValueTree:
    entries = [(digest(_tree_of(key)), (f"[{shorten(key, 40)}]", _tree_of(value))) for key, value in pairs]
    entries.sort(key=lambda entry: entry[0])
    return ValueTree((kind, tuple(key for key, _ in entries)), tuple(part for _, part in entries))


def _of_steps(value: Opaque) -> ValueTree:
    arguments = value.args if not isinstance(value._new, Opaque) else (value._new, *value._args)
    return _of_parts(type(value).where, arguments, value._state, value._items, value._pairs)


def _of_parts(
    where: tuple[str, str],
    arguments: Iterable[Any],
    state: Any,
    items: Iterable[Any],
    pairs: Iterable[tuple[Any, Any]],
) -> ValueTree:
    parts: list[tuple[str, Any]] = []
    for slots in state if type(state) is tuple else (state,):
        if isinstance(slots, dict) and all(type(name) is str for name in slots):
            parts += ((f".{name}", _tree_of(part)) for name, part in slots.items())
        elif slots is not None:
            parts.append(("", _tree_of(slots)))
    parts.sort(key=lambda part: (part[0], digest(part[1])))
    parts += (*_numbered(arguments), *_numbered(items), *_of_pairs("pairs", pairs).parts)
    return ValueTree(("object", *where, *(label for label, _ in parts)), tuple(parts))


def _of_object(value: Any) -> Any:
    try:
        payload = pickled(value)
    except Exception:
        return _of_local_class(value)
    read = loads_allowed(payload, AnyNames())
    kind = type(read)
    # Objects of subclasses of these types are opaque.
    if kind in _ATOMS or isinstance(read, (list, tuple, dict, set, frozenset, Opaque, type(Opaque))):
        return _tree_of(read)
    return ValueTree((kind.__module__, kind.__qualname__), (("", repr(read)),))


def _of_local_class(value: Any) -> ValueTree:
    """Return the tree of an object whose class cannot be imported, such as a class in a function."""
    kind = type(value)
    try:
        _, arguments, state, items, pairs = (*value.__reduce_ex__(4), None, None, None)[:5]
    except Exception:
        return _of_text(value)
    own = [argument for argument in arguments if argument is not kind]
    return _of_parts((kind.__module__, kind.__qualname__), own, state, items or (), pairs or ())


def _of_text(value: Any) -> ValueTree:
    return ValueTree(("text", type(value).__qualname__), (("", without_addresses(shorten(value, 10_000))),))


def digest(tree: Any) -> bytes:
    """Return bytes that are equal only for equal trees."""
    # Version 0 of the format does not depend on shared or interned objects.
    return marshal.dumps(_plain(tree), 0)


def _plain(tree: Any) -> Any:
    if isinstance(tree, ValueTree):
        return ("tree", _plain(tree.kind), tuple(_plain(part) for _, part in tree.parts))
    return tuple(map(_plain, tree)) if type(tree) is tuple else tree


def first_difference(left: Any, right: Any, path: str = "") -> ValueDifference | None:
    if digest(left) == digest(right):
        return None
    if isinstance(left, ValueTree) and isinstance(right, ValueTree):
        pairs: Iterable[tuple[str, Any, Any]] = ()
        if left.kind == right.kind and len(left.parts) == len(right.parts):
            pairs = ((label, had, has) for (label, had), (_, has) in zip(left.parts, right.parts))
        elif _name(left) == _name(right):
            had_parts, has_parts = dict(left.parts), dict(right.parts)
            labels = [label for label, _ in (*left.parts, *right.parts)]
            pairs = ((label, had_parts.get(label, MISSING), has_parts.get(label, MISSING)) for label in labels)
        for label, had, has in pairs:
            difference = first_difference(had, has, path + label)
            if difference is not None:
                return difference
    if type(left) is type(right) and isinstance(left, (str, bytes)):
        shorter = min(len(left), len(right))
        begins = next((index for index in range(shorter) if left[index] != right[index]), shorter)
        if begins > _SHOWN // 2:
            begins -= 20
            return f"{path}[{begins}:]", left[begins:], right[begins:]
    return path, left, right


def _name(tree: ValueTree) -> Any:
    return tree.kind[0] if type(tree.kind) is tuple else tree.kind


def without_addresses(text: str) -> str:
    """Replace the addresses of objects, which differ in each run, in an error message or ``repr``."""
    return _ADDRESS.sub(" at 0x...", text)


def shown(tree: Any, limit: int = _SHOWN) -> str:
    if tree is MISSING:
        return "missing"
    if not isinstance(tree, ValueTree):
        return shorten(tree, limit)
    name = tree.kind[2] if _name(tree) in ("object", "name") else _name(tree)
    parts = ", ".join(f"{label} {shown(part, 30)}" for label, part in tree.parts[:10])
    text = f"{name}({parts})" if parts else str(name)
    if name == _name(tree) and [label for label, _ in tree.parts] == [""]:
        text = str(tree.parts[0][1])  # the text of a value without parts
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def difference_text(name: str, difference: ValueDifference, left_name: str, right_name: str) -> str:
    path, left, right = difference
    return f"{name}{path} is {shown(left)} in {left_name}, but {shown(right)} in {right_name}"
