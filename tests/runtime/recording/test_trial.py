"""Two programs on one recording: whether they do the same, and if not, the first record that shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pillarbox import ConfigurationError, KeyedProcessFunction, ListStateDescriptor, ValueStateDescriptor
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox.testing import ProgramTestHarness
from pillarbox_tools.recording.recording import read_recording
from pillarbox_tools.replay.trial import Trial, compare_programs
from tests.support.recorded import recorded


class Adds(KeyedProcessFunction):
    """Adds up amounts; sends each total, but for those that are to be left out."""

    def __init__(self, *, leave_out: int = -1, fails_at: int = -1, at_timer: str = "") -> None:
        self.leave_out = leave_out
        self.fails_at = fails_at
        self.at_timer = at_timer

    def open(self, ctx: Any) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total"))

    def process_element(self, payment: Any, ctx: Any) -> Any:
        key, amount = payment
        if amount == self.fails_at:
            raise ValueError(amount)
        total = (self.total.value() or 0) + (0 if amount == self.leave_out else amount)
        self.total.update(total)
        ctx.timer_service().register_processing_time_timer(5_000)
        yield key, total

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        if self.at_timer:
            yield self.at_timer


class AddsWithList(Adds):
    """The next version: it keeps the amounts as well."""

    def open(self, ctx: Any) -> None:
        super().open(ctx)
        self.amounts = ctx.get_list_state(ListStateDescriptor("amounts"))

    def process_element(self, payment: Any, ctx: Any) -> Any:
        if payment[0] == "b":
            self.amounts.add(payment[1])
        yield from super().process_element(payment, ctx)


def program(function: Any) -> Any:
    def build(env: Any, payments: Any) -> Any:
        return payments.key_by(lambda each: each[0]).process(function, processing_time=True).uid("adds")

    return build


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """The second epoch: it begins with a total of 10 of each key, and its clock passes an earlier timer."""
    with recorded(tmp_path) as found, ProgramTestHarness(program(Adds())) as harness:
        harness.push("payments", *((key, 10) for key in "abc"))
        harness.run_epoch()
        harness.push("payments", *((key, amount) for amount in (1, 2, 3) for key in "abc"))
        harness.set_processing_time(10_000)
        harness.run_epoch()
    return [each for each in found if read_recording(each).facts.level][-1]


def vertex(function: Any, build: Any = None) -> ShippedVertex:
    """The vertex of another program."""
    with ProgramTestHarness(build or program(function)) as harness:
        return next(each for each in harness._job._shipped if each.load().uid == "adds")


def compare(task: Path, function: Any) -> Trial:
    return compare_programs(read_recording(task), vertex(function))


def test_the_same_program_does_the_same(task):
    found = compare(task, Adds())
    assert (found.is_same, found.records, found.sent, found.keys) == (True, 9, (9, 9), 0)


def test_the_first_record_that_shows_another_output(task):
    found = compare(task, Adds(leave_out=2))
    assert not found.is_same
    first = found.first
    assert first is not None
    assert (first.number, first.key, first.record) == (4, "'a'", "('a', 2)")
    assert first.before["total"] == "11"
    assert (first.then.state["total"], first.now.state["total"]) == ("13", "11")
    assert (first.then.output, first.now.output) == (["('a', 13)"], ["('a', 11)"])
    assert found.keys == 3


def test_a_state_that_only_one_of_them_has(task):
    found = compare(task, AddsWithList())
    first = found.first
    assert first is not None
    assert (first.number, first.key) == (2, "'b'")
    assert first.then.output == first.now.output == ["('b', 11)"]
    assert "amounts" not in first.then.state
    assert first.now.state["amounts"] == "[1]"
    assert (found.keys, found.sent) == (1, (9, 9))


def test_one_of_them_fails(task):
    first = compare(task, Adds(fails_at=3)).first
    assert first is not None
    assert (first.number, first.record, first.then.error) == (7, "('a', 3)", None)
    assert "ValueError: 3" in str(first.now.error)


def test_what_a_timer_does(task):
    found = compare(task, Adds(at_timer="silent"))
    first = found.first
    assert first is not None
    # The timers fire after the last record.
    assert (first.number, first.record, first.then.output) == (10, None, [])
    assert first.now.output == ["'silent'"] * 3


def test_another_shape_is_refused(task):
    def build(env: Any, payments: Any, others: Any) -> Any:
        keyed = payments.union(others).key_by(lambda each: each[0])
        return keyed.process(Adds(), processing_time=True).uid("adds")

    with ProgramTestHarness(build) as harness:
        other = next(each for each in harness._job._shipped if each.load().uid == "adds")
    with pytest.raises(ConfigurationError, match="operator 'adds' has 2 inputs in the other program, and 1 in the"):
        compare_programs(read_recording(task), other)
