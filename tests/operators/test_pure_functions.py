"""Functions whose results need no copy, because no call can reach an earlier result."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import pytest

from pillarbox import OperatorError, StreamExecutionEnvironment
from pillarbox._operators.frame.pure_functions import is_pure

LIMIT = 5
NAMES = ("a", ("b", 2))
CACHE: list[Any] = [0]
REMEMBERED: list[Any]


class Pair(NamedTuple):
    one: int
    other: Any


class Callable:
    def __call__(self, value):
        return CACHE


def remember(value):
    global REMEMBERED
    REMEMBERED = [value]
    return REMEMBERED


def imports(value):
    import sys

    return sys.path


def of_a_closure(cache):
    return lambda value: cache


def default(value, cache=[]):  # noqa: B006
    cache[:] = [value]
    return cache


PURE: list[Any] = [
    lambda value: value,
    lambda value: (value.one, int(value.other * 100), "x"),
    lambda value: [value, {"value": value}],
    lambda value: sorted([value, LIMIT], key=lambda number: -number),
    lambda value, limit=LIMIT, *, names=NAMES: dict.fromkeys(names, value),
    lambda value: value._replace(one=1),
    lambda value: f"{value} {LIMIT}" if isinstance(value, str) else None,
]
IMPURE: list[Any] = [
    lambda value: CACHE,
    lambda value: Pair(1, CACHE),
    lambda value: {item: len(value) for item in CACHE},
    lambda value: max([value], key=lambda item: CACHE),
    lambda value: value.__class__,
    lambda value: (remember(value), 1),
    lambda value: not_yet_defined,  # type: ignore[name-defined]  # noqa: F821
    lambda value: getattr(value, "cache"),  # noqa: B009
    functools.partial(default),
    remember,
    imports,
    default,
    of_a_closure([]),
    Callable(),
    CACHE.append,
    Pair,
]


@pytest.mark.parametrize("function", PURE)
def test_a_function_of_builtins_and_constants_is_pure(function):
    assert is_pure(function)


@pytest.mark.parametrize("function", IMPURE)
def test_a_function_that_reaches_anything_else_is_not(function):
    assert not is_pure(function)


def test_a_pure_function_of_records_that_can_change_is_no_exception():
    class Shares:
        box: list[int] = []

        def __init__(self, number):
            self.number = number

        def shared(self):
            self.box[:] = [self.number]
            return self.box

    env = StreamExecutionEnvironment()
    numbers = env.from_collection([1, 2, 3]).map(Shares)
    assert numbers.map(lambda number: number.shared()).map(lambda box: box[0]).execute_and_collect() == [1, 2, 3]


def test_a_pure_function_that_raises_names_its_record():
    env = StreamExecutionEnvironment()
    for function, says in (
        (lambda n: 1 // (3 - n), "ZeroDivisionError"),
        (lambda n: next(iter(range(3, n, -1))), "Stop"),
    ):
        assert is_pure(function)
        with pytest.raises(OperatorError, match=f"failed at the record 3: .*{says}"):
            env.from_collection([1, 2, 3, 4]).map(function).execute_and_collect()
