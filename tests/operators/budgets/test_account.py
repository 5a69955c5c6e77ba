from __future__ import annotations

from bisect import bisect_right
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import Budget, CircuitBreaker
from pillarbox._operators.budgets.account import (
    AHEAD,
    LATE,
    Account,
    AccountPeriod,
    AccountRefusal,
    AccountReport,
    AccountRetry,
    AccountSlots,
)
from pillarbox._operators.budgets.budget import BudgetLimits

DAY = 86_400_000


def account(**options: Any) -> Account:
    return Account(Budget("model", **options).limits, 0.0)


def run(account: Account, until: float, start: float = 0.0, estimate: float = 1, wall: int = 0) -> list[float]:
    times: list[float] = []
    now = start
    while now < until:
        booking = account.book([estimate] * 100, now, wall + int(now * 1000))
        if isinstance(booking, AccountSlots):
            times += booking.times
            now = max(now, booking.times[-1])
        else:
            assert isinstance(booking, AccountRetry)
            assert booking.at > now
            now = booking.at
    return [at for at in times if at < until]


def most(times: list[float], seconds: float) -> int:
    return max(bisect_right(times, at + seconds) - index for index, at in enumerate(times))


@given(
    rate=st.floats(0.5, 300),
    visits=st.lists(
        st.tuples(st.floats(0, 0.1), st.integers(1, 60), st.floats(0, LATE), st.integers(0, 5)), min_size=1, max_size=6
    ),
    seconds=st.floats(0.01, 3),
)
def test_in_any_time_there_are_at_most_so_many_requests(rate, visits, seconds):
    """R32: requests are booked at any times, begin as late as possible, and may return their slots."""
    budget = account(requests=rate)
    begun, now = [], 0.0
    for pause, count, late, unused in visits * 10:
        now += pause
        booking = budget.book([1.0] * count, now, 0)
        if isinstance(booking, AccountSlots):
            assert all(now <= at <= now + AHEAD for at in booking.times)
            used = max(0, len(booking.times) - unused)
            begun += [at + late for at in booking.times[:used]]
            budget.settle(AccountReport(unused=tuple(booking.times[used:])), now)
    begun.sort()
    if begun:
        assert most(begun, seconds) <= rate * (seconds + LATE) + 1 + 1e-6


@pytest.mark.parametrize("rate", [0.5, 3, 1_000, 9_000])
def test_the_whole_rate_is_used(rate):
    times = run(account(requests=rate), until=5.0)
    assert 0.99 * rate * 5 - 1 <= len(times) <= rate * 5 + 1


def test_a_pause_is_not_made_up_for():
    budget = account(requests=100)
    run(budget, until=1.0)
    times = run(budget, start=60.0, until=61.0)
    assert 99 <= len(times) <= 101
    assert most(times, 0.1) <= 11


def test_units_are_reserved_and_settled_and_nobody_begins_in_debt():
    budget = account(units="100 per second", estimate=20)
    (first,) = budget.book([20], 0.0, 0).times  # type: ignore[union-attr]
    assert first == 0.0
    # It cost 320 units: the income of 3.2 seconds.
    budget.settle(AccountReport(300.0), 0.0)
    booking = budget.book([20], 0.5, 0)
    assert isinstance(booking, AccountRetry)
    assert 3.2 - AHEAD <= booking.at <= 3.2
    assert isinstance(budget.book([20], 3.2, 0), AccountSlots)
    # An estimate that was too high is given back.
    budget.settle(AccountReport(-20.0), 3.2)
    assert isinstance(budget.book([20], 3.2, 0), AccountSlots)


def test_the_last_slot_is_given_back_and_no_other():
    budget = account(requests=10)
    times = budget.book([1] * 2, 0.0, 0).times  # type: ignore[union-attr]
    budget.settle(AccountReport(unused=(times[0],)), 0.05)
    assert budget.book([1], 0.15, 0)[0] == pytest.approx([0.2])
    budget.settle(AccountReport(unused=(0.2,)), 0.16)
    assert budget.book([1], 0.16, 0)[0] == pytest.approx([0.2])


@given(costs=st.lists(st.tuples(st.floats(0, 50), st.floats(0, 1)), min_size=1, max_size=60))
def test_a_ceiling_is_never_exceeded_if_estimates_are_upper_bounds(costs):
    """R34: failed requests are charged with their estimates, other requests with their costs."""
    budget = account(ceiling=(200, "1 day"), estimate=50, when_exceeded="fail")
    spent, refused = 0.0, False
    for number, (cost, fails) in enumerate(costs):
        booking = budget.book([50], float(number), 1_000 + number)
        if isinstance(booking, AccountRefusal):
            refused = True
            assert budget.period.spent > 150
            continue
        spent += cost
        budget.settle(AccountReport(0.0 if fails > 0.8 else cost - 50), float(number))
    assert spent <= 200
    assert budget.period.spent >= spent - 1e-6
    assert refused or budget.period.spent <= 200


def test_a_period_begins_with_the_first_request_after_the_one_before():
    budget = account(ceiling=("5 USD", "1 day"), estimate=1)
    assert len(run(budget, until=1.0, wall=5 * DAY)) == 5
    end = budget.book([1], 2.0, 5 * DAY + 2_000)
    assert isinstance(end, AccountRetry)
    assert end.at == pytest.approx(DAY / 1000)
    # After two and a half days without bookings, the period begins now, not at a multiple of a day.
    late = int(7.5 * DAY)
    assert isinstance(budget.book([1], late / 1000, late), AccountSlots)
    assert (budget.period.began, budget.period.spent) == (late, 1)
    # The clock is set back: the period does not begin again.
    budget.book([1], late / 1000, 6 * DAY)
    assert (budget.period.began, budget.period.clock) == (late, late)


def test_a_period_is_not_refunded_for_the_one_before():
    budget = account(ceiling=(5, "1 day"), estimate=1)
    before = budget.book([1] * 5, 0.0, 0)
    assert isinstance(before, AccountSlots)
    now = budget.book([1] * 2, DAY / 1000, DAY)
    assert isinstance(now, AccountSlots)
    budget.settle(AccountReport(-5, period=before.period), DAY / 1000)
    assert budget.period.spent == 2
    budget.settle(AccountReport(-1, period=now.period), DAY / 1000)
    assert budget.period.spent == 1


def test_a_ceiling_is_spent_only_as_far_as_the_file_says():
    budget = Account(Budget("model", ceiling=(100, "1 day")).limits, 0.0, written=True)
    assert isinstance(budget.book([1] * 50, 0.0, 1), AccountRetry)
    allowance = budget.next_allowance(1)
    assert allowance == 2  # two requests, more than a hundredth
    budget.allowance = allowance
    assert len(budget.book([1] * 50, 0.0, 1).times) == 2  # type: ignore[union-attr]
    budget.allowance = 100
    assert budget.next_allowance(1) is None


@pytest.mark.parametrize(
    ("account", "other", "merged"),
    [
        (AccountPeriod(DAY, 5, DAY), AccountPeriod(DAY, 7, DAY + 5), AccountPeriod(DAY, 7, DAY + 5)),
        (AccountPeriod(DAY, 50, DAY), AccountPeriod(3 * DAY, 7, 3 * DAY), AccountPeriod(3 * DAY, 7, 3 * DAY)),
        (AccountPeriod(DAY, 50, DAY), AccountPeriod(DAY + 5, 7, 0), AccountPeriod(DAY + 5, 50, DAY)),
        (AccountPeriod(), AccountPeriod(DAY, 7, DAY), AccountPeriod(DAY, 7, DAY)),
    ],
)
def test_the_highest_charge_of_several_checkpoints_counts(account, other, merged):
    account.merge(other, DAY)
    assert account == merged


def test_an_answer_with_retry_after_stops_all_and_begins_at_half_the_rate():
    budget = account(requests=100)
    run(budget, until=1.0)
    assert budget.settle(AccountReport(stop=2.0), 1.0)
    assert run(budget, start=1.0, until=3.0) == []
    after = run(budget, start=3.0, until=6.0)
    assert [bisect_right(after, second) - bisect_right(after, second - 1) for second in (4, 5, 6)] == [
        pytest.approx(50, abs=10),
        pytest.approx(100, abs=10),
        pytest.approx(100, abs=2),
    ]
    assert after[0] >= 3.0


@pytest.mark.parametrize("when", ["hold", "fail"])
def test_a_breaker_opens_lets_one_through_and_closes(when):
    breaker = CircuitBreaker(failures=3, of=5, pause="10 seconds")
    budget = account(breaker=breaker, when_exceeded=when)
    assert not budget.settle(AccountReport(outcomes=(False, True, False, True, True)), 0.0)
    assert not budget.settle(AccountReport(outcomes=(True, False)), 0.0)  # two of the last five
    assert budget.settle(AccountReport(outcomes=(False, False, False)), 1.0)
    assert budget.is_open
    closed = budget.book([1], 2.0, 0)
    assert closed[:1] == (11.0,) if when == "hold" else isinstance(closed, AccountRefusal) and closed.is_open
    probe = budget.book([1] * 10, 11.0, 0)
    assert probe == AccountSlots([11.0], probes=True)
    # Others wait for its outcome; requests in flight have no outcome.
    budget.settle(AccountReport(outcomes=(True, True, True)), 11.5)
    assert not isinstance(budget.book([1], 12.0, 0), AccountSlots)
    budget.settle(AccountReport(probe=False), 12.0)
    assert not isinstance(budget.book([1], 21.0, 0), AccountSlots)
    assert isinstance(budget.book([1], 22.0, 0), AccountSlots)
    budget.settle(AccountReport(probe=True), 23.0)
    assert not budget.is_open
    assert budget.book([1] * 3, 23.0, 0) == AccountSlots([23.0] * 3)


def test_a_probe_whose_process_died_is_followed_by_another():
    budget = account(breaker=CircuitBreaker(1, 1, "1 second"))
    budget.settle(AccountReport(outcomes=(False,)), 0.0)
    assert isinstance(budget.book([1], 1.0, 0), AccountSlots)
    assert isinstance(budget.book([1], 1.5, 0), AccountRetry)
    assert budget.book([1], 2.0, 0) == AccountSlots([2.0], probes=True)


def test_shares_are_equal_parts_of_the_rates():
    assert BudgetLimits("model", 100.0, 50.0).shared_by(4) == BudgetLimits("model", 25.0, 12.5)
