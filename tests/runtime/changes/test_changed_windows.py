"""Programs with a different size, kind or allowed lateness of windows resume from existing state.

An element belongs to the windows of the program that received it, so open windows keep their bounds. State in panes
cannot change to a different slide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from itertools import chain
from typing import Any

import pytest

from pillarbox import (
    CheckpointMismatchError,
    ContinuousEventTimeTrigger,
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
    WindowFunction,
    sum_,
)
from pillarbox.testing import ProgramTestHarness, row

_LONG = pytest.mark.long("other windows and other latenesses show it")
BY_AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
PAID = Types.ROW_NAMED(["card", "at", "n"], [Types.STRING(), Types.LONG(), Types.LONG()])
WINDOWS: dict[str, Any] = {
    "tumbling 10": TumblingEventTimeWindows.of(10),
    "tumbling 7": TumblingEventTimeWindows.of(7),
    "sliding 20/5": SlidingEventTimeWindows.of(20, 5),
    "sliding 20/10": SlidingEventTimeWindows.of(20, 10),
    "cumulating 20/5": CumulativeEventTimeWindows.of(20, 5),
    "sessions 5": EventTimeSessionWindows.with_gap(5),
    "sessions 3": EventTimeSessionWindows.with_gap(3),
}


class Sum(WindowFunction):
    def apply(self, key, window, inputs):
        yield key, window.start, window.end, sum(value.n for value in inputs)


class Tell(ProcessWindowFunction):
    def process(self, key, context, elements):
        (folded,) = elements
        yield key, context.window().start, context.window().end, folded.n


def program(how: str, assigner: Any, lateness: int = 0, trigger: Any = None) -> Any:
    def build(env, paid):
        if how == "columns":
            paid = paid.map(tuple, output_type=PAID)
        windows = paid.assign_timestamps_and_watermarks(BY_AT).key_by("card").window(assigner)
        windows = windows.allowed_lateness(lateness)
        if trigger is not None:
            windows = windows.trigger(trigger)
        if how == "columns":
            return windows.aggregate(n=sum_("n")).map(lambda window: (window.card, *map(millis, window[1:3]), window.n))
        if how == "elements":
            return windows.apply(Sum())
        return windows.reduce(lambda window, other: row(card=window.card, at=window.at, n=window.n + other.n), Tell())

    return build


def millis(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def paid(card: str, times: Iterable[int]) -> list[Any]:
    return [row(card=card, at=at, n=1) for at in times]


def run(then: Any, now: Any, *epochs: list[Any], left: int = 1) -> list[list[Any]]:
    with ProgramTestHarness(then) as harness:
        harness.push_all("paid", epochs[0])
        outputs = [harness.run_epoch()["output"]]
        snapshot = harness.snapshot()
    with ProgramTestHarness(now, snapshot=snapshot) as harness:
        for epoch in epochs[1:]:
            harness.push_all("paid", epoch)
            outputs.append(harness.run_epoch()["output"])
        # Only the last key has state.
        assert sum(task.backend.num_keys for task in harness._job._tasks.values()) <= left
        return [*outputs, harness.end_input()["output"]]


# Windows of other programs whose state is sufficient.
GO_ON = {
    ("elements", then): [name for name in WINDOWS if name != then]
    for then in WINDOWS
    if not then.startswith("sessions")
}
for _how in ("elements", "folded", "columns"):
    GO_ON[_how, "sessions 5"] = ["sessions 3"]
    GO_ON[_how, "sessions 3"] = ["sessions 5"]
GO_ON["folded", "tumbling 10"] = ["tumbling 7"]
GO_ON["folded", "tumbling 7"] = ["tumbling 10"]


@pytest.mark.parametrize("then", WINDOWS)
@pytest.mark.parametrize("how", ["elements", "folded", "columns"])
def test_windows_of_another_kind_or_size(how: str, then: str) -> None:
    parts = paid("c", range(13)), paid("c", range(13, 25)), paid("d", [1_000])
    for now, assigner in WINDOWS.items():
        if now == then:
            continue
        if now not in GO_ON.get((how, then), ()):
            with pytest.raises(
                CheckpointMismatchError, match=r"does not declare in open|windows of another kind: it has"
            ):
                run(program(how, WINDOWS[then]), program(how, assigner), *parts)
            continue
        counts = Counter[Any]()
        for card, *window, n in chain(*run(program(how, WINDOWS[then]), program(how, assigner), *parts)):
            counts.update({tuple(window): n} if card == "c" else {})
        if "sessions" in now:
            began = 0 if "sessions" in then else 13
            assert counts.pop((began, 24 + int(now[-1]))) == 25 - began
        expected = Counter[Any]()
        for at in range(25):
            name = then if at < 13 else now
            expected.update(map(tuple, () if "sessions" in name else WINDOWS[name].assign_windows(None, at, None)))
        assert counts == expected


@pytest.mark.parametrize(
    "kind", ["tumbling 10", "sliding 20/5", pytest.param("cumulating 20/5", marks=_LONG), "sessions 5"]
)
@pytest.mark.parametrize("how", ["elements", "folded", "columns"])
@pytest.mark.parametrize(
    ("then", "now"), [(0, 20), (20, 0), pytest.param(20, 40, marks=_LONG), pytest.param(40, 20, marks=_LONG)]
)
def test_another_allowed_lateness(how: str, kind: str, then: int, now: int) -> None:
    # By the second epoch, event time is 11: the first session, and windows up to 10, have fired.
    build = program(how, WINDOWS[kind], then), program(how, WINDOWS[kind], now)
    first = paid("c", [1, 2, 12])
    undisturbed = run(build[0], build[0], first, paid("d", [1_000]), [])
    assert run(*build, first, paid("d", [1_000]), []) == undisturbed
    (_, again, *_) = run(*build, first, paid("c", [3]), paid("d", [1_000]))
    if now == 0 and (how, kind) != ("folded", "sessions 5"):  # sessions are in no hurry to go
        assert all(end > 11 for _, _, end, _ in again)
    if now:
        assert {(start, end) for _, start, end, _ in again if end <= 10}, "late, and allowed: its windows fire again"


@pytest.mark.parametrize("how", ["elements", "folded"])
def test_another_trigger(how: str) -> None:
    plain, often = (
        program(how, WINDOWS["tumbling 10"], trigger=trigger) for trigger in (None, ContinuousEventTimeTrigger.of(4))
    )
    parts = paid("c", [1, 2]), paid("c", [3, 6]), paid("d", [1_000])
    assert run(plain, often, *parts)[1:3] == [[("c", 0, 10, 4)], [("c", 0, 10, 4)] * 2]
    left = 2 if how == "elements" else 1
    assert run(often, plain, *parts, left=left)[1:3] == [[], [("c", 0, 10, 4)]]
