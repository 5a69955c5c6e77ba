"""An operator's state depends on program settings, which are stored with it. Different settings are refused.

Each refused setting would silently cause wrong results, such as lost windows. Accepted settings give right results.
"""

from __future__ import annotations

import logging
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pillarbox import (
    CheckpointMismatchError,
    CountEvictor,
    CountTrigger,
    GlobalWindows,
    KeyedCoProcessFunction,
    OutputTag,
    ProcessFunction,
    PurgingTrigger,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    WindowFunction,
)
from pillarbox._graph.description import DescriptionDifferences
from pillarbox._state.chunks.head import META
from pillarbox._state.keys.state_note import kept_inputs, state_change
from pillarbox.testing import row
from tests.data import make_dependence
from tests.data.make_checkpoint import load
from tests.support.begun import Begun, Made

PAID = Types.ROW_NAMED(["card", "at", "n", "m"], [Types.STRING(), Types.LONG(), Types.LONG(), Types.LONG()])


def paid(*times: int, card: str = "a", n: int = 1) -> list[Any]:
    return [row(card=card, at=at, n=n, m=at) for at in times]


# -- windows --


class Times(WindowFunction):
    def apply(self, key, window, inputs):
        yield [input_.at for input_ in inputs]


WINDOWS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "count 3": ("windows of 3 records", lambda keyed: keyed.count_window(3)),
    "count 5": ("windows of 5 records", lambda keyed: keyed.count_window(5)),
    "count 3 by 1": ("windows of 3 records, one each 1", lambda keyed: keyed.count_window(3, 1)),
    "count 3 by 2": ("windows of 3 records, one each 2", lambda keyed: keyed.count_window(3, 2)),
    "global": (
        "a window for each key",
        lambda keyed: keyed.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(3))),
    ),
    "event time": ("windows of event time", lambda keyed: keyed.window(TumblingEventTimeWindows.of(10))),
    "processing time": ("windows of processing time", lambda keyed: keyed.window(TumblingProcessingTimeWindows.of(10))),
}


def windows(kind: str, how: str = "elements") -> Made:
    def make(left, right):
        result = WINDOWS[kind][1](left.key_by("card"))
        return result.apply(Times()) if how == "elements" else result.sum("n")

    return make


@pytest.mark.parametrize("how", ["elements", "folded"])
@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("count 3", "count 5"),
        ("count 5", "count 3"),
        ("count 3", "count 3 by 1"),
        ("count 3 by 1", "count 3 by 2"),
        ("count 3 by 2", "count 5"),
        ("count 3", "event time"),
        ("event time", "count 3"),
        ("global", "count 3"),
        ("global", "event time"),
        ("event time", "global"),
        ("event time", "processing time"),
        ("processing time", "event time"),
    ],
)
def test_other_windows_are_refused(tmp_path: Path, then: str, now: str, how: str) -> None:
    begun = Begun(windows(then, how), tmp_path, left=paid(1, 2))
    begun.refuses(windows(now, how), f"'op': it kept {WINDOWS[then][0]}, and keeps {WINDOWS[now][0]}")


def test_the_same_windows_said_in_another_way_go_on(tmp_path: Path) -> None:
    begun = Begun(windows("count 3"), tmp_path, left=paid(1, 2))
    same = lambda left, right: left.key_by("card").count_window(3, 3).apply(Times())  # noqa: E731
    assert begun.compared(same) == DescriptionDifferences()
    assert begun.resumes(same, left=paid(3, 4)) == [[1, 2, 3]]


def test_a_trigger_of_global_windows_may_be_another(tmp_path: Path) -> None:
    begun = Begun(windows("global"), tmp_path, left=paid(1, 2))

    def five(left, right):
        every = left.key_by("card").window(GlobalWindows.create())
        return every.trigger(PurgingTrigger.of(CountTrigger.of(5))).apply(Times())

    assert begun.resumes(five, left=paid(3, 4, 5, 6)) == [[1, 2, 3, 4, 5]]


def test_an_evictor_comes_and_goes(tmp_path: Path) -> None:
    def last_two(left, right):
        return left.key_by("card").count_window(3).evictor(CountEvictor.of(2)).apply(Times())

    assert Begun(windows("count 3"), tmp_path / "1", left=paid(1, 2)).resumes(last_two, left=paid(3)) == [[2, 3]]
    assert Begun(last_two, tmp_path / "2", left=paid(1, 2)).resumes(windows("count 3"), left=paid(3)) == [[1, 2, 3]]


# -- two inputs --


def near(left: Any, right: Any) -> Any:
    return left.key_by("card").interval_join(right.key_by("card")).between(-10, 10)


def pair(left: Any, right: Any) -> list[tuple[int, int]]:
    return [(left.n, right.n)]


def near_pairs(left: Any, right: Any) -> Any:
    return near(left, right).process(lambda a, b, ctx: pair(a, b))


def swapped(make: Made) -> Made:
    return lambda left, right: make(right, left)


def test_steps_before_a_join_come_and_go(tmp_path: Path) -> None:
    make = near_pairs

    def longer(left, right):
        return make(
            left.filter(lambda record: True).map(lambda record: record).uid("same"), right.filter(lambda record: True)
        )

    for then, now, folder in ((make, longer, "1"), (longer, make, "2")):
        begun = Begun(then, tmp_path / folder, left=paid(1, n=1))
        assert begun.compared(now) == DescriptionDifferences()
        assert begun.resumes(now, right=paid(2, n=2)) == [(1, 2)]
    begun.refuses(swapped(longer), "'op': its inputs have changed places")


BIG: OutputTag[Any] = OutputTag("big", PAID)


class Split(ProcessFunction):
    def process_element(self, value, ctx):
        yield (BIG, value) if value.n > 1 else value


def with_uids(left: Any, right: Any) -> Any:
    return near_pairs(left.filter(small).uid("small"), left.filter(big).uid("big"))


def with_tags(left: Any, right: Any) -> Any:
    parts = left.process(Split())
    return near_pairs(parts, parts.get_side_output(BIG))


def of_one_split_otherwise(left: Any, right: Any) -> Any:
    parts = left.process(Split())
    return near_pairs(parts.get_side_output(BIG), parts)


def small(record: Any) -> bool:
    return bool(record.n == 1)


def big(record: Any) -> bool:
    return bool(record.n > 1)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (
            with_uids,
            lambda left, right: near_pairs(left.filter(big).uid("big"), left.filter(small).uid("small")),
        ),
        (with_tags, of_one_split_otherwise),
    ],
    ids=["uids", "side outputs"],
)
def test_a_stream_that_is_joined_with_itself(tmp_path: Path, then: Made, now: Made) -> None:
    begun = Begun(then, tmp_path, left=paid(1, n=1))
    begun.refuses(now, "'op': its inputs have changed places")
    assert begun.resumes(then, left=paid(2, n=2)) == [(1, 2)]


def test_a_dependency_found_by_position_alone_is_a_warning(tmp_path: Path, caplog: Any) -> None:
    def joined(left, right):
        smalls, larges = left.filter(small), left.filter(big)
        return near_pairs(smalls, larges)

    def moved(left, right):
        larges, smalls = left.filter(big), left.filter(small)
        return near_pairs(smalls, larges)

    begun = Begun(joined, tmp_path, left=paid(1, n=1))
    compared = begun.compared(moved)
    assert not compared.refused and "unless only their definitions have" in compared.doubtful[0]
    with caplog.at_level(logging.WARNING, "pillarbox"):
        assert begun.resumes(moved, left=paid(2, n=2)) == [(1, 2)]
    assert {"its inputs have changed places" in record.getMessage() for record in caplog.records} == {True}


class Tell(KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        yield "first", value.n

    def process_element2(self, value, ctx):
        yield "second", value.n


def test_connected_streams_that_change_places_are_a_warning(tmp_path: Path) -> None:
    def make(left, right):
        return left.key_by("card").connect(right.key_by("card")).process(Tell())

    begun = Begun(make, tmp_path, left=paid(1))
    compared = begun.compared(swapped(make))
    assert not compared.refused and "its inputs have changed places" in compared.doubtful[0]
    assert begun.resumes(swapped(make), left=paid(2, n=2)) == [("second", 2)]


# -- the note --


def test_dependencies_without_a_note_are_not_compared() -> None:
    now = {"windows": "windows of 3 records", "sides": [{"names": ["source 'left'"]}, {"names": ["source 'right'"]}]}
    before: list[Any] = [None, {}, {"fold": "sum('n')"}, {"sides": [{}, {}]}]
    for then in before:
        assert state_change(then, now) is None and state_change(now, then) is None


def test_inputs_that_are_new_have_not_changed_places() -> None:
    nothing: list[set[str]] = [set(), set()]
    then = kept_inputs([{"a"}, {"b"}], nothing)
    for names in ([{"a", "c"}, {"b"}], [{"a", "b"}, {"c"}], [{"c"}, {"b"}], [{"c"}, {"d"}], [{"a"}, {"a", "b"}]):
        assert state_change({"sides": then}, {"sides": kept_inputs(names, nothing)}) is None
    for names in ([{"b"}, {"a"}], [{"b", "c"}, {"a"}], [{"b"}, {"c"}]):
        surely, _ = state_change({"sides": then}, {"sides": kept_inputs(names, nothing)}) or (False, "")
        assert surely


# -- stored notes --


def test_the_golden_checkpoint_goes_on_and_refuses_what_it_notes() -> None:
    rest = make_dependence.RECORDS[4:]
    with make_dependence.job() as undisturbed:
        make_dependence.run(undisturbed, make_dependence.RECORDS[:4])
        expected = make_dependence.run(undisturbed, rest, bounded=True)
    assert all(expected.values())
    loaded = load(make_dependence.PATH)
    with make_dependence.job(loaded) as golden:
        assert make_dependence.run(golden, rest, bounded=True) == expected
    changes: list[tuple[dict[str, Any], str]] = [
        ({"size": 4}, "'counted': it kept windows of 3 records, and keeps windows of 4 records"),
        ({"field": "fee"}, r"'folded': it kept sum\('amount'\), and keeps sum\('fee'\)"),
        ({"swaps": True}, "'joined': its inputs have changed places: the first one came from 'small'"),
    ]
    for change, words in changes:
        with make_dependence.job(loaded, **change) as golden, pytest.raises(CheckpointMismatchError, match=words):
            make_dependence.run(golden, rest)


def test_a_checkpoint_of_before_goes_on() -> None:
    loaded = load(make_dependence.PATH)
    for store in loaded.values():
        head = store.chunks[META]
        content = pickle.loads(head[15:])
        del content["depends_on"]
        body = pickle.dumps(content, protocol=5)
        store.chunks[META] = head[:11] + zlib.crc32(body).to_bytes(4, "little") + body
    with make_dependence.job(loaded, field="fee") as changed:
        make_dependence.run(changed, make_dependence.RECORDS[4:])
        after = changed.savepoint()
    with make_dependence.job(after) as back, pytest.raises(CheckpointMismatchError, match="'folded': it kept sum"):
        make_dependence.run(back, [])
