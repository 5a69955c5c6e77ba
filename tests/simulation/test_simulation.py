"""Simulated programs have the same outcome under many schedules as without faults. Planted bugs are found."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.every_program import PROGRAMS, STREAMING
from tests.simulation.planted import PLANTED
from tests.simulation.simulate import SimulatedRunMismatch, command, run_of, simulate

ROOT = Path(__file__).parents[2]
# One of each kind of program.
REPEATED = ("many-keys", "carried-with-event-time", "late-join-of-columns", "silent-source", "many-keys-in-batch-mode")
IN_BATCH_MODE = ("many-keys", "extremes", "both-in-turn", "joined-windows", "interval-join", "sessions")
_LONG = pytest.mark.long("programs of the same kind show it")
_OTHER_BUG = pytest.mark.long("some of the bugs show that the simulation finds them")
_LONG_BATCH = pytest.mark.long("programs of the same kind show it, and operators_table has each operator in batch mode")


@pytest.mark.slow("a schedule of each program")
@pytest.mark.parametrize("name", STREAMING)
def test_programs_come_out_as_undisturbed(name: str) -> None:
    check(name)


@pytest.mark.slow("a schedule of each program")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name.removesuffix("-in-batch-mode") in IN_BATCH_MODE else _LONG_BATCH)
        for name in PROGRAMS
        if PROGRAMS[name].batch
    ],
)
def test_batch_mode_comes_out_as_plain_python_says(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "pillarbox")
    check(name)


def check(name: str) -> None:
    try:
        simulate(name, 0)
    except SimulatedRunMismatch as error:
        pytest.fail(f"{error}\nto do it again: {command(name, 0)}", pytrace=False)


@pytest.mark.slow("schedules until a bug is found")
@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=() if number % 4 == 1 else _OTHER_BUG) for number, bug in enumerate(PLANTED)]
)
def test_planted_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = PLANTED[bug]
    planted.plant(monkeypatch)
    with pytest.raises(SimulatedRunMismatch):
        for seed in range(planted.first, planted.first + planted.within):
            simulate(planted.program, seed)


@pytest.mark.slow("two runs of a program")
@pytest.mark.parametrize(
    "name", [*REPEATED, *(pytest.param(name, marks=_LONG) for name in STREAMING if name not in REPEATED)]
)
def test_a_seed_repeats_its_schedule(name: str) -> None:
    first, second = run_of(name, 3), run_of(name, 3)
    assert repr(first.run_with_faults()) == repr(second.run_with_faults())
    assert first.steps == second.steps
    assert first.rng.getstate() == second.rng.getstate()


def print_runs() -> None:
    for name in ("sessions", "drained", "carried-with-event-time"):
        run = run_of(name, 3)
        print(run.run_with_faults(), run.steps, run.rng.random())


def test_a_seed_repeats_its_schedule_in_another_process(capsys: pytest.CaptureFixture[str]) -> None:
    code = f"from {__name__} import print_runs; print_runs()"
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    print_runs()
    assert done.stdout == capsys.readouterr().out


@pytest.mark.long("it looks at the programs: whether there is something to compare")
@pytest.mark.parametrize("name", STREAMING)
def test_outcomes_are_not_empty(name: str) -> None:
    reached = {"late"} if name.startswith("windows") else set()  # nothing is late
    for seed in range(8):
        run = run_of(name, seed)
        reached |= {output for epoch in run.run_without_faults() for output, values in epoch.items() if values}
        if reached >= set(run.compiled.program.outputs):
            return
    pytest.fail(f"nothing reaches {set(run.compiled.program.outputs) - reached}")


def test_plain_python_says_something_of_each_program_or_there_is_a_reason() -> None:
    missing = [name for name, entry in STREAMING.items() if entry.batch_oracle is None and entry.oracle is None]
    assert not missing, f"give {missing} a batch_oracle: a function of the inputs, or a reason"
    for name, program in PROGRAMS.items():
        if program.batch and program.oracle is not None:
            oracle = program.oracle
            outcomes = [list(values) for seed in range(3) for values in oracle(run_of(name, seed).inputs).values()]
            assert any(outcomes), name
