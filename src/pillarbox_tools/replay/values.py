"""Values as trees of plain data, to compare values of two versions of a program.

Two versions have different classes, so their objects are never equal. A tree has a pickle's content.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable
from typing import Any, NamedTuple

from pyspark import cloudpickle

from pillarbox._errors import shorten
from pillarbox._rows import Row
from pillarbox._state.types.opaque import AnyNames, Opaque, pickled
from pillarbox._unpickle import loads_allowed

_ATOMS = frozenset({type(None), bool, int, float, str, bytes})
_SHOWN = 120
# Path within a value, and the values of both sides: trees, or ``MISSING``.
ValueDifference = tuple[str, Any, Any]
MISSING = ("missing",)


class Tree(NamedTuple):
    """A composite value.

    Attributes:
        kind: its type, and everything else that identifies it besides its parts.
        labels: label of each part, such as ``.price`` or ``['x']``.
        parts: plain values and trees.
    """

    kind: Any
    labels: tuple[str, ...]
    parts: tuple[Any, ...]


def tree_of(value: Any) -> Any:
    """Convert a value to a tree. Plain values stay unchanged."""
    try:
        return _tree_of(value)
    except RecursionError:
        return Tree(("pickle", type(value).__qualname__), (), (pickled(value),))


def _tree_of(value: Any) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list or kind is tuple:
        return _numbered(kind.__name__, value)
    if kind is dict:
        return _of_pairs("dict", value.items())
    if kind is set or kind is frozenset:
        parts = sorted(map(_tree_of, value), key=digest)
        return Tree((kind.__name__, *map(digest, parts)), tuple(f"{{{shown(part)}}}" for part in parts), tuple(parts))
    if isinstance(value, Row):
        return _of_fields("Row", value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _of_fields(f"{kind.__module__}.{kind.__qualname__}", value)
    if isinstance(value, Opaque):
        return _of_steps(value)
    if isinstance(value, type) and issubclass(value, Opaque):
        return Tree(("name", *value.where), (), ())
    return _of_object(value)


def _numbered(kind: Any, values: Iterable[Any]) -> Tree:
    parts = tuple(map(_tree_of, values))
    return Tree(kind, tuple(f"[{index}]" for index in range(len(parts))), parts)


def _of_fields(kind: str, value: Any) -> Tree:
    return Tree((kind, *value._fields), tuple(f".{name}" for name in value._fields), tuple(map(_tree_of, value)))


def _of_pairs(kind: Any, pairs: Iterable[tuple[Any, Any]]) -> Tree:
    entries = [(digest(_tree_of(key)), f"[{shorten(key, 40)}]", _tree_of(value)) for key, value in pairs]
    entries.sort(key=lambda entry: entry[0])
    keys, labels, parts = zip(*entries) if entries else ((), (), ())
    return Tree((kind, keys), labels, parts)


def _of_steps(value: Opaque) -> Tree:
    state = value._state
    labels: list[str] = []
    parts: list[Any] = []
    for slots in state if type(state) is tuple else (state,):
        if isinstance(slots, dict) and all(type(name) is str for name in slots):
            labels += (f".{name}" for name in slots)
            parts += map(_tree_of, slots.values())
        elif slots is not None:
            labels.append("")
            parts.append(_tree_of(slots))
    named = sorted(zip(labels, parts), key=lambda pair: (pair[0], digest(pair[1])))
    for label, more in (
        ("", value.args if not isinstance(value._new, Opaque) else (value._new, *value._args)),
        ("", value._items),
    ):
        named += ((f"{label}[{index}]", _tree_of(item)) for index, item in enumerate(more))
    if value._pairs:
        pairs = _of_pairs("pairs", value._pairs)
        named += zip(pairs.labels, pairs.parts)
    kind = ("object", *type(value).where, *(label for label, _ in named))
    return Tree(kind, tuple(label for label, _ in named), tuple(part for _, part in named))


def _of_object(value: Any) -> Any:
    try:
        payload = pickled(value)
    except Exception:
        try:
            payload = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
        except Exception:
            return Tree(("text", type(value).__qualname__), (), (shorten(value, 10_000),))
    read = loads_allowed(payload, AnyNames())
    kind = type(read)
    # Objects of subclasses of these types are opaque.
    if kind in _ATOMS or isinstance(read, (list, tuple, dict, set, frozenset, Opaque, type(Opaque))):
        return _tree_of(read)
    return Tree((kind.__module__, kind.__qualname__), (), (repr(read),))


def digest(tree: Any) -> bytes:
    """Return bytes that are equal only for equal trees."""
    # Version 0 of the format is independent of shared and interned objects.
    return marshal.dumps(_plain(tree), 0)


def _plain(tree: Any) -> Any:
    if isinstance(tree, Tree):
        return ("tree", _plain(tree.kind), tuple(map(_plain, tree.parts)))
    return tuple(map(_plain, tree)) if type(tree) is tuple else tree


def first_difference(left: Any, right: Any, path: str = "") -> ValueDifference | None:
    if digest(left) == digest(right):
        return None
    if isinstance(left, Tree) and isinstance(right, Tree):
        if left.kind == right.kind and len(left.parts) == len(right.parts):
            parts = zip(left.labels, left.parts, right.parts)
            for label, left_part, right_part in parts:
                difference = first_difference(left_part, right_part, path + label)
                if difference is not None:
                    return difference
        elif _name(left) == _name(right):
            had, has = dict(zip(left.labels, left.parts)), dict(zip(right.labels, right.parts))
            for label in (*left.labels, *right.labels):
                difference = first_difference(had.get(label, MISSING), has.get(label, MISSING), path + label)
                if difference is not None:
                    return difference
    if type(left) is type(right) and isinstance(left, (str, bytes)):
        shorter = min(len(left), len(right))
        begins = next((index for index in range(shorter) if left[index] != right[index]), shorter)
        if begins > _SHOWN // 2:
            begins -= 20
            return f"{path}[{begins}:]", left[begins:], right[begins:]
    return path, left, right


def _name(tree: Tree) -> Any:
    return tree.kind[0] if type(tree.kind) is tuple else tree.kind


def shown(tree: Any, limit: int = _SHOWN) -> str:
    if tree is MISSING:
        return "missing"
    if not isinstance(tree, Tree):
        return shorten(tree, limit)
    name = _name(tree)
    if name in ("object", "name"):
        name = tree.kind[2]
    parts = ", ".join(f"{label} {shown(part, 30)}" for label, part in zip(tree.labels[:10], tree.parts))
    text = f"{name}({parts})" if tree.labels else str(tree.parts[0]) if tree.parts else str(name)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def difference_text(name: str, difference: ValueDifference, left_name: str, right_name: str) -> str:
    path, left, right = difference
    return f"{name}{path} is {shown(left)} in {left_name}, and {shown(right)} in {right_name}"
