"""Runs each operator in the table in each scenario, and compares the output with an undisturbed run's.

A scenario is an event, such as a restart, between or during epochs, on the task runtime without Spark.
``tests/faults/test_every_operator.py`` does the same on Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pillarbox.testing import ProgramTestHarness
from pillarbox_tools.recording.recording import read_recording
from pillarbox_tools.replay.replay import replay
from tests.operators_table.entry import Entry
from tests.operators_table.table import OPERATORS
from tests.operators_table.test_entries import RECORDS, program, push
from tests.support.recorded import recorded

HALF = len(RECORDS) // 2
Out = Counter[str]


def shown(out: list[Any]) -> Out:
    return Counter(map(repr, out))


def begin(entry: Entry) -> ProgramTestHarness:
    return ProgramTestHarness(program(entry), parallelism=2)


def first_half(harness: ProgramTestHarness, entry: Entry) -> Out:
    push(harness, entry, *RECORDS[:HALF])
    return shown(harness.run_epoch()["output"])


def second_half(harness: ProgramTestHarness, entry: Entry) -> Out:
    push(harness, entry, *RECORDS[HALF:])
    return shown(harness.end_input()["output"])


@cache
def undisturbed(name: str) -> Out:
    (entry,) = (operator for operator in OPERATORS if str(operator) == name)
    with begin(entry) as harness:
        return first_half(harness, entry) + second_half(harness, entry)


def an_attempt_fails(entry: Entry, folder: Path) -> Out:
    with begin(entry) as harness:
        push(harness, entry, *RECORDS[:HALF])
        harness.fail_epoch()
        return shown(harness.run_epoch()["output"]) + second_half(harness, entry)


def started_again(entry: Entry, folder: Path) -> Out:
    with begin(entry) as harness:
        out = first_half(harness, entry)
        snapshot = harness.snapshot()
    with ProgramTestHarness(program(entry), parallelism=2, snapshot=snapshot) as harness:
        return out + second_half(harness, entry)


def back_to_an_earlier_epoch(entry: Entry, folder: Path) -> Out:
    with begin(entry) as harness:
        out = first_half(harness, entry)
        snapshot = harness.snapshot()
        push(harness, entry, *RECORDS[HALF:])
        harness.run_epoch()  # and is forgotten
        harness.restore(snapshot)
        harness.clear_output()
        return out + second_half(harness, entry)


def from_a_savepoint_at_another_parallelism(entry: Entry, folder: Path) -> Out:
    with begin(entry) as harness:
        out = first_half(harness, entry)
        harness.write_savepoint(folder / "savepoint")
    build = program(entry)

    def resumed(env: Any, left: Any, right: Any) -> Any:
        env.from_savepoint(str(folder / "savepoint"))
        return build(env, left, right)

    with ProgramTestHarness(resumed, parallelism=3) as harness:
        return out + second_half(harness, entry)


SCENARIOS: list[Callable[[Entry, Path], Out]] = [
    an_attempt_fails,
    started_again,
    back_to_an_earlier_epoch,
    from_a_savepoint_at_another_parallelism,
]


# Without a shuffle, a savepoint has no state.
WITHOUT_SHUFFLE = ("DataStream.", "AsyncDataStream.")
# Each subtask receives the whole second stream, so more subtasks emit more rows.
IN_EACH_SUBTASK = {"BroadcastConnectedStream.process"}
CASES = [
    (entry, scenario)
    for entry in OPERATORS
    for scenario in SCENARIOS
    if scenario is not from_a_savepoint_at_another_parallelism or not entry.method.startswith(WITHOUT_SHUFFLE)
]


@pytest.mark.parametrize(("entry", "scenario"), CASES, ids=lambda value: getattr(value, "__name__", None) or str(value))
def test_it_comes_out_as_undisturbed(entry, scenario, tmp_path):
    result, right = scenario(entry, tmp_path), undisturbed(str(entry))
    assert right
    if scenario is from_a_savepoint_at_another_parallelism and entry.method in IN_EACH_SUBTASK:
        assert result.keys() == right.keys()
    else:
        assert result == right


@pytest.mark.parametrize("entry", OPERATORS, ids=str)
def test_each_task_is_replayed_to_the_same_state(entry, tmp_path):
    with recorded(tmp_path) as tasks, begin(entry) as harness:
        first_half(harness, entry)
        second_half(harness, entry)
    assert tasks
    for task in tasks:
        recording = read_recording(task)
        rerun = replay(recording, diff=True, allow_calls=True)
        assert (rerun.error, rerun.differs, rerun.state or []) == (None, [], [])
        assert rerun.state is not None or not recording.facts.level
