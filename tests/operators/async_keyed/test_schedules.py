"""Async keyed functions give the same results as a sequential model. The comparison finds planted bugs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from pillarbox._operators.async_keyed.element import AsyncElement, DueTimersElement
from pillarbox._operators.async_keyed.runner import ElementRunner
from pillarbox._operators.calls.caller import Caller
from pillarbox._operators.calls.records import ElementCallRecords
from pillarbox._state.heap import undo
from pillarbox._state.heap.backend import OneThread
from tests.operators.async_keyed.schedules import differences

SCHEDULES = 2_000 if "PILLARBOX_LONG" in os.environ else 50


@pytest.mark.timeout(3600)
@pytest.mark.slow("fifty schedules")
def test_random_schedules_equal_the_sequential_model() -> None:
    for seed in range(SCHEDULES):
        kind = {2: "two inputs", 5: "two inputs", 7: "broadcast"}.get(seed % 8, "one input")
        unequal = differences(seed, carry=seed % 5 > 0, kind=kind)
        assert not unequal, f"schedule {seed}, {kind}: {unequal}"


@pytest.mark.slow("schedules with files")
def test_schedules_with_a_journal_repeat_no_call_whose_answer_was_used(tmp_path: Path) -> None:
    for seed in range(SCHEDULES // 15):
        unequal = differences(seed, carry=seed % 2 > 0, records=40, crashes=0.3, journal=str(tmp_path / str(seed)))
        assert not unequal, f"schedule {seed}: {unequal}"


@pytest.mark.timeout(7200)
@pytest.mark.long("it takes minutes")
def test_a_million_records_of_many_keys_equal_the_sequential_model() -> None:
    """Elements are carried over barriers, and the task crashes about twenty times."""
    unequal = differences(7, carry=True, records=1_000_000, keys=100_000, crashes=0.0003)
    assert not unequal


def a_failed_timer_is_put_back() -> Any:
    write_letter = ElementRunner._write_letter

    def mutant(self: ElementRunner, element: AsyncElement, error: BaseException) -> None:
        write_letter(self, element, error)
        if isinstance(element, DueTimersElement) and element.fired is not None and element.fired[2] != mutant_last[0]:
            mutant_last[0] = element.fired[2]
            undo.put_back_timer(*element.fired)

    mutant_last = [0]
    return patch.object(ElementRunner, "_write_letter", mutant)


def timers_of_a_key_share_notes() -> Any:
    def mutant(self: ElementRunner, element: AsyncElement) -> None:
        element.keep_results()

    return patch.object(ElementRunner, "_keep", mutant)


def a_maps_order_is_forgotten_at_the_barrier() -> Any:
    return patch.object(undo.Undo, "forget_maps", lambda self: self._orders.clear())


def a_key_that_was_added_again_keeps_its_place() -> Any:
    def mutant(again: list[Any]) -> list[Any]:
        with_marks = marked(again)
        for number, (step, arguments) in enumerate(with_marks):
            if step is undo._put_back_live:
                with_marks[number] = step, (*arguments[:4], arguments[2] is undo._MISSING)
        return with_marks

    marked = undo._with_marks
    return patch.object(undo, "_with_marks", mutant)


def a_thread_may_change_state() -> Any:
    return patch.object(OneThread, "row", property(lambda self: self._table.row))


def snapshots_lack_records() -> Any:
    return patch.object(ElementCallRecords, "snapshot", lambda self: (self.identity, []))


def snapshots_lack_the_numbers_of_equal_elements() -> Any:
    def mutant(self: Caller, busy_keys: Any, first_arrival: Any) -> None:
        self.numbers = {}

    return patch.object(Caller, "snapshot", mutant)


def a_carried_element_forgets_its_epoch() -> Any:
    return patch.object(AsyncElement, "arrival", property(lambda self: None, lambda self, epoch: None))


def timers_of_a_visit_share_their_records() -> Any:
    calls = "_calls_of_visit"
    return patch.object(
        DueTimersElement,
        "calls",
        property(lambda self: vars(self).get(calls), lambda self, value: value and vars(self).update({calls: value})),
        create=True,
    )


def begun_calls_are_not_recorded() -> Any:
    write = Caller._write

    async def mutant(self: Caller, calls: Any, name: Any, record: Any) -> None:
        if record.is_answered:
            await write(self, calls, name, record)

    return patch.object(Caller, "_write", mutant)


@pytest.mark.slow("up to 200 schedules for each bug")
@pytest.mark.parametrize(
    "bug",
    [
        a_failed_timer_is_put_back,
        timers_of_a_key_share_notes,
        pytest.param(
            a_maps_order_is_forgotten_at_the_barrier,
            marks=pytest.mark.long("it takes some 170 schedules"),
        ),
        a_key_that_was_added_again_keeps_its_place,
        a_thread_may_change_state,
        snapshots_lack_records,
        snapshots_lack_the_numbers_of_equal_elements,
        a_carried_element_forgets_its_epoch,
        timers_of_a_visit_share_their_records,
        begun_calls_are_not_recorded,
    ],
)
def test_schedules_find_known_bugs(bug: Callable[[], Any]) -> None:
    with bug():
        for seed in range(200):
            try:
                if differences(seed, carry=True):
                    return
            except Exception:
                return
    pytest.fail("no schedule finds it")
