"""A replayed task has the same results and clock readings. Differences are printed with possible causes."""

from __future__ import annotations

import datetime as dt
import functools
import gc
import io
import random
import re
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pillarbox import KeyedProcessFunction, OperatorError, ValueStateDescriptor
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox.testing import ProgramTestHarness
from pillarbox_tools.cli.all_commands import commands
from pillarbox_tools.recording.recording import read_recording
from pillarbox_tools.replay.comparison import compare_programs
from pillarbox_tools.replay.replay import Replay, replay
from tests.support.recorded import recorded

NOW = 1_700_000_000_000
SECOND = 1000


class JobClock:
    """The clock of the recorded job. A replay cannot read it."""

    clock: ManualProcessingTimeService


class Silent(KeyedProcessFunction):
    """Emits a key three seconds after the key's last record. Each record advances the clock by a second."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen"))
        self.told = ctx.get_state(ValueStateDescriptor("told"))

    def process_element(self, key: Any, ctx: Any) -> Any:
        JobClock.clock.advance(SECOND)
        now = ctx.timer_service().current_processing_time()
        self.seen.update([*(self.seen.value() or []), now])
        ctx.timer_service().register_processing_time_timer(now + 3 * SECOND)
        yield key, now

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        # Including the records that arrived before the timer fired.
        self.told.update([*(self.told.value() or []), timestamp, len(self.seen.value())])
        yield ctx.get_current_key(), timestamp, ctx.timer_service().current_processing_time()


class Fails(Silent):
    def process_element(self, key: Any, ctx: Any) -> Any:
        yield from super().process_element(key, ctx)
        if self.seen.value()[-1] == NOW + 17 * SECOND:
            raise ValueError(f"{self.seen.value()}")


class Draws(KeyedProcessFunction):
    def open(self, ctx: Any) -> None:
        self.drawn = ctx.get_state(ValueStateDescriptor("drawn"))

    def process_element(self, key: Any, ctx: Any) -> Any:
        self.drawn.update((random.random(), str(uuid.uuid4()), time.time(), dt.datetime.now()))
        yield key


class Adds(KeyedProcessFunction):
    def open(self, ctx: Any) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total"))

    def process_element(self, key: Any, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0) + 1)
        yield key, self.total.value()


def tasks_of(folder: Path, function: Any, *epochs: list[list[Any]]) -> list[Path]:
    def build(env: Any, records: Any) -> Any:
        return records.key_by(lambda key: key).process(function, processing_time=True).uid("function")

    with recorded(folder) as result, ProgramTestHarness(build, processing_time=NOW) as harness:
        JobClock.clock = harness.processing_time_service
        for partitions in epochs:
            for number, records in enumerate(partitions):
                harness.push("records", *records, partition=number)
            try:
                harness.run_epoch()
            except OperatorError:
                break
    return [path for path in result if read_recording(path).facts.level]


def replayed(folder: Path, **options: Any) -> Replay:
    JobClock.clock = ManualProcessingTimeService()  # no longer read
    gc.disable()  # hypothesis has the collector call it, and looks at a clock then: a call that a replay would name
    try:
        return replay(read_recording(folder), diff=True, **options)
    finally:
        gc.enable()


KEYS = [["a", "b", "c"], ["a"], ["b", "c", "c"], ["a", "d"], ["b"]]


def test_timers_fire_between_the_records_where_they_fired(tmp_path):
    tasks = tasks_of(tmp_path, Silent(), KEYS, KEYS, KEYS)
    assert len(tasks) == 3
    for task in tasks:
        rerun = replayed(task)
        assert (rerun.records, rerun.failure, rerun.differs, rerun.state) == (
            10,
            None,
            [],
            [],
        )
    # Some have fired in the middle of an epoch, and that was seen.
    assert any(len(read_recording(task).facts.clock or "") > 40 for task in tasks)
    (difference, *_) = replayed(tasks[1], clock=NOW).state or []
    assert difference.state in ("seen", "told", "timers function/processing", "timers user-timers/processing")


def test_a_failure_that_depends_on_the_clock(tmp_path):
    task = tasks_of(tmp_path, Fails(), KEYS, KEYS, KEYS)[-1]
    noted = read_recording(task).facts.failure
    assert noted is not None
    assert noted.cause == "ValueError"
    rerun = replayed(task)
    assert rerun.is_same
    assert rerun.failure is not None
    assert rerun.failure.number == noted.number
    rerun = replayed(task, clock=NOW)
    assert rerun.differs == ["the task failed in the epoch, but not in the replay"]
    assert rerun.reasons[-1] == "--clock stops the task's clock"


def test_a_clock_that_is_not_known_stands_still_and_is_said(tmp_path):
    task = tasks_of(tmp_path, Silent(), KEYS)[0]
    facts = (task / "recording.json").read_text()
    clock = read_recording(task).facts.clock
    (task / "recording.json").write_text(facts.replace(f'"clock": "{_escaped(clock)}"', '"clock": null'))
    assert read_recording(task).facts.clock is None
    rerun = replayed(task)
    assert rerun.state
    assert any("the readings of the task's clock are unknown" in reason for reason in rerun.reasons)


def _escaped(text: str | None) -> str:
    return (text or "").replace("\\", "\\\\").replace('"', '\\"')


def test_calls_that_may_give_something_else_are_named(tmp_path):
    task = tasks_of(tmp_path, Draws(), [["a"]])[0]
    rerun = replayed(task)
    assert [difference.state for difference in rerun.state or []] == ["drawn"]
    named = "\n".join(rerun.reasons)
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "random.random()" in text)
    for call in ("random.random()", "uuid.uuid4()", "time.time()", "datetime.now()"):
        assert f"it calls {call} at {__file__}:{line}" in named
    calls = [reason for reason in rerun.reasons if reason.startswith("it calls")]
    assert len(calls) == 4  # without pillarbox's own calls


def test_a_program_that_is_the_same_has_no_reasons(tmp_path):
    (first, second) = tasks_of(tmp_path, Adds(), [["a", "b"]], [["a"]])
    for task in (first, second):
        rerun = replayed(task)
        assert (rerun.is_same, rerun.reasons) == (True, [])


def test_seed_and_clock_make_it_the_same_each_time(tmp_path):
    task = tasks_of(tmp_path, Draws(), [["a"]])[0]

    def drawn(**options: Any) -> str | None:
        rerun = replayed(task, **options)
        return rerun.state[0].now if rerun.state else None

    assert drawn(seed=7, clock=NOW) == drawn(seed=7, clock=NOW) != drawn(seed=8, clock=NOW)
    assert drawn(seed=7, clock=NOW) != drawn(seed=7, clock=NOW + SECOND)
    assert drawn(seed=7) != drawn(seed=7)  # the clock of the machine advances


def test_it_stops_before_a_record(tmp_path):
    task = tasks_of(tmp_path, Silent(), KEYS)[0]
    for number in (1, 5, 10):
        rerun = replayed(task, at=number)
        assert (rerun.stopped, rerun.failure) == (True, None)
    assert not replayed(task, at=11).stopped


def test_it_stops_at_calls_of_services(tmp_path):
    def build(env: Any, records: Any) -> Any:
        return records.key_by(lambda key: key).process(Adds()).uid("adds").map_async(ask, timeout="5 s").uid("ask")

    with recorded(tmp_path) as tasks, ProgramTestHarness(build) as harness:
        harness.push("records", "a", "b")
        harness.run_epoch()
    (task,) = [task for task in tasks if read_recording(task).facts.level]
    rerun = replayed(task)
    assert (rerun.records, rerun.failure) == (2, None)
    assert "operator 'ask' calls a service, but the recording has no results" in str(rerun.unanswered)
    assert "Pending requests: ('a', 1), ('b', 1). Pass --allow-calls" in str(rerun.unanswered)
    assert rerun.uncompared == "it stopped at a service call, so nothing can be compared"
    assert replayed(task, allow_calls=True).is_same


async def ask(record: Any) -> Any:
    return record


def test_the_debugger_stops_in_the_users_function(tmp_path, monkeypatch, capsys):
    task = tasks_of(tmp_path, Fails(), KEYS, KEYS, KEYS)[-1]
    noted = read_recording(task).facts.failure
    assert noted is not None
    monkeypatch.setattr("sys.stdin", io.StringIO("p key\nwhere\nquit\n"))
    rerun = replayed(task, debug=True)
    assert (rerun.stopped, rerun.failure) == (True, None)
    output = capsys.readouterr().out
    assert f"(Pdb) {noted.key}\n" in output
    assert "process_element()" in output.split("(Pdb)")[0]  # at once, and not in pillarbox's own code
    # To continue is to see the failure, with the number that it has.
    monkeypatch.setattr("sys.stdin", io.StringIO("continue\n"))
    rerun = replayed(task, debug=True)
    assert rerun.failure is not None
    assert rerun.failure.number == noted.number


def traced(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def traced_silently(function: Any) -> Any:
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class Shapes(KeyedProcessFunction):
    """Base class of functions with unusual source code. They raise an error for the key "b"."""

    def process_element(self, key: Any, ctx: Any) -> Any:
        assert key != "b"
        yield key


class Documented(Shapes):
    """Has a method with a docstring, which is not an executable line."""

    def process_element(self, key: Any, ctx: Any) -> Any:
        """Do it.

        Then do it again.
        """
        assert key != "b"
        yield key


class LongSignature(Shapes):
    """Has a method whose signature takes several lines."""

    # fmt: off
    def process_element(
        self,
        key: Any,
        ctx: Any = None,
    ) -> Any:
        assert key != "b"
        yield key
    # fmt: on


class Decorated(Shapes):
    """Has a method with two decorators. One decorator keeps no reference to the function."""

    @traced
    @traced_silently
    def process_element(self, key: Any, ctx: Any) -> Any:
        assert key != "b"
        yield key


class Inherited(Documented):
    """Inherits its method from another function."""


@pytest.mark.parametrize("shape", [Shapes, Documented, LongSignature, Decorated, Inherited])
def test_the_debugger_stops_in_functions_of_all_shapes(tmp_path, monkeypatch, capsys, shape):
    task = tasks_of(tmp_path, shape(), [["a", "a", "b"]])[-1]
    monkeypatch.setattr("sys.stdin", io.StringIO("p 'the key', key\nquit\n"))
    assert replayed(task, debug=True).stopped
    output = capsys.readouterr().out
    assert "(Pdb) ('the key', 'b')\n" in output
    assert "assert key" in output.split("(Pdb)")[0]


class Multiplies:
    def __call__(self, key: Any) -> Any:
        """Do it."""
        assert key != "b"
        return key * 2


@pytest.mark.parametrize("function", [Multiplies(), functools.partial(Multiplies.__call__, Multiplies())])
def test_the_debugger_stops_in_callables(tmp_path, monkeypatch, capsys, function):
    def build(env: Any, records: Any) -> Any:
        return records.key_by(lambda key: key).map(function).uid("function")

    with recorded(tmp_path) as result, ProgramTestHarness(build) as harness, suppress(OperatorError):
        harness.push("records", "a", "b")
        harness.run_epoch()
    task = next(path for path in result if read_recording(path).facts.level)
    monkeypatch.setattr("sys.stdin", io.StringIO("p 'the key', key\nquit\n"))
    assert replayed(task, debug=True).stopped
    assert "(Pdb) ('the key', 'b')\n" in capsys.readouterr().out


class FailsLater(Silent):
    """Fails in a timer instead of at a record."""

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        seen = self.seen.value()
        raise ValueError(f"{len(seen)} records")


def test_the_debugger_looks_back_where_no_record_is_known(tmp_path, monkeypatch, capsys):
    task = tasks_of(tmp_path, FailsLater(), KEYS, KEYS, KEYS)[-1]
    noted = read_recording(task).facts.failure
    assert noted is not None
    assert noted.number is None
    monkeypatch.setattr("sys.stdin", io.StringIO("p timestamp, len(seen)\nquit\n"))
    rerun = replayed(task, debug=True)
    output = capsys.readouterr().out
    assert "on_timer()" in output.split("(Pdb)")[0]
    assert re.search(r"\(Pdb\) \(17\d{11}, \d+\)\n", output)
    # The cause of the debugger's start is still shown.
    assert rerun.failure is not None
    assert (rerun.failure.cause, rerun.failure.key) == ("ValueError", noted.key)


class Unprintable:
    """An object whose ``repr`` contains its address."""


class KeepsLarge(KeyedProcessFunction):
    """Stores half a megabyte for each key, in a separate row."""

    def open(self, ctx: Any) -> None:
        self.large = ctx.get_state(ValueStateDescriptor("large"))

    def process_element(self, key: Any, ctx: Any) -> Any:
        self.large.update((self.large.value() or b"") + bytes(500_000))
        if len(self.large.value()) > 2_000_000:
            raise ValueError(f"no room for {Unprintable()}")
        yield key


def test_large_rows_are_recorded(tmp_path):
    tasks = tasks_of(tmp_path, KeepsLarge(), *[[["a", "b"]]] * 4)
    assert sum(map(len, read_recording(tasks[-1]).state.values())) > 2_000_000
    for task in tasks:
        rerun = replayed(task)
        assert (rerun.records, rerun.is_same, rerun.state) == (2, True, [])


def test_addresses_in_texts_are_no_differences(tmp_path):
    failed = tasks_of(tmp_path, KeepsLarge(), *[[["a"]]] * 5)[-1]
    rerun = replayed(failed)
    assert (rerun.error is not None, rerun.differs) == (True, [])
    assert compare_programs(read_recording(failed), read_recording(failed).shipped).is_same


def test_a_recording_without_the_state_after_the_epoch_cannot_be_compared(tmp_path):
    task = tasks_of(tmp_path, Adds(), [["a", "b"]], [["a"]])[-1]
    (task / "state-after").unlink()
    assert CliRunner().invoke(commands, ["replay", str(task)]).exit_code == 0
    done = CliRunner().invoke(commands, ["replay", str(task), "--diff"])
    assert done.exit_code == 1
    assert "the recording has no state after the epoch" in done.output
    assert "Possible reasons" not in done.output


def test_a_replay_that_stops_as_requested_cannot_be_compared(tmp_path):
    task = tasks_of(tmp_path, Adds(), [["a", "b"]])[-1]
    done = CliRunner().invoke(commands, ["replay", str(task), "--diff", "--at", "2"])
    assert done.exit_code == 1
    assert "it stopped as requested, so nothing can be compared" in done.output


@pytest.mark.parametrize("part", ["state", "program", "input", "recording.json"])
def test_a_damaged_recording_is_one_sentence(tmp_path, part):
    task = tasks_of(tmp_path, Adds(), [["a", "b"]], [["a"]])[-1]
    (task / part).write_bytes((task / part).read_bytes()[:-5])
    done = CliRunner().invoke(commands, ["replay", str(task), "--diff"])
    assert done.exit_code == 1
    assert done.output.count("\n") == 1, done.output
    assert done.output.startswith(f"Error: {task} is")
