"""Estimated sizes are roughly proportional to the pickles' sizes, and computed without user code."""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import Row
from pillarbox._state.types.sizes import sizes_of


@dataclass
class Payload:
    content: bytes
    notes: list[bytes] = field(default_factory=list)

    def __reduce__(self):
        raise AssertionError("it is not to be pickled")


SHORT = [None, 1, 2.5, "ab", b"xyz", (1, "a"), [1.0] * 5, {"k": 1}, {"k", "l"}, Row.of(a=1, b="x"), [[1, 2], ["z"]]]


@pytest.mark.parametrize("length", [20, 1_000])
@pytest.mark.parametrize(
    "long",
    [
        lambda n: "x" * 10 * n,
        lambda n: bytes(10 * n),
        lambda n: [1.5] * n,
        lambda n: [f"some text {i}" for i in range(n)],
        lambda n: {f"key {i}": i for i in range(n)},
        lambda n: {f"key {i}" for i in range(n)},
        lambda n: [{"a": [i, (i, "text")]} for i in range(n)],
        lambda n: (1, ["a", bytes(10 * n)]),
        lambda n: Row.of(a=1, b="x" * 10 * n),
        lambda n: np.zeros(2 * n),
    ],
)
def test_a_long_row_among_short_ones_is_found(length, long):
    values = [*SHORT, long(length), *SHORT]
    sizes = sizes_of(list(range(len(values))), [[n, value, None] for n, value in enumerate(values)])
    assert len(sizes) == len(values)
    assert int(np.argmax(sizes)) == len(SHORT)
    # Pickles store repeated objects once: so within a factor.
    assert sizes[len(SHORT)] == pytest.approx(len(pickle.dumps(values[len(SHORT)], 5)), rel=3, abs=150)
    assert max(np.delete(sizes, len(SHORT))) < 200


def test_objects_are_looked_into_and_not_pickled():
    values = [Payload(b""), Payload(bytes(9_000)), Payload(b"", [bytes(5_000)])]
    sizes = sizes_of([1, 2, 3], [[0, value] for value in values])
    assert sizes[1] > 9_000 > sizes[2] > 5_000 > 1_000 > sizes[0]


class Slots:
    __slots__ = ("content", "never")

    def __init__(self, content):
        self.content = content

    def __getattr__(self, name):
        raise AssertionError("it is not to be asked")


@dataclass
class More(Slots):
    __slots__ = ("more",)

    def __init__(self, content, more):
        super().__init__(content)
        self.more = more


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (Slots(bytes(9_000)), 9_000),
        (More(bytes(5_000), "x" * 4_000), 9_000),
        (deque([b"some text"] * 900), 900 * 14),
        (np.zeros(9_000, np.int8)[:], 9_000),
        ([bytes(9_000), *range(500)], 11_500),
        ([*range(500), bytes(9_000)], 11_500),
        ([bytes(9_000), *range(5_000)], 34_000),
        ({"payload": bytes(9_000), **{f"field {n}": n for n in range(500)}}, 20_000),
        ([*range(100), [bytes(9_000)], *range(100)], 10_000),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_in_it_counts_wherever_it_is(value, size):
    assert sizes_of([1], [[0, value]])[0] == pytest.approx(size, rel=0.3)


def test_of_nothing():
    assert len(sizes_of([], [])) == 0


VALUES = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=30) | st.binary(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=40) | st.dictionaries(st.integers(), inner, max_size=40) | st.tuples(inner, inner)
    ),
    max_leaves=60,
)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=8))
def test_alone_or_among_others_a_row_has_the_same_size(pairs):
    rows = [[0, *pair] for pair in pairs]
    together = sizes_of(["k"] * len(rows), rows)
    alone = [sizes_of(["k"], [row])[0] for row in rows]
    assert together == pytest.approx(alone)
