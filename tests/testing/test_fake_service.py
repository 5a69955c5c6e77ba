"""The scripted service for tests, and its faults, in keyed functions, in ``map_async``, and in a whole program."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from pillarbox import Budget, KeyedProcessFunction, OperatorError, OutputTag, ProgramError
from pillarbox.testing import FakeService, ProgramTestHarness, TooManyRequestsError, harness_for, row

BAD = OutputTag("bad")


class Charge(KeyedProcessFunction[Any, Any]):
    """Charges each payment, with at most three further attempts."""

    def __init__(self, bank: FakeService, **options: Any) -> None:
        self.bank = bank
        self.options = {"retry": 3, **options}

    async def process_element(self, payment: Any, ctx: Any) -> Any:
        yield await ctx.call(self.bank, *payment, **self.options)


def receipt(card: str, amount: int) -> str:
    return f"{card} paid {amount}"


def opened(bank: FakeService, **options: Any) -> Any:
    return harness_for(Charge(bank), key_by=lambda payment: payment[0], **options)


def outcomes(bank: FakeService) -> list[str]:
    return [request.outcome for request in bank.requests]


def test_latency_passes_by_the_harness_s_clock() -> None:
    bank = FakeService(receipt, latency="1 minute")
    with opened(bank) as harness:
        harness.push(("ann", 5))
        harness.advance_processing_time(59_999)
        assert (harness.get_output(), outcomes(bank)) == ([], ["in flight"])
        harness.advance_processing_time(1)
        assert (harness.get_output(), outcomes(bank)) == (["ann paid 5"], ["answered"])


def test_after_three_calls_it_refuses_and_stops_the_budget() -> None:
    bank = FakeService(receipt)
    bank.refuse(after=3, retry_after=2)
    budget = Budget("bank", requests="1000 per second")
    with harness_for(Charge(bank, budget=budget), key_by=lambda payment: payment[0], budgets=[budget]) as harness:
        for number in range(4):
            harness.push(("ann", number))
        harness.advance_processing_time(1_900)
        assert outcomes(bank) == ["answered"] * 3 + ["refused"]
        harness.push(("bob", 9))  # waits for the budget, though its own request was not refused
        assert len(bank.requests) == 4
        harness.advance_processing_time(2_000)
        assert sorted(outcomes(bank)) == ["answered"] * 5 + ["refused"]
        assert all(request.time >= 2 for request in bank.requests[4:])


@pytest.mark.parametrize(("keeps_keys", "charges"), [(True, 1), (False, 2)])
def test_a_lost_answer_is_asked_for_again(keeps_keys: bool, charges: int) -> None:
    bank = FakeService(receipt, keeps_keys=keeps_keys)
    bank.lose_answers()
    with opened(bank) as harness:
        harness.push(("ann", 5))
        harness.advance_processing_time(1_000)
        assert harness.get_output() == ["ann paid 5"]
    assert bank.acted == [("ann", 5)] * charges
    assert outcomes(bank) == ["lost", "repeated" if keeps_keys else "answered"]


@pytest.mark.parametrize(("keeps_keys", "charges"), [(True, 1), (False, 2)])
def test_a_request_that_arrives_twice(keeps_keys: bool, charges: int) -> None:
    bank = FakeService(receipt, keeps_keys=keeps_keys)
    bank.receive_twice()
    with opened(bank) as harness:
        harness.push(("ann", 5))
        assert harness.get_output() == ["ann paid 5"]
    assert bank.acted == [("ann", 5)] * charges


def test_a_crash_ends_the_requests_in_flight_and_refuses_others_until_the_outage_is_over() -> None:
    bank = FakeService(receipt, latency="100 ms")
    bank.crash("250 ms", after=1)
    with opened(bank) as harness:
        harness.push(("ann", 5))
        harness.push(("bob", 6))
        harness.advance_processing_time(5_000)
        assert sorted(harness.get_output()) == ["ann paid 5", "bob paid 6"]
    assert sorted(bank.acted) == [("ann", 5), ("bob", 6)]
    assert outcomes(bank)[:2] == ["crashed", "crashed"]
    assert sum(outcome == "crashed" for outcome in outcomes(bank)) > 2  # retries during the outage


def test_a_record_that_times_out_cancels_its_request() -> None:
    bank = FakeService(receipt, latency="1 minute")
    with opened(bank, timeout="1 second") as harness:
        harness.push(("ann", 5))
        with pytest.raises(OperatorError, match="not finished within 1 s"):
            harness.advance_processing_time(1_000)
    assert (outcomes(bank), bank.acted) == (["cancelled"], [])


def test_a_timeout_names_the_budget_that_its_call_waited_for() -> None:
    slow = Budget("bank", requests="1 per minute")
    bank = FakeService(receipt)

    class Pays(KeyedProcessFunction[Any, Any]):
        async def process_element(self, payment: Any, ctx: Any) -> Any:
            yield await ctx.call(bank, *payment, budget=slow)

    options: dict[str, Any] = {"timeout": "5 seconds", "on_error": BAD, "budgets": [slow]}
    with harness_for(Pays(), key_by=lambda payment: payment[0], **options) as harness:
        harness.push(("ann", 5))
        harness.push(("bob", 6))
        harness.advance_processing_time(5_000)
        (letter,) = harness.get_side_output(BAD)
        error = "TimeoutError: not finished within 5 s, because a call was waiting for the budget 'bank'"
        assert (letter.key, letter.error) == ("bob", error)
        assert bank.acted == [("ann", 5)]


def test_a_recorded_answer_outlives_a_failure() -> None:
    bank = FakeService(receipt, latency="1 second")

    class Twice(KeyedProcessFunction[Any, Any]):
        async def process_element(self, card: Any, ctx: Any) -> Any:
            first = await ctx.call(bank, card, 1)
            yield first, await ctx.call(bank, card, 2)

    def started(**options: Any) -> Any:
        return harness_for(Twice(), key_by=lambda card: card, on_barrier="carry", **options)

    with started() as harness:
        harness.push("ann")
        harness.advance_processing_time(1_500)
        snapshot = harness.snapshot()
    with started(snapshot=snapshot) as harness:
        harness.advance_processing_time(1_000)
        assert harness.get_output() == [("ann paid 1", "ann paid 2")]
    assert bank.acted == [("ann", 1), ("ann", 2)]


def test_map_async_in_a_program() -> None:
    bank = FakeService(receipt)
    bank.lose_answers(after=1)

    async def charge(payment: Any) -> Any:
        return await bank(payment.card, payment.amount, idempotency_key=payment.card)

    def build(env: Any, payments: Any) -> Any:
        return payments.map_async(charge, retry=1).uid("charges")

    with ProgramTestHarness(build) as harness:
        harness.push("payments", row(card="ann", amount=5), row(card="bob", amount=6))
        assert harness.end_input()["output"] == ["ann paid 5", "bob paid 6"]
    assert bank.acted == [("ann", 5), ("bob", 6)]
    assert sorted(outcomes(bank)) == ["answered", "lost", "repeated"]


def test_an_idempotency_key_belongs_to_one_request() -> None:
    bank = FakeService(receipt)
    with harness_for(Charge(bank, key="same", retry=0), key_by=lambda payment: payment[0]) as harness:
        harness.push(("ann", 5))
        with pytest.raises(OperatorError, match="'same' belongs to a request with the arguments"):
            harness.push(("ann", 6))


def test_copies_of_a_function_share_its_service() -> None:
    bank = FakeService(receipt)
    assert pickle.loads(pickle.dumps(bank)) is bank
    error = pickle.loads(pickle.dumps(TooManyRequestsError(2)))
    assert (error.status, error.retry_after) == (429, 2)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (lambda bank: (bank.refuse(2), bank.crash(after=1)), "request 2 will already be 'refused'"),
        (lambda bank: bank.refuse(0), "times= must be a positive integer, not 0"),
        (lambda bank: bank.refuse(after=-1), "after= must be a whole number of at least 0, not -1"),
        (lambda bank: bank.crash("soon"), "FakeService.crash.*outage"),
        (lambda bank: FakeService(5), "answer= must be a function, not 5"),  # type: ignore[arg-type]
    ],
)
def test_wrong_scripts(script: Any, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        script(FakeService(receipt))


def test_a_request_that_hangs_ends_by_the_timeout_of_its_record() -> None:
    bank = FakeService(receipt)
    bank.hang(after=1)
    with opened(bank, timeout="1 minute", on_error=BAD) as harness:
        harness.push(("ann", 5))
        harness.push(("ann", 6))
        harness.advance_processing_time(59_999)
        assert (harness.get_output(), outcomes(bank)) == (["ann paid 5"], ["answered", "in flight"])
        harness.advance_processing_time(1)
        assert [letter.value for letter in harness.get_side_output(BAD)] == [("ann", 6)]
    assert outcomes(bank) == ["answered", "cancelled"]


@pytest.mark.parametrize("by_epoch", [True, False])
def test_a_program_whose_clock_advances_by_a_minute_lets_an_answer_precede_a_later_timeout(by_epoch: bool) -> None:
    bank = FakeService(receipt, latency="50 ms")

    def build(env: Any, payments: Any) -> Any:
        keyed = payments.key_by(lambda payment: payment[0])
        return keyed.process(Charge(bank), timeout="10 seconds", on_barrier="carry").uid("charges")

    with ProgramTestHarness(build) as harness:
        harness.push("payments", ("ann", 5))
        if by_epoch:
            harness.run_epoch(time_passes="1 minute")
        else:
            harness.run_epoch()
            harness.advance_processing_time(60_000)
        harness.run_epoch()
        assert harness.get_output() == ["ann paid 5"]
    assert outcomes(bank) == ["answered"]


def test_a_harness_waits_for_the_journal(tmp_path: Any) -> None:
    bank = FakeService(receipt, latency="50 ms")
    with opened(bank, on_barrier="carry", journal=tmp_path.as_uri()) as harness:
        for number in range(20):
            harness.push((f"c{number}", 5))
        harness.advance_processing_time(1_000)
        assert len(harness.get_output()) == 20


def test_a_refused_request_costs_nothing() -> None:
    bank = FakeService(receipt)
    bank.refuse()
    budget = Budget("bank", requests="1000 per second", estimate=500, ceiling=(1_000, "1 day"), when_exceeded="fail")
    with harness_for(Charge(bank, budget=budget), key_by=lambda payment: payment[0], budgets=[budget]) as harness:
        harness.push(("ann", 5))
        harness.advance_processing_time(5_000)
        harness.push(("ann", 6))
        harness.advance_processing_time(5_000)
        assert harness.get_output() == ["ann paid 5", "ann paid 6"]
