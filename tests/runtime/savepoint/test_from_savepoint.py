from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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
from pillarbox._graph.savepoint_start import SavepointStart
from pillarbox._runtime.spark.savepoint.restore_host import COMMON, LAST
from pillarbox._runtime.spark.starting import first_epoch
from pillarbox._state.savepoint.files import write_savepoint
from pillarbox._state.savepoint.manifest import Manifest, Sources
from pillarbox._state.savepoint.own_state import OwnState
from pillarbox._state.slots import LIST, UNION
from pillarbox.testing import ProgramTestHarness, row

LIMITS = MapStateDescriptor("limits")


class Over(KeyedBroadcastProcessFunction):
    """Emits a card's spending and limit. A timer fires after a second without payments."""

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
    """Holds back every second result in operator state."""

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
        outputs = {name: sorted(map(repr, self.harness.get_output(name))) for name in ("over", "windows")}
        self.harness.close()
        return outputs


def from_savepoint(directory: Any, **options: Any) -> Any:
    return (directory,), options


@pytest.fixture(autouse=True)
def _nobody_answers():
    ANSWERING.clear()


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    run = Run(3)
    run.epoch(payments(0, 60), limit=7)
    write_savepoint(tmp_path / "savepoint", run.harness.snapshot().stores, epoch=0)
    run.harness.close()
    return tmp_path / "savepoint"


@pytest.mark.parametrize("directory", ["file://{}", "file:{}", "{}/"])
def test_a_directory_as_spark_calls_it(savepoint: Path, directory: str) -> None:
    directory = directory.format(savepoint.rename(savepoint.with_name("of [1] 5 % #ö: 'a'")))
    run = Run(2, from_savepoint(directory))
    run.epoch(payments(60, 61))
    assert len(run.end()["windows"]) > 1


@pytest.mark.slow("a program of every kind of state")
@pytest.mark.parametrize("parallelism", [1, 3, 5])
def test_it_goes_on_at_another_parallelism(tmp_path: Path, parallelism: int) -> None:
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
    ANSWERING.set()
    env = StreamExecutionEnvironment().set_parallelism(2)
    env.from_savepoint(savepoint)
    streams = program(env, env.from_collection([]), env.from_collection([]))
    with streams["over"].union(streams["windows"]).execute_and_collect() as results:
        collected = sorted(map(repr, results))
    expected = Run(2, from_savepoint(savepoint)).end()
    assert collected == sorted([*expected["over"], *expected["windows"]])
    assert all(f"'{what}'" in "".join(collected) for what in ("asked", "spent", "silent")) and expected["windows"]


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
        outputs = second.run_epoch()["output"]
    assert sorted(number for part in outputs for number in part) == [*range(10)]
    assert len(outputs) == 3 and all(outputs)


def test_a_later_start_of_the_same_harness_is_that_of_its_snapshot(savepoint: Path) -> None:
    run = Run(3, from_savepoint(savepoint))
    ANSWERING.set()
    run.epoch(payments(60, 70))
    snapshot = run.harness.snapshot()
    run.harness.restore(snapshot)
    run.epoch(payments(70, 71))
    run.end()
    spent = [value[2] for _, value in run.harness.get_output("over") if value[:2] == ("spent", "c2")]
    assert max(spent) == sum(payment.amount for payment in payments(0, 71) if payment.card == "c2")


# -- event time --

BY_AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


def paid(card: str, *times: int) -> list[Any]:
    return [row(card=card, at=at, amount=1) for at in times]


def begun(build: Any, epochs: list[dict[str, list[Any]]], directory: Path, parallelism: int = 1) -> list[Any]:
    with ProgramTestHarness(build, parallelism=parallelism) as harness:
        for epoch in epochs:
            for source, rows in epoch.items():
                harness.push_all(source, rows)
            harness.run_epoch()
        harness.write_savepoint(directory)
        return harness.get_output()


def windows(stream: Any) -> Any:
    return stream.key_by("card").window(TumblingEventTimeWindows.of("1 second")).apply(Total()).uid("windows")


def test_a_source_in_another_place_keeps_its_own_event_time(tmp_path: Path) -> None:
    def counted(fast: Any, slow: Any) -> Any:
        return windows(fast.assign_timestamps_and_watermarks(BY_AT).union(slow.assign_timestamps_and_watermarks(BY_AT)))

    first = [{"fast": paid("c", 10_000), "slow": paid("c", 1_000)}]
    assert not begun(lambda env, fast, slow: counted(fast, slow), first, tmp_path / "savepoint")

    def again(env, slow, fast):
        env.from_savepoint(tmp_path / "savepoint")
        return counted(fast, slow)

    with ProgramTestHarness(again) as second:
        second.push_all("fast", paid("c", 20_000))
        assert not second.run_epoch()["output"]
        second.push_all("slow", paid("c", 1_500))
        second.run_epoch()
        assert second.end_input()["output"][0] == ("c", 1_000, 2, 2)


def test_sources_behind_an_operator_that_is_added_keep_their_own_event_times() -> None:
    def counted(env, a, b, c, added=False):
        a, b, c = (source.assign_timestamps_and_watermarks(BY_AT) for source in (a, b, c))
        results = {"windows": windows(a.union(b, c))}
        return {**results, "added": a.key_by("card").process(Pass()).uid("added")} if added else results

    def again(env, a, b, c):
        return counted(env, a, b, c, added=True)

    def begun(env, a, b, c):
        return counted(env, a, b, c)

    with ProgramTestHarness(begun) as first:
        for source, at in (("a", 10_000), ("b", 1_000), ("c", 10_000)):
            first.push_all(source, paid("c", at))
        assert not first.run_epoch()["windows"]
        snapshot = first.snapshot()
    with ProgramTestHarness(again, snapshot=snapshot) as second:
        for source in ("a", "c"):
            second.push_all(source, paid("c", 20_000))
        assert not second.run_epoch()["windows"], "the second source has said 999, and nothing since"
        second.push_all("b", paid("c", 1_500))
        second.run_epoch()
        assert second.end_input()["windows"][0] == ("c", 1_000, 2, 2)


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


def of_cards(stream: Any, card: str, strategy: WatermarkStrategy) -> Any:
    own = stream.key_by("card").process(Pass()).uid(f"pass-{card}").filter(lambda value: value.card == card)
    return own.assign_timestamps_and_watermarks(strategy).uid(f"times-{card}")


def test_operators_in_other_places_keep_their_own_event_times(tmp_path: Path) -> None:
    lenient = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("at")

    def counted(payments: Any) -> Any:
        return windows(of_cards(payments, "slow", lenient).union(of_cards(payments, "fast", BY_AT)))

    first = [{"payments": [*paid("slow", 1_000, 10_000), *paid("fast", 10_000)]}]
    before = begun(lambda env, payments: counted(payments), first, tmp_path / "savepoint")
    assert before == [("slow", 1_000, 1, 1)]

    def again(env, payments):
        env.from_savepoint(tmp_path / "savepoint")
        added = payments.key_by("card").process(Pass()).uid("added")
        return {"added": added, "windows": counted(payments)}

    with ProgramTestHarness(again) as second:
        second.push_all("payments", paid("fast", 20_000))
        assert not second.run_epoch()["windows"]
        second.push_all("payments", paid("slow", 6_000))
        second.run_epoch()
        assert ("slow", 6_000, 1, 1) in second.end_input()["windows"]


def test_event_time_of_operators_with_other_uids_goes_on(tmp_path: Path) -> None:
    def counted(payments: Any, suffix: str = "") -> Any:
        passed = payments.key_by("card").process(Pass()).uid(f"pass{suffix}")
        parts = [
            passed.filter(lambda value, card=card: value.card == card)
            .assign_timestamps_and_watermarks(BY_AT)
            .uid(f"times-{card}{suffix}")
            for card in ("early", "late")
        ]
        return windows(parts[0].union(parts[1]).map(lambda value: value).uid(f"met{suffix}"))

    first = [{"payments": [*paid("early", 10_000), *paid("late", 5_000)]}]
    assert not begun(lambda env, payments: counted(payments), first, tmp_path / "savepoint")
    renamed = {uid: f"{uid} of now" for uid in ("pass", "times-early", "times-late", "met")}

    def again(env, payments):
        env.from_savepoint(tmp_path / "savepoint", renamed=renamed)
        return counted(payments, " of now")

    with ProgramTestHarness(again) as second:
        second.push_all("payments", paid("late", 20_000, 4_500))
        assert second.run_epoch()["output"] == [("late", 5_000, 1, 1)], "4500 is late, and 10000 the time of the other"
        second.push_all("payments", paid("early", 15_000, 9_500))
        assert second.run_epoch()["output"] == [("early", 10_000, 1, 1)], "9500 is late"


def test_names_of_side_outputs_and_edges_are_no_uids() -> None:
    start = SavepointStart.of("/savepoint", False, {"late": "later", "edge": "end"}, "savepoint")
    nodes = [SimpleNamespace(uid=uid) for uid in ("later", "end", "windows")]
    program: Any = SimpleNamespace(vertices=[SimpleNamespace(nodes=nodes)])
    valve = {"watermark": 5, "idle": False, "channels": {("windows", "late", 0): (5, False, True)}}
    other = {**valve, "channels": {("late", None, 0): (5, False, True)}}
    event_time = {
        "operators": {},
        "meetings": {("edge", "late", 0, 0): valve, ("edge",): other, ("edge", 3, 0, 0): valve},
    }
    manifest = Manifest("0", 1, None, (), Sources(), {})
    result = start._own_state(OwnState({"event_time": event_time}), manifest, program).task["event_time"]["meetings"]
    assert [*result] == [("edge", "later", 0, 0), ("end",), ("edge", 3, 0, 0)]
    assert [[*state["channels"]] for state in result.values()] == [
        [("windows", "late", 0)],
        [("later", None, 0)],
        [("windows", "late", 0)],
    ]


# -- refusals --


def renamed_program(env, payments, limits):
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
    refusal = refused(rekeyed_program, savepoint, renamed={"nobody": "fresh"})
    assert refusal.startswith(f"the program cannot start from the savepoint {savepoint}:\n")
    lines = refusal.splitlines()[1:]
    assert len(lines) == 3
    assert "renamed= names 'nobody'" in lines[0] and "'ask', 'over', 'windows'" in lines[0]
    assert "operator 'over'" in lines[1] and "was the column card, and is the column at" in lines[1]
    assert "state of 'ask', 'windows', but the program has no such operator (but has 'fresh'" in lines[2]
    assert "allow_non_restored_state=True" in lines[2]


def test_operators_have_other_uids(savepoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "contains state of 'windows'" in refused(renamed_program, savepoint)
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
    assert "'over' and 'windows' of the savepoint would both become 'windows'" in refused(
        program, savepoint, renamed={"over": "windows"}
    )


def test_made_by_another_method(savepoint: Path) -> None:
    path = next((savepoint / "manifest").glob("*.txt"))
    programs: Any = [{"operators": [{"uid": "over", "kind": "reduce"}], "sources": []}]
    path.write_text(replace(Manifest.from_json(path.read_text()), programs=programs).to_json())
    assert "operator 'over' was created by reduce(), and is now created by process()" in refused(program, savepoint)


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
    assert "is in no local directory, where a program in this process" in refused(program, "s3a://bucket/savepoint")
    table = next((savepoint / "state" / "over").glob("*.parquet"))
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    assert f"the file state/over/{table.name} is damaged" in refused(program, savepoint)
    table.unlink()
    assert f"the file state/over/{table.name} is missing" in refused(program, savepoint)
    manifest = next((savepoint / "manifest").glob("*.txt"))
    manifest.unlink()
    assert "was begun, and not completed" in refused(program, savepoint)


def test_impossible_programs_are_refused_when_they_are_built(savepoint: Path) -> None:
    def built(**options: Any) -> str:
        with pytest.raises(ProgramError) as caught:
            Run(2, from_savepoint(savepoint, **options))
        return str(caught.value)

    refusal = built(renamed={"over": "nobody"})
    assert refusal == (
        "from_savepoint(): renamed= has the new uid 'nobody', but the program has no such operator. Its operators are"
        " 'ask', 'over', 'timestamps-3', 'timestamps-5', 'windows', and its sources 'limits', 'payments'"
    )
    env = StreamExecutionEnvironment().from_savepoint(savepoint)
    with pytest.raises(ProgramError, match="the program has no operator with state"):
        env.from_collection([1]).map(str).execute_and_collect()


def test_positions_are_no_matter_here(tmp_path: Path) -> None:
    run = Run(3)
    run.epoch(payments(0, 10))
    sources = Sources(("v1", "{}", '{"topic":{"0":7}}'), {})
    write_savepoint(tmp_path / "savepoint", run.harness.snapshot().stores, epoch=0, sources=sources)
    again = Run(3, from_savepoint(tmp_path / "savepoint"))
    for runner in (run, again):
        runner.epoch(payments(10, 20))
    assert again.end() == run.end()


def test_state_common_to_all_subtasks_is_pickled_once():
    rules = {number: bytes([number]) * 1_000 for number in range(100)}
    states = [
        OwnState({"gate": subtask}, {"rules": dict(rules), f"{UNION}seen": [1, 2], f"{LIST}own": [subtask]})
        for subtask in range(8)
    ]
    rows = [*first_epoch.own_rows(range(10, 18), states)]
    assert sum(len(payload) for _, _, payload in rows) < 1.1 * len(pickle.dumps(rules))
    (common,) = [(codes, pickle.loads(payload)) for codes, number, payload in rows if number == COMMON]
    assert common == ([*range(10, 18)], {"rules": rules, f"{UNION}seen": [1, 2]})
    last = {tuple(codes): pickle.loads(payload) for codes, number, payload in rows if number == LAST}
    assert last == {(10 + n,): OwnState({"gate": n}, {f"{LIST}own": [n]}) for n in range(8)}


def test_state_that_differs_between_subtasks_is_kept_separate():
    states = [OwnState({}, {"rules": {"limit": limit}}) for limit in (1, 2, 1)]
    results = {}
    for codes, number, payload in first_epoch.own_rows([5, 6, 7], states):
        if number == COMMON:
            results[tuple(codes)] = pickle.loads(payload)
    assert results == {(5, 7): {"rules": {"limit": 1}}, (6,): {"rules": {"limit": 2}}}
