"""Copies: those of copy.deepcopy, without its calls for what JSON is made of."""

from __future__ import annotations

import collections
import copy
import datetime
import decimal
import sys
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from pillarbox import Row
from pillarbox._copies import deep_copy

atoms = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.just(decimal.Decimal(1)), st.dates(), st.binary()
)


class Pair(NamedTuple):
    one: Any
    other: Any


class Own:
    """An object of the program's."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and self.inner == other.inner

    __hash__ = None  # type: ignore[assignment]


def nested(inner: Any) -> Any:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=2), inner, max_size=4),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(lambda a, b: Row.of(a=a, b=b), inner, inner),
        st.builds(Own, inner),
        st.lists(inner, max_size=3).map(collections.deque),
        st.lists(inner, min_size=1, max_size=2).map(lambda items: [items, items[0], items]),
    )


def shape(value: Any, seen: dict[int, int]) -> Any:
    """What a value is made of, and what in it is the same object."""
    if isinstance(value, (list, dict, tuple, collections.deque, Own)):
        if id(value) in seen:
            return seen[id(value)]
        seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return type(value), [(key, shape(each, seen)) for key, each in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value), [shape(each, seen) for each in value]
    return (type(value), shape(value.inner, seen)) if isinstance(value, Own) else value


@given(st.recursive(atoms, nested, max_leaves=20))
def test_a_copy_is_that_of_deepcopy(value):
    assert shape(deep_copy(value), {}) == shape(copy.deepcopy(value), {}) == shape(value, {})


@given(st.recursive(atoms, nested, max_leaves=20))
def test_nothing_that_can_change_is_shared(value):
    def mutable(each: Any) -> set[int]:
        found = {id(each)} if isinstance(each, (list, dict, collections.deque, Own)) else set()
        inner = each.values() if isinstance(each, dict) else [each.inner] if isinstance(each, Own) else each
        if isinstance(each, (list, dict, tuple, collections.deque, Own)):
            found.update(*map(mutable, inner))
        return found

    copied = deep_copy(value)
    assert not mutable(value) & mutable(copied)


def test_what_contains_itself():
    ring: list[Any] = [1]
    ring.append({"ring": ring, "pair": (ring, 2)})
    copied = deep_copy(ring)
    assert copied is not ring and copied[1]["ring"] is copied and copied[1]["pair"][0] is copied
    assert copied[1]["pair"][1] == 2


def test_json_is_copied_without_deepcopy():
    """One call of the module's own for each list and dictionary, and none of the standard library's."""
    value = {
        "id": 1,
        "at": datetime.datetime(2026, 1, 1),
        "lines": [{"sku": "x", "tags": ["a", "b"]} for _ in range(50)],
    }
    calls: collections.Counter[str] = collections.Counter()

    def profile(frame, event, argument):
        if event == "call":
            calls[frame.f_code.co_filename.rpartition("/")[2]] += 1

    sys.setprofile(profile)
    try:
        copied = deep_copy(value)
    finally:
        sys.setprofile(None)
    assert copied == value
    assert calls["copy.py"] == 0 and calls["_copies.py"] == 1 + 1 + 1 + 50 * 2
