from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from pillarbox import Budget, ProgramError
from pillarbox._errors import OperatorError
from pillarbox._operators.budgets import driver_ledger
from pillarbox._operators.budgets.account import LATE, AccountPeriod, AccountRefusal, AccountReport
from pillarbox._operators.budgets.budget import BudgetLimits
from pillarbox._operators.budgets.driver_ledger import DriverLedger, _Offset
from pillarbox._operators.budgets.gate import BudgetGate
from pillarbox._operators.budgets.ledger import LedgerConnection, LedgerSlot
from pillarbox._operators.budgets.wire import BudgetConnection
from pillarbox._runtime.spark.budgets.server import BudgetServer

FAST = Budget("fast", requests=1_000)


@pytest.fixture(scope="module")
def server() -> BudgetServer:
    return BudgetServer("127.0.0.1", "127.0.0.1")


def test_all_ends_together_book_at_most_the_rate(server):
    first, second = server.register("one", [FAST.limits]), server.register("other", [FAST.limits])

    async def book(ledger: DriverLedger, count: int) -> list[float]:
        end = ledger.open()
        times: list[float] = []
        while len(times) < count:
            slots = await end.book(FAST.limits, [1.0] * 30)
            assert not isinstance(slots, AccountRefusal)
            assert all(slot.end - slot.begin <= LATE for slot in slots)
            times += [slot.at for slot in slots]
        end.close()
        return times

    async def run() -> list[float]:
        booked = await asyncio.gather(book(first, 100), book(first, 100), book(second, 100))
        return sorted(at for times in booked for at in times)

    times = asyncio.run(run())
    assert len(times) >= 300
    assert all(after - before >= 0.001 - 1e-9 for before, after in pairwise(times))


def test_requests_waiting_for_a_budget_are_told_of_its_end(server):
    budget = Budget("held", ceiling=(3, "1 day"), when_exceeded="fail")
    ledger = server.register("held", [budget.limits])

    async def run() -> Any:
        end = ledger.open()
        slots = await end.book(budget.limits, [1.0] * 5)
        refused = await end.book(budget.limits, [1.0])
        end.report(budget.limits, AccountReport(-1.0))
        again = await end.book(budget.limits, [1.0])
        end.close()
        return slots, refused, again

    slots, refused, again = asyncio.run(run())
    assert len(slots) == 3
    assert isinstance(refused, AccountRefusal) and "the ceiling of 3 units is reached" in refused.why
    assert len(again) == 1


def test_a_stop_reaches_the_slots_of_all_processes(server):
    budget = Budget("stopped", requests=1_000)
    ledger = server.register("stopped", [budget.limits])

    async def run() -> bool:
        ends = [ledger.open(), ledger.open()]
        void = asyncio.Event()
        ends[1].on_void(budget.limits, void.set)
        for end in ends:
            await end.book(budget.limits, [1.0])
        ends[0].report(budget.limits, AccountReport(stop=30.0))
        await void.wait()
        for end in ends:
            end.close()
        return void.is_set()

    assert asyncio.run(run())


def test_nobody_without_the_token_books(server, monkeypatch):
    monkeypatch.setattr(driver_ledger, "_UNREACHABLE", 0.0)
    ledger = server.register("secret", [FAST.limits])
    assert ledger.token.hex() not in repr(ledger) and str(ledger.token) not in repr(ledger)

    async def book(forged: DriverLedger) -> None:
        await forged.open().book(FAST.limits, [1.0])

    with pytest.raises(OperatorError, match=r"cannot connect to the driver's budget server at 127.0.0.1:"):
        asyncio.run(book(replace(ledger, token=b"x" * 32)))

    async def forge() -> bytes:
        connection = await BudgetConnection.to_driver("127.0.0.1", ledger.port, ledger.token)
        connection._keys.reverse()
        connection.send("book", 1, "fast", [1.0])
        return await connection._reader.read()

    assert asyncio.run(forge()) == b""  # it is cut off without an answer


def test_one_name_has_one_budget_in_a_driver(server):
    five, six = BudgetLimits("model", 5.0), BudgetLimits("model", 6.0)
    first = server.register("first", [five])
    server.register("first once more", [six])  # unused after a change in a notebook cell

    async def use() -> None:
        end = first.open()
        await end.book(five, [1.0])
        with pytest.raises(ProgramError, match=r"two budgets have the name 'model', one with requests 6.0, one with"):
            server.register("second", [five])
        server.register("same", [six])
        end.close()

    asyncio.run(use())


def test_own_limits_of_operators_are_apart(server):
    ledgers = [server.register(f"own {number}", [BudgetLimits("", 0.001).of_operator("ask")]) for number in range(2)]

    async def run() -> list[Any]:
        limits = BudgetLimits("", 0.001).of_operator("ask")
        ends = [ledger.open() for ledger in ledgers]
        slots = await asyncio.gather(*(end.book(limits, [1.0]) for end in ends))
        for end in ends:
            end.close()
        return slots

    assert [len(slots) for slots in asyncio.run(run())] == [1, 1]


def test_a_ceiling_is_written_before_it_is_spent(server):
    budget = Budget("written", ceiling=(100, "1 day"))
    ledger = server.register("written", [budget.limits])
    now = int(time.time() * 1000)
    written: list[AccountPeriod] = []
    assert server.ceilings("written") == ["written"]

    def write(name: str, period: AccountPeriod) -> bool:
        written.append(period)
        return True

    server.resume("written", [AccountPeriod(now - 5, 40.0, now)], write)

    async def run() -> None:
        end = ledger.open()
        spent = 40
        while spent < 100:
            slots = await end.book(budget.limits, [1.0] * 7)
            assert not isinstance(slots, AccountRefusal)
            spent += len(slots)
            assert written[-1].spent >= spent
        end.close()

    asyncio.run(run())
    assert {period.began for period in written} == {now - 5}
    assert written[-1].spent == 100


def test_a_query_that_has_ended_is_written_no_more_and_holds_nobody_up(server):
    budget = Budget("shared", ceiling=(100, "1 day"))
    ledger = server.register("shared", [budget.limits])
    written: list[str] = []

    def write_into(name: str, runs: bool) -> Any:
        def write(budget: str, period: AccountPeriod) -> bool:
            written.append(name)
            return runs

        return write

    async def book(count: int) -> None:
        end = ledger.open()
        while count > 0:
            count -= len(await end.book(budget.limits, [1.0] * count))
        end.close()

    server.resume("shared", [], write_into("ended", False))
    server.resume("shared", [], write_into("runs", True))
    asyncio.run(book(20))
    assert written.count("ended") == 1
    assert written.count("runs") > 1
    server._shared["shared"].writes = []
    server.resume("shared", [], write_into("ended", False))
    asyncio.run(book(20))  # no process has a file any more
    assert written.count("ended") == 2


def test_a_charge_that_cannot_be_written_lets_nobody_begin(server, caplog):
    budget = Budget("unwritten", ceiling=(100, "1 day"))
    ledger = server.register("unwritten", [budget.limits])
    failed = threading.Event()

    def write(name: str, period: AccountPeriod) -> bool:
        if not failed.is_set():
            failed.set()
            raise OSError("the disk is full")
        return True

    server.resume("unwritten", [], write)

    async def run() -> int:
        end = ledger.open()
        slots = await end.book(budget.limits, [1.0])
        end.close()
        return len(slots)

    assert asyncio.run(run()) == 1
    assert failed.is_set()
    assert "budget 'unwritten': its spent units cannot be written to the checkpoint" in caplog.text


def test_the_clocks_of_two_machines_are_compared_by_messages():
    offset = _Offset()
    offset.update(10.0, 110.2, 110.2, 10.4)
    assert [offset.low, offset.high] == pytest.approx([99.8, 100.2])
    offset.update(11.0, 111.01, 111.01, 11.02)
    assert [offset.low, offset.high] == pytest.approx([99.99, 100.01])
    offset.update(20.0, 125.0, 125.0, 30.0)  # a delayed answer is less accurate; the clocks drift a little
    assert offset.low <= 99.99 and offset.high >= 100.01
    assert offset.high - offset.low < 0.05
    offset.update(40.0, 170.0, 170.0, 40.5)  # one of the machines was suspended
    assert (offset.low, offset.high) == (129.5, 130.0)


def test_a_driver_with_a_backlog_leaves_the_clocks_compared():
    offset = _Offset()
    for second in range(600):
        # Each booking waits ten seconds for its slots.
        offset.update(second, second + 100.001, second + 110.001, second + 10.002)
    assert offset.high - offset.low < LATE / 4


class LateDriver(LedgerConnection):
    """A driver whose first answer arrives after the slots in it have passed."""

    def __init__(self) -> None:
        self.time = 100.0
        self.answers = 0
        self.reports: list[AccountReport] = []
        self.now = lambda: self.time

    async def book(self, limits: BudgetLimits, estimates: Any) -> Any:
        self.answers += 1
        begin = self.time
        if self.answers == 1:
            self.time += 30.0
        return [LedgerSlot(begin, begin + LATE, estimate, False, begin) for estimate in estimates]

    def on_void(self, limits: BudgetLimits, callback: Any) -> None:
        self.void = callback

    def report(self, limits: BudgetLimits, report: AccountReport) -> None:
        self.reports.append(report)

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


def test_slots_that_have_passed_let_nobody_begin():
    driver = LateDriver()
    budget = Budget("model", requests=10, units=10, estimate=2)

    async def run() -> LedgerSlot:
        gate = BudgetGate(budget, budget.limits, driver)
        await gate.wait(lambda: [2, 2, 2])
        slot = gate.take()
        gate.close()
        return slot

    slot = asyncio.run(run())
    assert slot.begin == 130.0
    assert driver.answers == 2
    # The first answer's three were returned with their units, and so were the last two.
    assert sum(report.units for report in driver.reports) == -10
    assert [at for report in driver.reports for at in report.unused] == [100.0] * 3 + [130.0] * 2


def test_void_slots_return_their_units():
    driver = LateDriver()
    driver.answers = 1
    budget = Budget("model", requests=10, ceiling=(100, "1 day"), estimate=2)

    async def run() -> None:
        gate = BudgetGate(budget, budget.limits, driver)
        await gate.wait(lambda: [2, 2, 2])
        driver.void()
        gate.close()

    asyncio.run(run())
    assert sum(report.units for report in driver.reports) == -6


class RefusingDriver(LateDriver):
    refuses = True

    async def book(self, limits: BudgetLimits, estimates: Any) -> Any:
        if self.refuses:
            return AccountRefusal("the ceiling is reached", is_open=False)
        return [LedgerSlot(self.time, self.time + LATE, estimate, False, self.time) for estimate in estimates]


def test_a_refusal_concerns_the_requests_that_waited_for_it():
    driver = RefusingDriver()
    budget = Budget("model", requests=10, ceiling=(100, "1 day"), estimate=2, when_exceeded="fail")

    async def run() -> LedgerSlot:
        gate = BudgetGate(budget, budget.limits, driver)
        waiting = [2.0]
        gate.book(lambda: waiting)
        for _ in range(3):  # the request is cancelled, and its booking refused
            await asyncio.sleep(0)
        driver.refuses = False
        await gate.wait(lambda: waiting)
        slot = gate.take()
        gate.close()
        return slot

    assert asyncio.run(run()).estimate == 2


def test_a_request_above_the_ceiling_is_refused():
    budget = Budget("model", ceiling=(100, "1 day"), estimate=len)
    gate = BudgetGate(budget, budget.limits, LateDriver())
    assert gate.estimate_of("x" * 100) == 100
    with pytest.raises(ProgramError, match=r"returned 101 units .* above the ceiling of 100"):
        gate.estimate_of("x" * 101)
