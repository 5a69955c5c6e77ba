"""Changed programs resume from existing state. Each test is a row of a table in docs/operations.md.

Programs are compared as in ``pillarbox.start``. See tests/spark/operating/test_changes.py for changes on Spark,
test_changed_state.py for changed state, and test_changed_windows.py for changed windows.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from pillarbox import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    CheckpointMismatchError,
    DeadLetter,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    WindowFunction,
    count_,
    max_,
    sum_,
)
from pillarbox._datastream.connected import columnar_joins
from pillarbox._graph.description import DescriptionDifferences, compare, describe_programs
from pillarbox.testing import ProgramTestHarness, row

BAD: OutputTag[DeadLetter] = OutputTag("bad")
AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


class Sum(KeyedProcessFunction):
    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value, ctx):
        self.sum.update((self.sum.value() or 0) + value.n)
        yield ctx.get_current_key(), self.sum.value()


class Renamed(Sum): ...


class Seen(MapFunction, CheckpointedFunction):
    def initialize_state(self, context):
        self.seen = context.get_operator_state_store().get_list_state(ListStateDescriptor("seen"))

    def map(self, value):
        self.seen.add(1)
        return value


def paid(*keys: str) -> list[Any]:
    return [row(card=key, n=1, at=1_000 + number) for number, key in enumerate(keys)]


def sums(paid: Any, function: Any = None, uid: str | None = "sum") -> Any:
    stream = paid.key_by("card").process(function or Sum())
    return stream if uid is None else stream.uid(uid)


class Changed:
    def __init__(self, then: Any, first: list[Any], folder: Path, parallelism: int = 2) -> None:
        self.savepoint = folder / "savepoint"
        with ProgramTestHarness(then, parallelism=parallelism) as harness:
            harness.push_all("paid", first)
            harness.run_epoch()
            harness.write_savepoint(self.savepoint)
            self.snapshot = harness.snapshot()
            self.now = harness.processing_time_service.current_processing_time()
            self._programs = [harness._program]

    def compared(self, build: Any, parallelism: int = 2) -> DescriptionDifferences:
        with ProgramTestHarness(build, parallelism=parallelism) as harness:
            return compare(describe_programs(self._programs), describe_programs([harness._program]))

    def refusal(self, build: Any) -> str:
        message = "; ".join(self.compared(build).refused)
        assert message
        return message

    def goes_on(self, build: Any, *rows: Any, parallelism: int = 2, ends: bool = False) -> dict[str, list[Any]]:
        assert self.compared(build, parallelism) == DescriptionDifferences()
        return self._run(build, rows, parallelism, ends, snapshot=self.snapshot)

    def from_savepoint(self, build: Any, *rows: Any, parallelism: int = 2, **options: Any) -> dict[str, list[Any]]:
        def begun(env, paid):
            env.from_savepoint(self.savepoint, **options)
            return build(env, paid)

        return self._run(begun, rows, parallelism, ends=False)

    def _run(self, build: Any, rows: Any, parallelism: int, ends: bool, **options: Any) -> dict[str, list[Any]]:
        with ProgramTestHarness(build, parallelism=parallelism, processing_time=self.now, **options) as harness:
            harness.push_all("paid", rows)
            outputs = harness.end_input() if ends else harness.run_epoch()
            return {name: sorted(values, key=repr) for name, values in outputs.items()}


def only_sums(env: Any, paid: Any) -> Any:
    return {"sum": sums(paid)}


def test_the_numbers_of_subtasks(tmp_path: Path) -> None:
    then = Changed(lambda env, paid: {"sum": sums(paid).set_parallelism(1)}, paid("a", "b"), tmp_path)
    refusal = then.refusal(only_sums)
    assert "operator 'sum' had parallelism 1, and now has 2, but a checkpoint's value is fixed: call set_p" in refusal
    assert then.from_savepoint(only_sums, *paid("a", "c")) == {"sum": [("a", 2), ("c", 1)]}

    def more_key_groups(env, paid):
        env.set_max_parallelism(512)
        return {"sum": sums(paid)}

    assert then.from_savepoint(more_key_groups, *paid("b", "a"), parallelism=3) == {"sum": [("a", 2), ("b", 2)]}


def test_an_operator_without_a_shuffle_more_or_less(tmp_path: Path) -> None:
    def more(env, paid):
        before = paid.filter(lambda value: value.card != "x").map(lambda value: value).name("before")
        return {"sum": sums(before).map(lambda pair: (*pair, "behind")).name("behind")}

    then = Changed(only_sums, paid("a"), tmp_path / "one")
    assert then.goes_on(more, *paid("a", "x")) == {"sum": [("a", 2, "behind")]}
    then = Changed(more, paid("a", "x"), tmp_path / "other")
    assert then.goes_on(only_sums, *paid("a", "x")) == {"sum": [("a", 2), ("x", 1)]}


def test_another_first_operator_after_a_shuffle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def asking(first: bool) -> Any:
        def build(env, paid):
            keyed = paid.key_by("card")
            keyed = keyed.map(lambda record: record).uid("first") if first else keyed
            return {"asked": keyed.map_async(ask, on_barrier="carry", timeout=None).uid("ask")}

        return build

    ANSWERING.clear()
    then = Changed(asking(first=False), paid("a", "b"), tmp_path / "one")
    added = "operator 'ask' was the first of its chain, and now follows 'first', and a chain's state is stored under"
    assert added in then.refusal(asking(first=True))
    assert not then.compared(asking(first=True)).survives_savepoint
    with pytest.raises(CheckpointMismatchError, match=f"{added}.*: add 'first' before the shuffle, or after 'ask'; or"):
        then.from_savepoint(asking(first=True))
    ANSWERING.set()
    assert then.from_savepoint(asking(first=True), allow_non_restored_state=True) == {"asked": []}
    assert "operator 'ask' is left behind: 0 rows, and lists or carried records of 'ask'" in caplog.text

    ANSWERING.clear()
    then = Changed(asking(first=True), paid("a"), tmp_path / "other")
    removed = "operator 'ask' followed 'first', and is now the first of its chain, and a chain's state is stored under"
    assert removed in then.refusal(asking(first=False))
    with pytest.raises(CheckpointMismatchError, match=f"{removed}.*: keep 'first' or, if it has no state, replace"):
        then.from_savepoint(asking(first=False))


def test_an_operator_with_state_of_its_own_more_or_less(tmp_path: Path) -> None:
    def more(env, paid):
        return {"sum": sums(paid).map(Seen()).uid("seen")}

    then = Changed(only_sums, paid("a"), tmp_path / "one")
    assert then.goes_on(more, *paid("a")) == {"sum": [("a", 2)]}
    then = Changed(more, paid("a"), tmp_path / "other")
    with pytest.raises(
        CheckpointMismatchError, match=r"holds the list state 'seen/seen' .* which no function asks for"
    ):
        then.goes_on(only_sums, *paid("a"))
    with pytest.raises(CheckpointMismatchError, match=r"it contains state of 'seen', but the program has no"):
        then.from_savepoint(only_sums, *paid("a"))
    assert then.from_savepoint(only_sums, *paid("a"), allow_non_restored_state=True) == {"sum": [("a", 2)]}


def test_a_keyed_operator_more_or_less(tmp_path: Path) -> None:
    def behind(env, paid):
        return {"sum": sums(paid), "more": sums(paid, uid="more")}

    def before(env, paid):
        return {"more": sums(paid, uid="more"), "sum": sums(paid)}

    def a_level_more(env, paid):
        again = sums(paid).map(lambda pair: row(card=pair[0], n=pair[1]))
        return {"sum": sums(again, uid="more")}

    then = Changed(only_sums, paid("a", "b"), tmp_path / "one")
    assert then.goes_on(behind, *paid("a", "c")) == {"sum": [("a", 2), ("c", 1)], "more": [("a", 1), ("c", 1)]}
    assert "operator 'sum' has another position in the program, where its state is not found: add 'more' after" in (
        then.refusal(before)
    )
    assert "there was 1 shuffle, and now there are 2 ('more' added)" in then.refusal(a_level_more)
    assert then.from_savepoint(before, *paid("a")) == {"sum": [("a", 2)], "more": [("a", 1)]}
    assert then.from_savepoint(a_level_more, *paid("a")) == {"sum": [("a", 2)]}

    then = Changed(behind, paid("a"), tmp_path / "other")
    assert "it contains state of 'more', but the program has no such operator" in then.refusal(only_sums)
    with pytest.raises(CheckpointMismatchError, match="it contains state of 'more', but the program has no"):
        then.from_savepoint(only_sums)
    assert then.from_savepoint(only_sums, *paid("a"), allow_non_restored_state=True) == {"sum": [("a", 2)]}


def test_names_of_functions_and_of_operators(tmp_path: Path) -> None:
    then = Changed(only_sums, paid("a"), tmp_path / "one")

    def named(env, paid):
        return {"sum": sums(paid.map(lambda record: record), Renamed()).name("of cards").map(lambda pair: pair)}

    assert then.goes_on(named, *paid("a")) == {"sum": [("a", 2)]}

    then = Changed(lambda env, paid: {"sum": sums(paid, uid=None)}, paid("a"), tmp_path / "other")
    renamed = then.goes_on(lambda env, paid: {"sum": sums(paid, Renamed(), uid=None)}, *paid("a"))
    assert renamed == {"sum": [("a", 2)]}
    former = then.compared(only_sums).refused[0].split("'")[1]
    refusal = then.refusal(lambda env, paid: {"sum": sums(paid.map(lambda record: record), uid=None)})
    assert f"it contains state of '{former}', but the program has no such operator (but has '" in refusal
    assert ": set uid() to the old uid)" in refusal
    mended = then.goes_on(lambda env, paid: {"sum": sums(paid.map(lambda record: record), uid=former)}, *paid("a"))
    assert mended == {"sum": [("a", 2)]}


def test_the_order_of_the_operators(tmp_path: Path) -> None:
    def in_order(*uids: str) -> Any:
        return lambda env, paid: {uid: sums(paid, uid=uid) for uid in uids}

    then = Changed(in_order("one", "other"), paid("a", "b"), tmp_path)
    refusal = then.refusal(in_order("other", "one"))
    assert "operator 'one' has another position in the program, where its state is not found" in refusal
    results = then.from_savepoint(in_order("other", "one"), *paid("a"))
    assert results == {"other": [("a", 2)], "one": [("a", 2)]}


def test_the_key(tmp_path: Path) -> None:
    def by(key: Any) -> Any:
        return lambda env, paid: {"sum": paid.key_by(key).process(Sum()).uid("sum")}

    def of_card(value):
        return value.card

    def of_card_in_another_place(value):
        return value.card

    then = Changed(only_sums, paid("a"), tmp_path / "columns")
    assert "the key was the column card, and is the column n; old and new keys would mix in one state" in (
        then.refusal(by("n"))
    )
    then = Changed(by(of_card), paid("a"), tmp_path / "function")
    assert then.goes_on(by(of_card_in_another_place), *paid("a")) == {"sum": [("a", 2)]}
    assert "old and new keys may mix in one state" in then.compared(by(lambda value: value.n)).doubtful[0]
    with pytest.raises(CheckpointMismatchError, match="the key was the column card, and is the column n"):
        Changed(only_sums, paid("a"), tmp_path / "savepoint").from_savepoint(by("n"))


@pytest.mark.parametrize("path", ["checkpoint", "savepoint"])
def test_a_key_type_that_is_declared_later(tmp_path: Path, path: str) -> None:
    """If keys of another type were accepted, no record would find its state."""

    def by(key_type: Any = None) -> Any:
        return lambda env, paid: {"sum": paid.key_by("card", key_type=key_type).process(Sum()).uid("sum")}

    then = Changed(by(), paid("a", "1"), tmp_path / "texts")
    resume = then.goes_on if path == "checkpoint" else then.from_savepoint
    assert resume(by(Types.STRING()), *paid("a")) == {"sum": [("a", 2)]}
    with pytest.raises(
        CheckpointMismatchError,
        match=r"'sum': the checkpoint contains the key '(a|1)' \(str\), but the program declares keys of another.* int",
    ):
        resume(by(Types.LONG()), row(card=1, n=1, at=1_000))

    then = Changed(by(), [row(card=card, n=1, at=1_000) for card in (1, 2.0, None)], tmp_path / "numbers")
    resume = then.goes_on if path == "checkpoint" else then.from_savepoint
    numbers = [row(card=card, n=1, at=2_000) for card in (1, 2, None)]
    assert resume(by(Types.LONG()), *numbers) == {"sum": [(1, 2), (2, 2), (None, 2)]}


def test_dead_letters_come_and_go(tmp_path: Path) -> None:
    class Picky(Sum):
        def process_element(self, value, ctx):
            if value.card == "x":
                raise ValueError("x")
            return super().process_element(value, ctx)

    def with_letters(env, paid):
        result = paid.key_by("card").process(Picky(), on_error=BAD).uid("sum")
        return {"sum": result, "bad": result.get_side_output(BAD).map(lambda letter: letter.value.card)}

    then = Changed(only_sums, paid("a"), tmp_path / "one")
    assert then.goes_on(with_letters, *paid("a", "x")) == {"sum": [("a", 2)], "bad": ["x"]}
    then = Changed(with_letters, paid("a", "x"), tmp_path / "other")
    assert then.goes_on(only_sums, *paid("a", "x")) == {"sum": [("a", 2), ("x", 1)]}


# -- event time --


class Count(WindowFunction):
    def apply(self, key, window, inputs):
        yield key, window.start, len(list(inputs))


def windowed(strategy: Any) -> Any:
    def build(env, paid):
        timed = paid.assign_timestamps_and_watermarks(strategy).key_by("card")
        return {"windows": timed.window(TumblingEventTimeWindows.of("1 second")).apply(Count()).uid("windows")}

    return build


def test_another_watermark_strategy(tmp_path: Path) -> None:
    lenient = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("at")
    then = Changed(windowed(AT), [row(card="a", at=at) for at in (1_000, 2_500)], tmp_path)
    late, early = row(card="a", at=1_500), row(card="a", at=2_600)
    assert then.goes_on(windowed(lenient), late, early) == {"windows": []}
    assert then.goes_on(windowed(lenient), late, early, row(card="a", at=8_500)) == {"windows": [("a", 2_000, 2)]}
    for silent in (AT.with_idleness("1 minute"), AT.with_wall_clock_progress("1 minute")):
        refusal = then.refusal(windowed(silent))
        assert "it did not use processing time (timers, idleness or carried requests), but now does" in refusal
        assert then.from_savepoint(windowed(silent), early, row(card="a", at=3_500)) == {"windows": [("a", 2_000, 2)]}
    timed = Changed(windowed(AT.with_idleness("1 minute")), [row(card="a", at=2_500)], tmp_path / "timed")
    assert timed.goes_on(windowed(AT.with_idleness("1 hour")), row(card="a", at=3_500)) == {
        "windows": [("a", 2_000, 1)]
    }


MORE = Types.ROW_NAMED(["card", "n", "at", "shop"], [Types.STRING(), Types.LONG(), Types.LONG(), Types.STRING()])
PAID = Types.ROW_NAMED(["card", "n", "at"], [Types.STRING(), Types.LONG(), Types.LONG()])


@pytest.mark.parametrize("columns", [False, True])
def test_the_time_zone_of_days(tmp_path: Path, columns: bool) -> None:
    def days(zone: str | None) -> Any:
        def build(env, paid):
            timed = paid.map(tuple, output_type=PAID).assign_timestamps_and_watermarks(AT).key_by("card")
            days = timed.window(TumblingEventTimeWindows.of("1 day", time_zone=zone))
            if columns:
                return {"days": days.aggregate(n=count_()).map(lambda day: (day.card, day.n)).uid("told")}
            return {"days": days.apply(Count()).uid("days")}

        return build

    hour = 3_600_000
    then = Changed(days("UTC"), [row(card="a", n=1, at=hour)], tmp_path)
    more = row(card="a", n=1, at=2 * hour), row(card="a", n=1, at=100 * hour)
    if columns:
        with pytest.raises(CheckpointMismatchError, match=r"windows of another kind: it has panes of .*UTC, but the"):
            then.goes_on(days("Asia/Tokyo"), *more)
    else:
        results = then.goes_on(days("Asia/Tokyo"), *more)
        assert results == {"days": [("a", -9 * hour, 1), ("a", 0, 1)]}


# -- aggregates and joins of columns, intervals --


def test_aggregates_of_columns(tmp_path: Path) -> None:
    """An additional aggregate is refused, because rows are not stored."""

    def build(uid: str, **aggregates: Any) -> Any:
        def built(env, paid):
            timed = paid.map(tuple, output_type=PAID).assign_timestamps_and_watermarks(AT).key_by("card")
            windows = timed.window(TumblingEventTimeWindows.of("1 second")).aggregate(**aggregates).uid(uid)
            return {"sum": windows.map(lambda window: tuple(window[3:]))}

        return built

    then = Changed(build("sum", n=sum_("n")), paid("a"), tmp_path)
    last = row(card="a", n=1, at=9_000)
    with pytest.raises(
        CheckpointMismatchError, match=r"windows with other aggregates: it has card, n: sum_\('n'\)\[0\]"
    ):
        then.goes_on(build("sum", n=sum_("n"), most=max_("n")), last)
    assert then.goes_on(build("sum", n=sum_("n"), all=count_()), *paid("a"), last) == {"sum": [(2, 2)]}, (
        "rows are known"
    )
    other = build("both", n=sum_("n"), most=max_("n"))
    assert "set uid() to the old uid" in then.refusal(other)
    results = then.from_savepoint(other, *paid("a"), last, allow_non_restored_state=True)
    assert results == {"sum": [(1, 1)]}


@pytest.mark.parametrize("columns", [False, True])
def test_the_bounds_of_a_join(tmp_path: Path, columns: bool) -> None:
    def within(lower: int, upper: int) -> Any:
        def build(env, paid):
            timed = paid.map(tuple, output_type=PAID).assign_timestamps_and_watermarks(AT)
            left, right = (timed.filter(lambda record, n=n: record.n == n) for n in (1, 2))
            near = left.key_by("card").interval_join(right.key_by("card")).between(lower, upper)
            if columns:
                pairs = near.columns(suffixes=("", "_right")).uid("pairs").map(lambda pair: (pair.at, pair.at_right))
            else:
                pairs = near.process(lambda left, right, ctx: [(left.at, right.at)]).uid("pairs")
            return {"pairs": pairs}

        return build

    def at(*times: int) -> list[Any]:
        return [row(card="a", n=1 if time > 0 else 2, at=abs(time)) for time in times]

    then = Changed(within(-10, 0), at(-100, 105, 115), tmp_path)  # event time is 114: 100 has expired
    assert then.goes_on(within(-20, 0), *at(-116, 117, 130)) == {"pairs": [(117, 116), (130, 116)]}
    assert then.goes_on(within(-10, 20), *at(-116, 117, -130)) == {
        "pairs": [(115, 116), (115, 130), (117, 116), (117, 130)]
    }
    assert then.goes_on(within(0, 0), *at(-116, 116)) == {"pairs": [(116, 116)]}


def test_joins_of_columns(tmp_path: Path) -> None:
    def joined(how: Any, uid: str = "pairs", more: bool = False) -> Any:
        def build(env, paid):
            columns = MORE if more else PAID
            rows = paid.map(lambda record: (*record, *(["s"] if more else [])), output_type=columns)
            timed = rows.assign_timestamps_and_watermarks(AT)
            left, right = (timed.filter(lambda record, n=n: record.n == n).key_by("card") for n in (1, 2))
            pairs = left.interval_join(right).between(-10, 10).columns(how, suffixes=("", "_right")).uid(uid)
            return {"pairs": pairs.map(lambda pair: (pair.at, pair.at_right))}

        return build

    first = [row(card="a", n=n, at=at) for n, at in ((1, 100), (2, 101), (1, 105))]
    more = [row(card="a", n=n, at=at) for n, at in ((2, 106), (1, 200))]
    then = Changed(joined("inner"), first, tmp_path / "inner")
    for changed, says in (
        (joined("left"), "left rows of an inner join, which does not store whether a row has matched"),
        (joined("inner", more=True), "rows with different columns: they have card string, n int64, at int64, but the"),
    ):
        with pytest.raises(CheckpointMismatchError, match=says):
            then.goes_on(changed, *more)
    results = then.from_savepoint(joined("left", "others"), *more, allow_non_restored_state=True)
    assert results == {"pairs": []}, "the last row waits, and those before were left behind"
    then = Changed(joined("left"), first, tmp_path / "left")
    assert then.goes_on(joined("inner"), *more) == {"pairs": [(100, 106), (105, 106)]}
    assert then.goes_on(joined("left"), *more, ends=True) == {"pairs": [(100, 106), (105, 106), (200, None)]}


def places_of(harness: ProgramTestHarness) -> list[str]:
    (task,) = harness._job._tasks.values()
    task.backend.set_current_key(0)
    return sorted({namespace[0] for namespace in task.backend.get_namespaces()})


def test_a_left_join_that_becomes_an_inner_one() -> None:
    def joined(how: Any) -> Any:
        def build(env, paid):
            timed = paid.map(tuple, output_type=PAID).assign_timestamps_and_watermarks(AT)
            left, right = (timed.filter(lambda record, n=n: record.n == n).key_by("card") for n in (1, 2))
            pairs = left.interval_join(right).between(-10, 10).columns(how, suffixes=("", "_right")).uid("pairs")
            return {"pairs": pairs.map(lambda pair: (pair.at, pair.at_right))}

        return build

    first = [row(card="a", n=n, at=at) for n, at in ((1, 100), (2, 101), (1, 105))]
    with ProgramTestHarness(joined("left")) as h:
        h.push("paid", *first)
        h.run_epoch()
        assert places_of(h) == ["left", "matches", "right"]
        saved = h.snapshot()
    with ProgramTestHarness(joined("inner"), snapshot=saved) as h:
        h.push("paid", row(card="a", n=2, at=106))
        assert h.run_epoch() == {"pairs": [(100, 106), (105, 106)]}
        assert places_of(h) == ["left", "right"]
        h.run_epoch()
        assert places_of(h) == ["left", "right"]
        saved = h.snapshot()
    refused = pytest.raises(CheckpointMismatchError, match="left rows of an inner join")
    with ProgramTestHarness(joined("left"), snapshot=saved) as h, refused:
        h.run_epoch()


def test_the_first_operator_before_a_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def joined(*, untouched: bool, uid: str = "pairs") -> Any:
        def build(env, paid):
            timed = paid.map(tuple, output_type=PAID).assign_timestamps_and_watermarks(AT)
            left, right = (timed.filter(lambda record, n=n: record.n == n).key_by("card") for n in (1, 2))
            monkeypatch.setattr(columnar_joins, "_is_untouched", lambda step: untouched)
            near = left.interval_join(right).between(-10, 10)
            return {"pairs": near.process(lambda left, right, ctx: [(left.at, right.at)]).uid(uid)}

        return build

    first, more = row(card="a", n=1, at=100), [row(card="a", n=n, at=106) for n in (1, 2)]
    for then in (True, False):
        changed = Changed(joined(untouched=then), [first], tmp_path / str(then))
        assert changed.goes_on(joined(untouched=then), *more) == {"pairs": [(100, 106), (106, 106)]}
        with pytest.raises(CheckpointMismatchError, match="give it another uid\\(\\) and start from a savepoint"):
            changed.goes_on(joined(untouched=not then), *more)
        another = joined(untouched=not then, uid="others")
        results = changed.from_savepoint(another, *more, allow_non_restored_state=True)
        assert results == {"pairs": [(106, 106)]}


# -- broadcast state --


class Rules(BroadcastProcessFunction):
    def __init__(self, descriptor: Any) -> None:
        self.descriptor = descriptor

    def process_element(self, value, ctx):
        yield value.card, dict(ctx.get_broadcast_state(self.descriptor).items())

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(self.descriptor).put(value.card, value.n)


def test_the_descriptor_of_broadcast_state(tmp_path: Path) -> None:
    def build(descriptor: Any) -> Any:
        def built(env, paid):
            rules = paid.filter(lambda record: record.n == 2).broadcast(descriptor)
            return {"told": paid.rebalance().connect(rules).process(Rules(descriptor)).uid("rules")}

        return built

    then = Changed(build(MapStateDescriptor("rules")), [row(card="r", n=2)], tmp_path)
    expected = {"told": [("a", {"r": 2})]}
    assert then.goes_on(build(MapStateDescriptor("limits").renamed_from("rules")), row(card="a", n=1)) == expected
    with pytest.raises(CheckpointMismatchError, match=r"the checkpoint holds .*'rules' .*renamed_from\('rules'\)"):
        then.goes_on(build(MapStateDescriptor("limits")), row(card="a", n=1))


# -- async functions --

ANSWERING = threading.Event()


async def ask(value):
    while not ANSWERING.is_set():
        await asyncio.sleep(0.002)
    return value.card


@pytest.mark.parametrize(
    "options",
    [
        {"capacity": 1},
        {"capacity": 5, "timeout": "1 hour", "retry": 3},
        {"ordered": False},
        {"on_barrier": "drain"},
        {"rate_limit": 1e7, "on_failure": "drop"},
    ],
    ids=repr,
)
def test_options_of_async_functions(tmp_path: Path, options: dict[str, Any]) -> None:
    def build(**options: Any) -> Any:
        def built(env, paid):
            asked = paid.key_by("card").process(Pass()).uid("pass")
            return {"asked": asked.map_async(ask, **{"on_barrier": "carry", "timeout": None, **options}).uid("ask")}

        return built

    ANSWERING.clear()
    then = Changed(build(), paid(*"abcdefg"), tmp_path)
    ANSWERING.set()
    if options.get("on_barrier") == "drain":
        assert "it used processing time (timers, idleness or carried requests), but now does not" in (
            then.refusal(build(**options))
        )
        assert then.from_savepoint(build(**options), *paid("h")) == {"asked": [*"abcdefgh"]}
    else:
        assert then.goes_on(build(**options), *paid("h"), ends=True) == {"asked": [*"abcdefgh"]}


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


def test_an_async_function_less_with_requests_under_way(tmp_path: Path) -> None:
    def built(env, paid):
        asked = paid.key_by("card").process(Pass()).uid("pass")
        return {"asked": asked.map_async(ask, on_barrier="carry", timeout=None).uid("ask")}

    def less(env, paid):
        return {
            "asked": paid.key_by("card")
            .process(Pass(), processing_time=True)
            .uid("pass")
            .map(lambda record: record.card)
        }

    ANSWERING.clear()
    then = Changed(built, paid("a"), tmp_path)
    with pytest.raises(CheckpointMismatchError, match="unfinished work of operator 'ask', but the program"):
        then.goes_on(less)
    with pytest.raises(CheckpointMismatchError, match="it contains state of 'ask', but the program has no"):
        then.from_savepoint(less)
