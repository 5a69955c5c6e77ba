"""Errors show only the beginning of a value's ``repr``. The rest is never built."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from pillarbox import Row
from pillarbox._errors import shorten


class Point(NamedTuple):
    x: Any
    y: Any


def nested(inner: Any) -> Any:
    return st.one_of(
        st.lists(inner, max_size=5),
        st.tuples(inner),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
        st.sets(st.integers(), max_size=5),
        st.frozensets(st.integers(), max_size=5),
        st.builds(Point, inner, inner),
        st.builds(lambda a, b: Row.of(a=a, b=b), inner, inner),
    )


values = st.recursive(st.one_of(st.integers(), st.text("ab\n", max_size=30), st.binary(max_size=9), st.none()), nested)


@given(values, st.integers(4, 100))
def test_it_is_the_beginning_of_what_python_shows(value, limit):
    text = repr(value)
    assert shorten(value, limit) == (text if len(text) <= limit else text[: limit - 3] + "...")


class Shown:
    times = 0

    def __repr__(self) -> str:
        Shown.times += 1
        return "Shown()"


def test_no_more_is_made_than_is_shown():
    many = [Shown()] * 100_000
    for value in (many, tuple(many), dict.fromkeys(range(100_000), many), Row.of(a=1, many=many), [[many]]):
        Shown.times = 0
        assert len(shorten(value)) == 80 and shorten(value).endswith("...")
        assert 0 < Shown.times <= 2 * 80 / len("Shown()")
    Shown.times = 0
    assert shorten({"a" * 10**6: many}) == "{'" + "a" * 75 + "..." and Shown.times == 0
    ring: list[Any] = [1]
    ring.append(ring)
    assert len(shorten(ring)) == 80
