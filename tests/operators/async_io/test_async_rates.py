from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from pillarbox import (
    Budget,
    BudgetExceededError,
    CircuitBreaker,
    CircuitOpenError,
    OperatorError,
    OutputTag,
    ProgramError,
)
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox.testing import OneInputStreamOperatorTestHarness as Harness
from pillarbox.testing import ProgramTestHarness
from tests.support.nodes import node


class Service:
    def __init__(self) -> None:
        self.clock: Any = None
        self.asked: list[tuple[Any, int]] = []
        self.error: BaseException | None = None
        self.cost = 1.0

    async def __call__(self, value: Any) -> Any:
        self.asked.append((value, self.clock.current_processing_time()))
        if self.error is not None:
            raise self.error
        return value, self.cost

    @property
    def times(self) -> list[int]:
        return [at for _, at in self.asked]


class TooManyRequests(Exception):
    def __init__(self, retry_after: float | None = None) -> None:
        super().__init__("too many requests")
        self.status = 429
        if retry_after is not None:
            self.retry_after = retry_after


def harness(**options: Any) -> Any:
    options = {"timeout": None, **options}
    created: Any = Harness(node(AsyncWaitOperator, "ask", Service(), AsyncOptions("map_async", **options)))
    created.operator.function.clock = created.processing_time_service
    return created


@pytest.mark.parametrize("option", ["rate_limit", "job_rate_limit", "budgets"])
def test_requests_begin_at_the_rate(option):
    limit: Any = [Budget("model", requests=50)] if option == "budgets" else 50
    with harness(**{option: limit}) as h:
        h.push_all(range(8))
        h.end_input(time_passes="1 second")
        times = h.operator.function.times
    assert times == [20 * number for number in range(8)]


def test_each_of_several_limits_holds():
    slow, units = Budget("slow", requests="30 per minute"), Budget("units", units="1 per second", estimate=3)
    with harness(rate_limit=100, budgets=[slow, units]) as h:
        h.push_all(range(5))
        h.end_input(time_passes="1 minute")
        times = h.operator.function.times
    assert all(after - before >= 3000 for before, after in pairwise(times))
    assert times[-1] <= 12_100


def test_waiting_for_one_budget_loses_no_slot_of_another():
    with harness(budgets=[Budget("fast", requests=1), Budget("slow", requests=0.1)]) as h:
        h.push_all(range(3))
        h.end_input(time_passes="1 minute")
        assert h.operator.function.times[-1] <= 21_000


def test_units_cost_what_the_result_says():
    budget = Budget("model", units="10 per second", unit_cost=lambda result: result[1], estimate=1)
    with harness(budgets=[budget]) as h:
        h.operator.function.cost = 50.0
        h.push_all(range(3))
        h.end_input(time_passes="1 minute")
        times = h.operator.function.times
    # Requests that began before the first cost was known are the permitted overshoot.
    assert (times[1] <= 100 and times[2] <= 200) or times[2] >= 5_000


def test_an_estimate_may_depend_on_the_record():
    budget = Budget("model", units="10 per second", estimate=lambda value: value)
    with harness(budgets=[budget]) as h:
        h.push_all([20, 5, 10])
        h.end_input(time_passes="1 minute")
        assert h.operator.function.times == [0, 2000, 2500]


def test_a_ceiling_holds_requests_until_the_next_period():
    with harness(budgets=[Budget("model", ceiling=(2, "1 hour"))]) as h:
        h.push_all(range(5))
        h.end_input(time_passes="3 hours")
        times = h.operator.function.times
    assert times[:2] == [0, 0]
    assert times[2] == times[3] == 3_600_000
    assert times[4] >= 7_200_000


def test_a_ceiling_fails_requests_which_may_be_dead_letters():
    bad = OutputTag("bad")
    with harness(budgets=[Budget("model", ceiling=(2, "1 hour"), when_exceeded="fail")], on_failure=bad) as h:
        h.push_all(range(4))
        h.drain()
        assert h.get_output() == [(0, 1.0), (1, 1.0)]
        assert [failure.value for failure in h.get_side_output(bad)] == [2, 3]
        assert "BudgetExceededError: budget 'model': the ceiling of 2 units is reached" in str(
            h.get_side_output(bad)[0].error
        )


def test_a_ceiling_that_is_reached_fails_the_task():
    with harness(budgets=[Budget("model", ceiling=(1, "1 hour"), when_exceeded="fail")]) as h:
        h.push_all(range(2))
        with pytest.raises(
            OperatorError, match="'model': the ceiling of 1 units is reached for another 3600 s"
        ) as raised:
            h.drain()
    assert isinstance(raised.value.__cause__, BudgetExceededError)


@pytest.mark.parametrize(("retry_after", "stops"), [(2.0, 2000), (None, 1000)])
def test_429_stops_all_requests(retry_after, stops):
    budget = Budget("model", requests=100)
    with harness(budgets=[budget], retry=1) as h:
        service = h.operator.function
        service.error = TooManyRequests(retry_after)
        h.push(1)
        for _ in range(3):
            h.operator.in_flight.host.thread.call(lambda: None)
        assert service.times == [0]
        service.error = None
        h.push_all(range(2, 4))
        h.end_input(time_passes="1 minute")
        assert service.times[1] >= stops
        assert service.times[-1] - service.times[1] >= 2 * 15  # at about half the rate


def test_other_errors_stop_nothing():
    with harness(budgets=[Budget("model", requests=100)], on_failure="drop") as h:
        h.operator.function.error = ConnectionError("gone")
        h.push_all(range(5))
        h.end_input(time_passes="1 second")
        assert h.operator.function.times == [10 * number for number in range(5)]


def test_a_breaker_opens_and_lets_one_through():
    breaker = CircuitBreaker(failures=2, of=4, pause="5 seconds")
    budget = Budget("model", breaker=breaker, when_exceeded="fail")
    with harness(budgets=[budget], on_failure=(bad := OutputTag("bad")), capacity=1) as h:
        service = h.operator.function
        service.error = ConnectionError("gone")
        h.push_all(range(5))
        h.drain()
        assert [value for value, _ in service.asked] == [0, 1]
        errors = [failure.error for failure in h.get_side_output(bad)]
        assert "gone" in str(errors[1]) and CircuitOpenError.__name__ in str(errors[2])
        service.error = None
        h.advance_processing_time(5_000)
        h.push_all([5, 6])
        h.drain()
        assert h.get_output() == [(5, 1.0), (6, 1.0)]


def test_an_invalid_cost_is_an_error():
    with harness(budgets=[Budget("model", units=5, unit_cost=lambda result: result["usage"])]) as h:
        h.push(1)
        with pytest.raises(
            ProgramError, match=r"Budget 'model': the function unit_cost= raised an error for \(1, 1.0\): TypeError"
        ):
            h.drain()


async def echo(value: Any) -> Any:
    return value


def test_subtasks_and_operators_share_a_budget_by_its_name():
    budget = Budget("model", requests=100)

    def build(env: Any, numbers: Any) -> Any:
        asked = numbers.key_by(lambda value: value).map_async(echo, budgets=[budget])
        return asked.map_async(echo, budgets=[Budget("model", requests="100 per second")])

    with ProgramTestHarness(build, parallelism=16) as h:
        h.push("numbers", *range(6))
        # Twelve requests take eleven times 10 ms.
        answers = h.run_epoch(time_passes="110 ms")["output"]
        assert sorted(answers) == list(range(6))
        reports = h._job.reports
    limited = [report.rate_limited_ms for report in reports if report.level]
    assert any(limited)
    assert all(report.rate_limited_ms is None for report in reports if not report.level)
    granted = sum(
        count for report in reports for name, count in report.counters.items() if name.endswith("budget.model.granted")
    )
    assert granted == 12


def test_an_operator_is_closed_while_requests_wait():
    h = harness(budgets=[Budget("model", ceiling=(1, "1 day"))])
    h.push_all(["a", "b"])
    h.close()
    assert [value for value, _ in h.operator.function.asked] in ([], ["a"])
