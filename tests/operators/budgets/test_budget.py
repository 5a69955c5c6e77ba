from __future__ import annotations

from typing import Any

import pytest

from pillarbox import Budget, CircuitBreaker, ProgramError, StreamExecutionEnvironment

WRONG: Any = Budget


@pytest.mark.parametrize(
    ("written", "per_second"),
    [
        (5, 5.0),
        ("100 per second", 100.0),
        ("90000 per minute", 1500.0),
        ("3_600 / hour", 1.0),
        ("10 per 5 seconds", 2.0),
        ("1 per 200 ms", 5.0),
    ],
)
def test_rates(written, per_second):
    assert Budget("b", requests=written).limits.requests == pytest.approx(per_second)
    assert Budget("b", units=written).limits.units == pytest.approx(per_second)


def test_ceilings():
    assert Budget("b", ceiling=("5 USD", "1 day")).limits[3:5] == (5.0, 86_400_000)
    assert Budget("b", ceiling=(5_000_000, "1 hour")).limits[3:5] == (5_000_000.0, 3_600_000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Budget 'b': limits nothing: set requests=, units=, ceiling= or breaker="),
        ({"requests": 0}, "Budget 'b': requests= must be a number per second, or a string such as .*, not 0"),
        ({"requests": "fast"}, "Budget 'b': requests= must be .*, not 'fast'"),
        ({"requests": "5 per fortnight"}, "Budget: requests='1 fortnight' is not a duration"),
        ({"units": float("inf")}, "Budget 'b': units= must be .*, not inf"),
        ({"ceiling": 5}, "Budget 'b': ceiling= must be a tuple of units and period, such as .*, not 5"),
        ({"ceiling": ("much", "1 day")}, "Budget 'b': ceiling= must be"),
        ({"ceiling": (5, "-1 day")}, "Budget: the period of ceiling="),
        ({"ceiling": (5, "1 day"), "estimate": 6}, "an estimate of 6 units is above the ceiling, so no request could"),
        ({"units": 5, "unit_cost": 3}, "Budget 'b': unit_cost= must be a function of the result, not 3"),
        (
            {"units": 5, "estimate": -1},
            "Budget 'b': estimate= must be a number of units, or a function of the record, not",
        ),
        (
            {"requests": 5, "when_exceeded": "drop"},
            "Budget 'b': when_exceeded= must be \"hold\" or \"fail\", not 'drop'",
        ),
        ({"breaker": 5}, "Budget 'b': breaker= must be a CircuitBreaker, not 5"),
    ],
)
def test_wrong_budgets(options, message):
    with pytest.raises(ProgramError, match=message):
        WRONG("b", **options)


def test_wrong_breakers():
    with pytest.raises(ProgramError, match="CircuitBreaker: failures=5 exceeds of=3, so the breaker would never open"):
        CircuitBreaker(5, 3)
    with pytest.raises(ProgramError, match="CircuitBreaker: failures= must be a positive integer, not 0"):
        CircuitBreaker(0)


async def echo(value: Any) -> Any:
    return value


def program(*budgets: Any) -> Any:
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    for budget in budgets:
        stream = stream.map_async(echo, budgets=[budget])
    return stream


def test_one_name_has_one_budget():
    with pytest.raises(
        ProgramError,
        match=r"two budgets have the name 'model', one with requests 5.0, one with requests 6.0 .*: pass one Budget to"
        r" all operators, or rename one",
    ):
        program(Budget("model", requests=5), Budget("model", requests=6)).execute_and_collect()
    # The cost of a request is each operator's own.
    same = program(Budget("model", requests=5e5, estimate=1), Budget("model", requests="500000 per second", estimate=2))
    assert list(same.execute_and_collect()) == [1]


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        (Budget("b", requests=5), r"map_async\(\): budgets= must be a list of Budget objects, not Budget\("),
        ([5], r"map_async\(\): budgets= must be a list of Budget objects, not \[5\]"),
        ([Budget("b", requests=5), Budget("b", units=5)], "budgets= must be a list of budgets with different names"),
    ],
)
def test_wrong_lists(budgets, message):
    stream: Any = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(ProgramError, match=message):
        stream.map_async(echo, budgets=budgets)
