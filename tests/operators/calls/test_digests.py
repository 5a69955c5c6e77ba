"""Digests of equal data are equal in each process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Row
from pillarbox._operators.calls.digests import Callee, digest

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.frozensets(st.text() | st.integers())
    ),
)

EXAMPLE = """
from pillarbox import Row
from pillarbox._operators.calls.digests import digest
words = "customer-1 customer-2".split()
sets = {"b": {*words, "x", 1.5}, "a": frozenset(words)}
print(digest([sets, Row.of(id=words[0][:8], n=3), dict, ("x", [words])]).hex())
"""


@settings(max_examples=20)
@given(PLAIN)
def test_equal_data_has_equal_digests(value: Any) -> None:
    def rebuilt(part: Any) -> Any:
        if isinstance(part, str):
            return "".join(list(part))
        if isinstance(part, dict):
            return {rebuilt(key): rebuilt(item) for key, item in part.items()}
        if isinstance(part, (frozenset, list, tuple)):
            parts = list(map(rebuilt, part))
            return type(part)(reversed(parts) if isinstance(part, frozenset) else parts)
        return part

    assert digest([value, value]) == digest([rebuilt(value), value])
    assert digest(value) != digest([value])


def test_digests_do_not_depend_on_the_process() -> None:
    digests = set()
    for seed in "1", "2", "3":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        digests.add(
            subprocess.run([sys.executable, "-c", EXAMPLE], env=environment, capture_output=True, check=True).stdout
        )
    assert len(digests) == 1


@dataclass
class Order:
    cents: int


def test_local_classes_have_their_name() -> None:
    @dataclass
    class Local:
        cents: int

    assert digest(Local(1)) == digest(Local(1)) != digest(Local(2))
    assert digest(Order(1)) != digest(Local(1))
    assert digest(Row.of(a=1)) != digest(Row.of(b=1))
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises((RecursionError, ValueError)):
        digest(cycle)


class Bank:
    async def charge(self, cents: int, *, idempotency_key: str) -> None:
        pass

    async def __call__(self, cents: int) -> None:
        idempotency_key = cents
        del idempotency_key


def test_names_of_functions() -> None:
    assert Callee.of(Bank().charge) == (__name__, "Bank.charge", True, True, ())
    assert Callee.of(Bank()) == (__name__, "Bank", True, False, ())
    assert Callee.of(partial(Bank().charge, 1)) == (__name__, "Bank.charge", True, True, ((1,), {}))
    assert Callee.of(wraps(Bank.charge)(lambda *args, **keywords: None)) == (__name__, "Bank.charge", True, True, ())
    assert Callee.of(len) == ("builtins", "len", False, False, ())
