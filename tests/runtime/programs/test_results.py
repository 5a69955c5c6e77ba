from __future__ import annotations

import pytest

from pillarbox import MapFunction, OperatorError, StreamExecutionEnvironment

MANY = 50_000
calls: list[int] = []
closed: list[str] = []


class Noting(MapFunction):
    def map(self, value):
        calls.append(value)
        return value

    def close(self):
        closed.append("closed")


@pytest.fixture(autouse=True)
def forget():
    calls.clear()
    closed.clear()


def noting(values):
    return StreamExecutionEnvironment().from_collection(values).map(Noting())


def test_a_small_program_has_ended_when_it_is_returned():
    results = noting(range(100)).execute_and_collect()
    assert len(calls) == 100 and closed == ["closed"]
    assert [next(results), next(results)] == [0, 1]
    assert list(results) == list(range(2, 100))
    assert dict.fromkeys(results).keys() == set(range(2, 100)) and len(results) == 98


def large(value):
    return value, f"{value:0600}"  # so that a run of records is more than a task may queue


def test_a_large_program_runs_while_it_is_read():
    results = noting(range(MANY)).map(large).execute_and_collect()
    assert 0 < len(calls) < MANY and closed == []
    for number, (value, _) in enumerate(results):
        assert value == number
    assert len(calls) == MANY and closed == ["closed"]
    assert len(results) == len(list(results)) == MANY


def test_in_a_with_statement_nothing_is_kept():
    with noting(range(MANY)).map(large).execute_and_collect() as results:
        for number, (value, _) in enumerate(results):
            assert value == number
            assert len(results._records) <= 20_000
        assert closed == ["closed"]
        assert list(results) == []


@pytest.mark.parametrize("how", ["close", "with"])
def test_closing_ends_the_program(how):
    results = noting(range(MANY)).map(large).execute_and_collect()
    if how == "close":
        assert next(results)[0] == 0
        results.close()
    else:
        with results:
            assert next(results)[0] == 0
    ran = len(calls)
    assert ran < MANY and closed == ["closed"]
    assert [value for value, _ in results] == list(range(1, ran))  # the arrived records
    results.close()
    assert len(calls) == ran and closed == ["closed"]


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_limit_ends_the_program(shuffled):
    stream = StreamExecutionEnvironment().from_collection(range(MANY))
    spread = stream.rebalance() if shuffled else stream
    results = spread.map(Noting()).execute_and_collect(limit=250)
    assert type(results) is list and results == list(range(250))
    assert 250 <= len(calls) < MANY and closed == ["closed"]


def test_a_limit_above_what_is_there():
    assert noting(range(3)).execute_and_collect(limit=10) == [0, 1, 2]
    assert closed == ["closed"]
    assert noting([]).execute_and_collect("job", 1) == []


def failing(value):
    return 1 // (value - MANY + 1)


def test_an_error_comes_where_it_is_reached():
    results = noting(range(MANY)).map(large).map(lambda pair: (failing(pair[0]), pair)[1]).execute_and_collect()
    read = 0
    with pytest.raises(OperatorError, match="ZeroDivisionError"):
        for _ in results:
            read += 1
    assert read > 1_000 and closed == ["closed"]
    with pytest.raises(OperatorError, match="ZeroDivisionError"):
        noting([MANY - 1]).map(failing).execute_and_collect()


def test_results_are_a_sequence_on_request():
    results = noting([3, 1, 2]).execute_and_collect()
    assert next(results) == 3
    assert repr(results) == "[1, 2]"
    assert len(results) == 2 and results[0] == 1 and results[-1:] == [2] and 2 in results and 3 not in results
    assert results == [1, 2] and results != [1] and results == noting([1, 2]).execute_and_collect()
    assert list(results) == sorted(results) == [1, 2]  # again and again
    assert next(results) == 1 and list(results) == [2] and next(results) == 2 and list(results) == []
    with pytest.raises(TypeError, match="unhashable"):
        hash(results)
