"""Programs of the local runtime that start from savepoints: what goes on, and what is refused before anything runs."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from pillarbox import (
    CheckpointedFunction,
    CheckpointMismatchError,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProgramError,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    WindowFunction,
)
from pillarbox.state.savepoint import Sources, write_savepoint
from pillarbox.testing import ProgramTestHarness, row

LIMITS = MapStateDescriptor("limits")


class Over(KeyedBroadcastProcessFunction):
    """What a card spent, its limit, and a timer when it was silent for a second."""

    def open(self, runtime_context):
        self.spent = runtime_context.get_state(ValueStateDescriptor("spent"))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))

    def process_element(self, payment, ctx):
        self.spent.update((self.spent.value() or 0) + payment.amount)
        self.seen.add(payment.at)
        ctx.timer_service().register_event_time_timer(payment.at + 1000)
        yield "spent", payment.card, self.spent.value(), ctx.get_broadcast_state(LIMITS).get("all")

    def process_broadcast_element(self, limit, ctx):
        ctx.get_broadcast_state(LIMITS).put("all", limit.amount)

    def on_timer(self, timestamp, ctx):
        yield "silent", ctx.get_current_key(), timestamp, tuple(self.seen.get())


class Total(WindowFunction):
    def apply(self, key, window, inputs):
        rows = list(inputs)
        yield key, window.start, len(rows), sum(row.amount for row in rows)


class Pairs(FlatMapFunction, CheckpointedFunction):
    """Holds one result in two back, in state of the operator's own."""

    def initialize_state(self, context):
        self.held = context.get_operator_state_store().get_list_state(ListStateDescriptor("held"))

    def flat_map(self, value):
        self.held.add(value)


def program(env, payments, limits):
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    timed = payments.assign_timestamps_and_watermarks(at)
    over = (
        timed.key_by("card")
        .connect(limits.assign_timestamps_and_watermarks(at).broadcast(LIMITS))
        .process(Over())
        .uid("over")
    )
    per_minute = timed.key_by("card").window(TumblingEventTimeWindows.of("2 seconds")).apply(Total()).uid("windows")
    asked = over.rebalance().map_async(ask, on_barrier="carry", capacity=1000).uid("ask")
    return {"over": asked, "windows": per_minute}


# Until then no request is answered: all of them are carried to the next epoch.
ANSWERING = threading.Event()


async def ask(value):
    while not ANSWERING.is_set():
        await asyncio.sleep(0.002)
    return "asked", value


def payments(start: int, end: int) -> list[Any]:
    return [row(card=f"c{number % 17}", at=number * 40, amount=number % 5) for number in range(start, end)]


class Run:
    """A harness of the program that collects what comes out."""

    def __init__(self, parallelism: int, start: Any = None, build: Any = program) -> None:
        def begun(env, payments, limits):
            if start is not None:
                env.from_savepoint(*start[0], **start[1])
            return build(env, payments, limits)

        self.harness = ProgramTestHarness(begun, parallelism=parallelism)

    def epoch(self, rows: list[Any], limit: int | None = None) -> None:
        self.harness.push_all("payments", rows)
        if limit is not None:
            self.harness.push("limits", row(kind="all", amount=limit, at=rows[0].at))
        else:
            self.harness.push("limits", row(kind="none", amount=None, at=rows[0].at))
        self.harness.run_epoch()

    def end(self) -> dict[str, list[Any]]:
        ANSWERING.set()
        self.harness.end_input()
        found = {name: sorted(map(repr, self.harness.get_output(name))) for name in ("over", "windows")}
        self.harness.close()
        return found


def from_savepoint(directory: Any, **options: Any) -> Any:
    return (directory,), options


@pytest.fixture(autouse=True)
def _nobody_answers():
    ANSWERING.clear()


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    """A savepoint of the program after an epoch, with three subtasks."""
    run = Run(3)
    run.epoch(payments(0, 60), limit=7)
    write_savepoint(tmp_path / "savepoint", run.harness.snapshot().stores, epoch=0)
    run.harness.close()
    return tmp_path / "savepoint"


@pytest.mark.parametrize("parallelism", [1, 3, 5])
def test_it_goes_on_at_another_parallelism(tmp_path: Path, parallelism: int) -> None:
    """Together with what came out before, the output is that of a run that never stopped."""
    whole, first = Run(3), Run(3)
    for run in (whole, first):
        run.epoch(payments(0, 60), limit=7)
    write_savepoint(tmp_path / "savepoint", first.harness.snapshot().stores, epoch=0)
    before = {name: first.harness.get_output(name) for name in ("over", "windows")}
    assert not before["over"], "no request is carried over"
    first.harness.close()
    second = Run(parallelism, from_savepoint(tmp_path / "savepoint"))
    for run in (whole, second):
        run.epoch(payments(60, 130))
    after = second.end()
    assert {name: sorted([*map(repr, before[name]), *after[name]]) for name in after} == whole.end()


def test_a_program_ends_for_good_without_any_input(savepoint: Path) -> None:
    """Its windows and timers fire, and its requests are answered, from the savepoint alone."""
    ANSWERING.set()
    env = StreamExecutionEnvironment().set_parallelism(2)
    env.from_savepoint(savepoint)
    streams = program(env, env.from_collection([]), env.from_collection([]))
    with streams["over"].union(streams["windows"]).execute_and_collect() as results:
        found = sorted(map(repr, results))
    wanted = Run(2, from_savepoint(savepoint)).end()
    assert found == sorted([*wanted["over"], *wanted["windows"]])
    assert all(f"'{what}'" in "".join(found) for what in ("asked", "spent", "silent")) and wanted["windows"]


def test_list_state_of_operators_is_dealt_out(tmp_path: Path) -> None:
    class Held(Pairs):
        def flat_map(self, value):
            if value < 0:
                yield sorted(self.held.get())
            else:
                self.held.add(value)

    def build(env, numbers):
        return numbers.rebalance().flat_map(Held()).uid("held")

    with ProgramTestHarness(build, parallelism=2) as first:
        first.push("numbers", *range(10))
        first.run_epoch()
        write_savepoint(tmp_path / "savepoint", first.snapshot().stores, epoch=0)

    def again(env, numbers):
        env.from_savepoint(tmp_path / "savepoint", renamed={"held": "kept"})
        return numbers.rebalance().flat_map(Held()).uid("kept")

    with ProgramTestHarness(again, parallelism=3) as second:
        second.push("numbers", *[-1] * 3)
        found = second.run_epoch()["output"]
    assert sorted(number for part in found for number in part) == [*range(10)]
    assert len(found) == 3 and all(found)


def test_a_later_start_of_the_same_harness_is_that_of_its_snapshot(savepoint: Path) -> None:
    run = Run(3, from_savepoint(savepoint))
    ANSWERING.set()
    run.epoch(payments(60, 70))
    snapshot = run.harness.snapshot()
    run.harness.restore(snapshot)
    run.epoch(payments(70, 71))
    run.end()
    spent = [value[2] for _, value in run.harness.get_output("over") if value[:2] == ("spent", "c2")]
    assert max(spent) == sum(one.amount for one in payments(0, 71) if one.card == "c2")


# -- what is refused --


def renamed_program(env, payments, limits):
    """The program with another uid of the windows."""
    streams = program(env, payments, limits)
    streams["windows"].uid("other")
    return streams


def rekeyed_program(env, payments, limits):
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    timed = payments.assign_timestamps_and_watermarks(at)
    seen = timed.key_by("at").process(Remember()).uid("over")
    return {"over": seen, "windows": limits.key_by("kind").process(Remember()).uid("fresh")}


class Remember(KeyedProcessFunction):
    def open(self, runtime_context):
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, value, ctx):
        self.last.update(value)
        yield value


def refused(build: Any, directory: Any, **options: Any) -> str:
    with pytest.raises(CheckpointMismatchError) as caught:
        Run(2, from_savepoint(directory, **options), build)
    return str(caught.value)


def test_all_that_does_not_fit_is_told_at_once(savepoint: Path) -> None:
    said = refused(rekeyed_program, savepoint, renamed={"nobody": "fresh"})
    assert said.startswith(f"the program cannot start from the savepoint {savepoint}:\n")
    lines = said.splitlines()[1:]
    assert len(lines) == 3
    assert "renamed names 'nobody'" in lines[0] and "'ask', 'over', 'windows'" in lines[0]
    assert "operator 'over'" in lines[1] and "was the column card, and is the column at" in lines[1]
    assert "state of 'ask', 'windows', which the program does not have (it has 'fresh'" in lines[2]
    assert "allow_non_restored_state=True" in lines[2]


def test_operators_have_other_uids(savepoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "has state of 'windows'" in refused(renamed_program, savepoint)
    run = Run(2, from_savepoint(savepoint, renamed={"windows": "other"}), renamed_program)
    run.epoch(payments(60, 61))
    renamed = run.end()["windows"]
    with caplog.at_level(logging.WARNING, "pillarbox"):
        run = Run(2, from_savepoint(savepoint, allow_non_restored_state=True), renamed_program)
    assert "the state of operator 'windows' is left behind" in caplog.text
    run.epoch(payments(60, 61))
    left = run.end()["windows"]
    assert len(left) == 1 < len(renamed)


def test_two_operators_cannot_become_one(savepoint: Path) -> None:
    assert "'over' and 'windows' of it would both become 'windows'" in refused(
        program, savepoint, renamed={"over": "windows"}
    )


def test_made_by_another_method(savepoint: Path) -> None:
    path = next((savepoint / "manifest").glob("*.txt"))
    content = json.loads(path.read_text())
    content["programs"] = [{"operators": [{"uid": "over", "kind": "reduce"}], "sources": []}]
    path.write_text(json.dumps(content))
    assert "operator 'over' was made by reduce(), and is made by process()" in refused(program, savepoint)


def test_other_kinds_of_states(tmp_path: Path) -> None:
    def build(env, rows):
        return rows.key_by("card").process(Remember()).uid("remember")

    with ProgramTestHarness(build) as first:
        first.push("rows", *payments(0, 5))
        first.run_epoch()
        write_savepoint(tmp_path / "savepoint", first.snapshot().stores, epoch=0)

    class Other(Remember):
        def open(self, runtime_context):
            self.last = runtime_context.get_list_state(ListStateDescriptor("last"))

    def again(env, rows):
        env.from_savepoint(tmp_path / "savepoint")
        return rows.key_by("card").process(Other()).uid("remember")

    with ProgramTestHarness(again) as second, pytest.raises(CheckpointMismatchError, match="'last'"):
        second.push("rows", *payments(0, 5))
        second.run_epoch()


def test_no_savepoint_half_a_savepoint_a_damaged_one(savepoint: Path, tmp_path: Path) -> None:
    assert "no savepoint" in refused(program, tmp_path / "elsewhere")
    table = next((savepoint / "state" / "over").glob("*.parquet"))
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    assert f"the file state/over/{table.name} is not as it was written" in refused(program, savepoint)
    table.unlink()
    assert f"the file state/over/{table.name} is missing" in refused(program, savepoint)
    manifest = next((savepoint / "manifest").glob("*.txt"))
    manifest.unlink()
    assert "was begun, and not completed" in refused(program, savepoint)


def test_what_the_program_cannot_do_is_refused_when_it_is_built(savepoint: Path) -> None:
    def built(**options: Any) -> str:
        with pytest.raises(ProgramError) as caught:
            Run(2, from_savepoint(savepoint, **options))
        return str(caught.value)

    assert "gives 'nobody' as new uid, and the program has no such operator" in built(renamed={"over": "nobody"})
    env = StreamExecutionEnvironment().from_savepoint(savepoint)
    with pytest.raises(ProgramError, match="no operator that could take state"):
        env.from_collection([1]).map(str).execute_and_collect()


def test_positions_are_no_matter_here(tmp_path: Path) -> None:
    run = Run(3)
    run.epoch(payments(0, 10))
    sources = Sources(("v1", "{}", '{"topic":{"0":7}}'), {})
    write_savepoint(tmp_path / "savepoint", run.harness.snapshot().stores, epoch=0, sources=sources)
    run.harness.close()
    again = Run(3, from_savepoint(tmp_path / "savepoint"))
    again.epoch(payments(10, 20))
    again.harness.close()
