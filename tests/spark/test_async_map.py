"""``async_map`` on a DataFrame: results of the functions, and arguments that are refused before anything runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import pillarbox.functions as PF
from pillarbox import AsyncCache, OutputTag, ProgramError

# Calls that the type checker would refuse as well.
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


def yielding(number):
    yield number


def plainly(number):
    return [number / 2, str(number)]


@pytest.fixture(scope="module")
def numbers(spark):
    return spark.range(0, 6, 1, 2).selectExpr("id", "CAST(id % 2 AS INT) AS odd")


def rows(frame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_the_results_that_a_function_may_return(numbers):
    for function in (as_tuple, as_dict, as_object, plainly):
        frame = PF.async_map(numbers, function, "half DOUBLE, name STRING", columns="id")
        assert frame.columns == ["id", "odd", "half", "name"]
        assert rows(frame) == [(n, n % 2, n / 2, str(n)) for n in range(6)]


def test_one_column_is_the_value_itself_and_batches_are_lists(numbers):
    async def add(row):
        return row.id + row.odd

    async def doubled(pairs):
        return [number * 2 + odd for number, odd in pairs]

    frame = PF.async_map(numbers, add, "total LONG")
    frame = PF.async_map(frame, doubled, "more LONG", columns=["id", "odd"], batch_size=4)
    assert rows(frame) == [(n, n % 2, n + n % 2, 2 * n + n % 2) for n in range(6)]


def test_the_cache_goes_by_the_columns(numbers):
    async def ask(odd):
        return odd * 10

    frame = PF.async_map(numbers, ask, "tens INT", columns="odd", cache=AsyncCache())
    assert rows(frame) == [(n, n % 2, n % 2 * 10) for n in range(6)]


@pytest.mark.usefixtures("one_attempt")
def test_a_result_that_does_not_fit_is_named(numbers):
    async def wrong(number):
        return (number,)

    with pytest.raises(
        Exception,
        match=r"async_map\(\): wrong returned \((\d),\) for the record Row\(id=\1, odd=\d\) and the columns half, name",
    ):
        PF.async_map(numbers, wrong, "half DOUBLE, name STRING", columns="id").collect()


@pytest.mark.usefixtures("one_attempt")
def test_a_value_that_does_not_fit_the_only_column_is_named_with_its_row(numbers):
    with pytest.raises(Exception, match=r"'a_word': the field 'half' is declared double.*'count'") as caught:
        PF.async_map(numbers.where("id = 4"), a_word, "half DOUBLE", columns="id").collect()
    assert "record (4, 0, 'count')" in str(caught.value)


async def misspelt(number):
    return {"half": number / 2, "nane": str(number)}


async def only_half(number):
    return {"half": number / 2}


async def a_word(number):
    return "count"


@pytest.mark.usefixtures("one_attempt")
def test_dicts_go_by_the_rules_of_to_dataframe(numbers):
    frame = PF.async_map(numbers, only_half, "half DOUBLE, name STRING", columns="id")
    assert rows(frame) == [(n, n % 2, n / 2, None) for n in range(6)]
    for function, output, words in (
        (misspelt, "half DOUBLE, name STRING", r"misspelt returned .* it has a field 'nane', which is not declared"),
        (
            only_half,
            "half DOUBLE, name STRING NOT NULL",
            r"only_half returned .* it has no field 'name', which must not",
        ),
        (
            a_word,
            "count LONG, index LONG",
            r"a_word returned 'count' for the record Row\(id=\d, odd=\d\) and the columns count, index: it must",
        ),
    ):
        with pytest.raises(Exception, match=words):
            PF.async_map(numbers, function, output, columns="id").collect()


@pytest.mark.parametrize("batch_size", [None, 2])
def test_failures_are_a_column(numbers, batch_size):
    async def ask(values):
        for value in values if batch_size else [values]:
            if value >= 3:
                raise ConnectionError(f"no {value}")
        return [(v / 2, str(v)) for v in values] if batch_size else (values / 2, str(values))

    frame = PF.async_map(
        numbers, ask, "half DOUBLE NOT NULL, name STRING", columns="id", failures="why", batch_size=batch_size, retry=1
    )
    assert frame.schema.simpleString() == (
        "struct<id:bigint,odd:int,half:double,name:string,why:struct<type:string,message:string,attempts:int>>"
    )
    result = rows(frame)
    assert result[:3] == [(n, n % 2, n / 2, str(n), None) for n in range(3)]
    assert [row[:4] for row in result[3:]] == [(n, n % 2, None, None) for n in (3, 4, 5)]
    for row in result[3:]:
        assert (row[4].type, row[4].attempts) == ("ConnectionError", 2)
        assert row[4].message in (f"no {row[0]}", f"no {row[0] - 1}" if batch_size else "")


def test_timeouts_are_in_the_column_of_failures(numbers):
    async def ask(number):
        await asyncio.sleep(3600 if number == 3 else 0)
        return number

    frame = PF.async_map(numbers, ask, "n LONG", columns="id", failures="why", timeout="200 ms")
    rows = {row.id: (row.n, row.why) for row in frame.collect()}
    late = (None, ("TimeoutError", "no result within 200 ms", 1))
    assert rows[3] == late
    # On a busy machine others may be late, too.
    assert all(what in ((number, None), late) for number, what in rows.items())


def test_columns_are_told_apart_as_spark_does(numbers):
    with pytest.raises(ProgramError, match="already has a column 'id', which Spark does not distinguish from 'ID'"):
        PF.async_map(numbers, as_tuple, "ID LONG")
    with pytest.raises(ProgramError, match="output has two columns 'N'"):
        PF.async_map(numbers, as_tuple, "n LONG", failures="N")
    session = numbers.sparkSession
    session.conf.set("spark.sql.caseSensitive", "true")
    try:
        frame = PF.async_map(numbers, as_tuple, "ID DOUBLE, name STRING", columns="id")
        assert frame.columns == ["id", "odd", "ID", "name"]
    finally:
        session.conf.unset("spark.sql.caseSensitive")


def test_a_job_rate_limit_runs_no_job(numbers):
    context = numbers.sparkSession.sparkContext
    context.setJobGroup("building", "a program")
    try:
        frame = PF.async_map(numbers, as_tuple, "half DOUBLE, name STRING", columns="id", job_rate_limit=1e6)
        assert context.statusTracker().getJobIdsForGroup("building") == []
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    assert len(rows(frame)) == 6


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda df: PF.async_map(df, as_tuple, "id LONG"), "already has a column 'id'"),
        (lambda df: PF.async_map(df, as_tuple, "x LONG", columns="no"), "no column 'no' for.*columns are id, odd"),
        (lambda df: ANYHOW(df, "as_tuple", "x LONG"), "got 'as_tuple': pass a function"),
        (lambda df: ANYHOW([1], as_tuple, "x LONG"), "takes a Spark DataFrame"),
        (
            lambda df: PF.async_map(df, as_tuple, "x LONG", capacity=0),
            r"async_map\(\): capacity= must be a positive integer",
        ),
        (
            lambda df: ANYHOW(df, as_tuple, "x LONG", on_failure=OutputTag("bad")),
            "no side output: for a column with failures",
        ),
        (lambda df: PF.async_map(df, as_tuple, "x LONG", on_failure="drop", failures="e"), "pass only one"),
        (lambda df: ANYHOW(df, as_tuple, "x LONG", failures=7), "failures= must be a column name, not 7"),
        (lambda df: PF.async_map(df, as_tuple, "x LONG", failures="odd"), "already has a column 'odd'"),
        (lambda df: PF.async_map(df, yielding, "x LONG"), "which yields"),
        (lambda df: PF.async_map(df, as_tuple, "x LONG", on_barrier="carry"), "which exists only after a shuffle"),
    ],
)
def test_wrong_use_is_refused_at_once(numbers, call, words):
    with pytest.raises(ProgramError, match=words):
        call(numbers)
