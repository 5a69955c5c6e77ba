"""Copies are equal to the results of copy.deepcopy. Some values need no copy."""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import pathlib
import re
import socket
import sys
import threading
import types
import uuid
import weakref
import zoneinfo
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row as SparkRow

from pillarbox import ProgramError, Row, immutable
from pillarbox._copies import Copier, copied, is_fixed

atoms = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.just(decimal.Decimal(1)), st.dates(), st.binary()
)


class Pair(NamedTuple):
    one: Any
    other: Any


class Own:
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
    if isinstance(value, (list, dict, tuple, collections.deque, Own)):
        if id(value) in seen:
            return seen[id(value)]
        seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return type(value), [(key, shape(item, seen)) for key, item in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value), [shape(item, seen) for item in value]
    return (type(value), shape(value.inner, seen)) if isinstance(value, Own) else value


@given(st.recursive(atoms, nested, max_leaves=20))
def test_a_copy_is_that_of_deepcopy(value):
    assert shape(copied(value), {}) == shape(copy.deepcopy(value), {}) == shape(value, {})


@given(st.recursive(atoms, nested, max_leaves=20))
def test_nothing_that_can_change_is_shared(value):
    def mutable(value: Any) -> set[int]:
        results = {id(value)} if isinstance(value, (list, dict, collections.deque, Own)) else set()
        inner = value.values() if isinstance(value, dict) else [value.inner] if isinstance(value, Own) else value
        if isinstance(value, (list, dict, tuple, collections.deque, Own)):
            results.update(*map(mutable, inner))
        return results

    assert not mutable(value) & mutable(copied(value))


def test_values_that_contain_themselves():
    ring: list[Any] = [1]
    ring.append({"ring": ring, "pair": (ring, 2)})
    other = copied(ring)
    assert other is not ring and other[1]["ring"] is other and other[1]["pair"][0] is other
    assert other[1]["pair"][1] == 2


def test_json_is_copied_without_deepcopy():
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
        result = copied(value)
    finally:
        sys.setprofile(None)
    assert result == value
    assert calls["copy.py"] == 0 and calls["_copies.py"] == 1 + 1 + 1 + 50 * 2


@dataclasses.dataclass
class Cart:
    user: str
    total: int = 0
    items: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Plain:
    a: int = 1
    b: str = "x"


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: Any = 1


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    a: Any = 1


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any
    b: Any = 2


class PrivateSlots:
    __slots__ = ("__dict__", "__hidden", "missing")

    def __init__(self, hidden: Any) -> None:
        self.__hidden = hidden
        self.other = hidden

    def hidden(self) -> Any:
        return self.__hidden


class Color(enum.Enum):
    RED = ["red"]


class Counted(dict):  # type: ignore[type-arg]
    def __init__(self, *items: Any) -> None:
        super().__init__(*items)
        self.extra = [1]


class ByHand:
    """A class with its own copy method."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __deepcopy__(self, memo: Any) -> ByHand:
        return ByHand(("by hand", self.inner))


def inner_of(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [value, *(result for item in value for result in inner_of(item))]
    if isinstance(value, dict):
        return inner_of(list(value.values())) + inner_of(
            list(vars(value).values()) if hasattr(value, "__dict__") else []
        )
    if isinstance(value, (tuple, set, collections.deque)):
        return [result for item in value for result in inner_of(item)]
    names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
    return [result for name in names if hasattr(value, name) for result in inner_of(getattr(value, name))]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Cart("a", 1, [1]),
        lambda: Frozen([1]),
        lambda: FrozenSlots([1]),
        lambda: Slotted([1]),
        lambda: Counted({"a": [1]}),
        lambda: collections.defaultdict(list, a=[1]),
        lambda: (1, Cart("a")),
        lambda: Own([[1]]),
        lambda: Row.of(a=Cart("a")),
        lambda: SparkRow(a=[1]),
        lambda: {"a": (1, [2])},
        lambda: types.SimpleNamespace(a=[1], b=2),
    ],
)
def test_no_list_within_is_shared(make):
    value = make()
    other = copied(value)
    assert type(other) is type(value) and other == make()
    lists, others = inner_of(value), inner_of(other)
    assert lists and len(lists) == len(others)
    assert not {id(list_) for list_ in lists} & {id(list_) for list_ in others}
    assert not is_fixed(value)


def test_slots_that_are_private_or_missing():
    value = PrivateSlots([1])
    other = copied(value)
    assert other.hidden() == [1] and other.hidden() is not value.hidden() and other.other is other.hidden()
    assert not hasattr(other, "missing")


def test_a_class_that_decides_itself_how_it_is_copied():
    assert copied([ByHand(1)])[0].inner == ("by hand", 1)


@pytest.mark.parametrize(
    "value",
    [
        *(1, "x", b"x", 2.5, None, 3j, range(3), decimal.Decimal(1), uuid.UUID(int=3), datetime.date(2026, 1, 1)),
        *(Color.RED, pathlib.PurePosixPath("a"), len, Cart, copied, ValueError("x"), zoneinfo.ZoneInfo("UTC")),
        *(Frozen(), FrozenSlots(), (1, ("a", Color.RED)), frozenset({(1, 2)}), Pair(1, "a"), Row.of(a=1, b=Frozen())),
        *(np.float64(1), np.int32(3), np.datetime64("2026-01-01"), np.str_("a"), pd.Timestamp("2026-01-01")),
        *(pa.array([1]), pa.scalar(3), pa.table({"a": [1]}), pa.int64(), pa.schema([])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_immutable_values_are_not_copied(value):
    assert copied(value) is value
    assert is_fixed((value,)) is isinstance(value, tuple) or copied((value,))[0] is value


def test_an_array_is_copied():
    value = np.arange(3)
    other = copied(value)
    value[0] = 9
    assert other.tolist() == [0, 1, 2]


@pytest.mark.parametrize("make", [Plain, lambda: [1, "a"], lambda: {"a": 1}, lambda: {1}, lambda: Slotted(1)])
def test_a_new_object_that_nothing_else_refers_to_is_emitted_itself(make):
    emitted = Copier("op").emitted
    identity = []

    def call():
        value = make()
        identity.append(id(value))
        return value

    results = []
    for _ in range(200):  # including measured copies
        result = call()
        result = emitted(result)
        results.append(result)
    assert [id(result) for result in results] == identity


@pytest.mark.parametrize("make", [Plain, lambda: [1, "a"], lambda: {"a": 1}, lambda: {1}, lambda: Cart("a")])
def test_an_object_that_something_else_refers_to_is_copied(make):
    emitted = Copier("op").emitted
    originals, results = [], []
    for _ in range(200):
        result = make()
        originals.append(result)
        result = emitted(result)
        results.append(result)
    assert results == originals
    assert not {id(original) for original in originals} & {id(result) for result in results}


def test_an_object_with_a_weak_reference_is_copied():
    emitted = Copier("op").emitted
    value = Plain()
    reference = weakref.ref(value)
    number = id(value)
    value = emitted(value)
    assert id(value) != number and reference is not None


@pytest.mark.parametrize(
    "make, inner",
    [(threading.Lock, "lock"), (lambda: (n for n in ""), "generator"), (socket.socket, "socket")],
)
def test_values_that_cannot_be_copied(make, inner):
    class Client:
        def __init__(self) -> None:
            self.inner = make()

    copier = Copier("ask")
    for method in (copier.copied, copier.emitted):
        with pytest.raises(ProgramError) as caught:
            method(Client())
        text = str(caught.value)
        assert re.match(f"operator 'ask' emitted .*, which cannot be copied .TypeError: cannot pickle .*{inner}", text)
        assert f"pillarbox.immutable({Client.__qualname__})" in text and "env.enable_object_reuse()" in text
    with pytest.raises(ProgramError, match=rf"instances of {inner} never change, .*immutable\({inner}\)"):
        copier.copied((1, make()))


def test_an_immutable_class_and_its_subclasses():
    class Model:
        def __init__(self) -> None:
            self.lock = threading.Lock()

    class Large(Model):
        pass

    with pytest.raises(ProgramError):
        Copier("op").copied(Model())
    assert immutable(Model) is Model
    for value in (Model(), Large()):
        assert copied(value) is value and copied((1, value))[1] is value and is_fixed(value)


@pytest.mark.parametrize("value", [Cart("a"), "Cart", None])
def test_immutable_takes_a_class(value):
    with pytest.raises(ProgramError, match=r"immutable\(\) takes a class, not "):
        immutable(value)


def test_the_time_of_copies():
    copier = Copier("op")
    large = [[index] for index in range(1000)]
    for _ in range(200):
        copier.copied(large)
    times = copier.take_milliseconds()
    assert set(times) == {"list"} and times["list"] > 0
    assert copier.take_milliseconds() == {}
