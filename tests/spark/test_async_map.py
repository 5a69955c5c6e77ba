"""One call on a DataFrame: what functions may give, and what is refused before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import pillarbox.functions as PF
from pillarbox import AsyncCache, ProgramError

# What the type checker would refuse as well.
ANYHOW: Any = PF.async_map


@dataclass
class Parts:
    half: float
    name: str


async def as_tuple(number):
    return number / 2, str(number)


async def as_dict(number):
    return {"name": str(number), "half": number / 2}


async def as_object(number):
    return Parts(number / 2, str(number))


def plainly(number):
    return [number / 2, str(number)]


@pytest.fixture(scope="module")
def numbers(spark):
    return spark.range(0, 6, 1, 2).selectExpr("id", "CAST(id % 2 AS INT) AS odd")


def rows(frame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_what_a_function_may_give(numbers):
    for function in (as_tuple, as_dict, as_object, plainly):
        made = PF.async_map(numbers, function, "half DOUBLE, name STRING", columns="id")
        assert made.columns == ["id", "odd", "half", "name"]
        assert rows(made) == [(n, n % 2, n / 2, str(n)) for n in range(6)]


def test_one_column_is_the_value_itself_and_batches_are_lists(numbers):
    async def add(row):
        return row.id + row.odd

    async def doubled(pairs):
        return [number * 2 + odd for number, odd in pairs]

    made = PF.async_map(numbers, add, "total LONG")
    made = PF.async_map(made, doubled, "more LONG", columns=["id", "odd"], batch_size=4)
    assert rows(made) == [(n, n % 2, n + n % 2, 2 * n + n % 2) for n in range(6)]


def test_the_cache_goes_by_the_columns(numbers):
    async def ask(odd):
        return odd * 10

    made = PF.async_map(numbers, ask, "tens INT", columns="odd", cache=AsyncCache())
    assert rows(made) == [(n, n % 2, n % 2 * 10) for n in range(6)]


def test_a_result_that_does_not_fit_is_named(numbers):
    async def wrong(number):
        return (number,)

    with pytest.raises(
        Exception, match=r"async_map\(\): wrong gave \(\d,\) for the columns half, name: it has to give"
    ):
        PF.async_map(numbers, wrong, "half DOUBLE, name STRING", columns="id").collect()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda df: PF.async_map(df, as_tuple, "id LONG"), "has a column 'id' already"),
        (lambda df: PF.async_map(df, as_tuple, "x LONG", columns="no"), "no column 'no' to give.*columns are id, odd"),
        (lambda df: ANYHOW(df, "as_tuple", "x LONG"), "got 'as_tuple': give it a function"),
        (lambda df: ANYHOW([1], as_tuple, "x LONG"), "takes a Spark DataFrame"),
        (lambda df: PF.async_map(df, as_tuple, "x LONG", capacity=0), "capacity is a whole number"),
        (lambda df: PF.async_map(df, as_tuple, "x LONG", on_barrier="carry"), "before the first shuffle"),
    ],
)
def test_wrong_use_is_refused_at_once(numbers, call, words):
    with pytest.raises(ProgramError, match=words):
        call(numbers)
