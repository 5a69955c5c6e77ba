"""The counted work of columnar windows is proportional to the input, not to the state."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox import (
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    Types,
    WatermarkStrategy,
    count_,
    sum_,
)
from pillarbox._operators.columnar import stacks
from pillarbox._operators.columnar.partials import Partials
from pillarbox._operators.columnar.stacks import ColumnStacks
from pillarbox._operators.columnar.window_operator import ColumnarWindowOperator
from pillarbox.testing import ProgramTestHarness, row

MINUTE = 60_000
EVENT = Types.ROW_NAMED(["card", "shop", "at", "amount"], [Types.STRING(), Types.INT(), *[Types.LONG()] * 2])
CARDS = 1_000


def program(assigner: Any, *keys: str, lateness: int = 0) -> ProgramTestHarness:
    def build(env: Any, events: Any) -> Any:
        at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        timed = events.map(lambda event: event, EVENT).assign_timestamps_and_watermarks(at)
        windows = timed.key_by(*keys).window(assigner).allowed_lateness(lateness)
        return windows.aggregate(n=count_(), total=sum_("amount"))

    return ProgramTestHarness(build)


def event(card: int, at: int, shop: int = 1, amount: int = 1) -> Any:
    return row(card=f"card {card}" if card >= 0 else None, shop=shop, at=at, amount=amount)


@pytest.fixture
def merged(monkeypatch):
    counts: list[int] = []
    group = Partials._group

    def counting(self, by, columns, starts):
        counts.append(len(columns["__pillarbox_rows"]))
        return group(self, by, columns, starts)

    monkeypatch.setattr(Partials, "_group", counting)
    return counts


@pytest.mark.parametrize("keys", [("card",), ("card", "shop")])
@pytest.mark.parametrize("late", [7, -1])
def test_a_late_row_merges_the_rows_of_its_key(merged, keys, late):
    assigner = SlidingEventTimeWindows.of(60 * MINUTE, 30 * MINUTE)
    with program(assigner, *keys, lateness=60 * MINUTE) as harness:
        for epoch in range(4):
            harness.push("events", *(event(card, epoch * MINUTE, card % 3) for card in range(-1, CARDS)))
            harness.run_epoch()
        harness.push("events", event(0, 61 * MINUTE))
        assert len(harness.run_epoch()["output"]) == 2 * (CARDS + 1)  # two windows of an hour have ended
        merged.clear()
        harness.push("events", event(late, 5 * MINUTE, late % 3, 5))
        fired = harness.run_epoch()["output"]
        assert [(row.card, row.n, row.total) for row in fired] == [
            (event(late, 0).card, 5, 9),
        ] * 2
        assert sum(merged) < CARDS / 2, merged


def test_the_windows_of_a_pane_are_registered_once(monkeypatch):
    registered: list[Any] = []
    register = ColumnarWindowOperator._register

    def counting(self, window):
        registered.append(window)
        register(self, window)

    monkeypatch.setattr(ColumnarWindowOperator, "_register", counting)
    with program(CumulativeEventTimeWindows.of("1 day", "1 hour"), "card") as harness:
        for epoch in range(5):
            harness.push("events", event(epoch, epoch))
            harness.run_epoch()
        assert len(registered) == 24
        harness.restore(harness.snapshot())
        harness.push("events", event(0, 9), event(1, 10))
        harness.run_epoch()
        assert len(registered) == 2 * 24
        fired = harness.end_input()["output"]
        assert len(fired) == 24 * 5 and sum(row.n for row in fired) == 24 * 7


def test_a_late_piece_of_a_known_pane_fires_the_windows_that_have_fired():
    with program(CumulativeEventTimeWindows.of(24, 8), "card", lateness=100) as harness:
        harness.push("events", event(1, 2), event(1, 20))
        harness.run_epoch()
        out = harness.run_epoch()["output"]
        harness.push("events", event(1, 3))
        out = harness.run_epoch()["output"]
        assert [row.n for row in out] == [2, 2]  # windows that end at 8 and 16
        assert [row.n for row in harness.end_input()["output"]] == [3]


@pytest.mark.parametrize("keys", [("card",), ("card", "shop")])
def test_an_epoch_merges_the_sessions_of_the_keys_that_came(merged, monkeypatch, keys):
    sorted_rows: list[int] = []
    by_key = Partials.by_key

    def counting(self, columns):
        sorted_rows.append(len(columns["__pillarbox_rows"]) if "__pillarbox_rows" in columns else 0)
        return by_key(self, columns)

    monkeypatch.setattr(Partials, "by_key", counting)
    with program(EventTimeSessionWindows.with_gap(MINUTE), *keys) as harness:
        harness.push("events", *(event(card, 0, card % 3) for card in range(-1, CARDS)))
        harness.run_epoch()
        merged.clear()
        sorted_rows.clear()
        for epoch in range(1, 4):
            harness.push("events", event(5, 10 * epoch, 2), event(-1, 10 * epoch, 2))
            assert harness.run_epoch()["output"] == []
        assert sum(merged) <= 3 * 8 and sum(sorted_rows) <= 3 * 8, (merged, sorted_rows)
        merged.clear()
        harness.restore(harness.snapshot())
        fired = harness.end_input()["output"]
    assert len(fired) == CARDS + 1
    assert sorted((row.card or "", row.n) for row in fired if row.n > 1) == [("", 4), ("card 5", 4)]


@pytest.mark.parametrize("rare", [False, True])
def test_the_panes_of_sliding_windows_are_kept_a_few_times(monkeypatch, rare):
    monkeypatch.setattr(stacks, "_FREE", 10)
    created: list[ColumnStacks] = []
    init = ColumnStacks.__init__

    def noting(self, *args):
        created.append(self)
        init(self, *args)

    monkeypatch.setattr(ColumnStacks, "__init__", noting)
    size, per_pane, result = 30, 5, []
    with program(SlidingEventTimeWindows.of(size, 1), "card") as harness:
        for pane in range(4 * size):
            cards = range(per_pane * pane, per_pane * (pane + 1)) if rare else range(per_pane)
            # Sometimes an earlier pane gets records, but not this one.
            harness.push("events", *(event(card, pane) for card in cards if pane % 7))
            result += [(row.card, row.window_end, row.n) for row in harness.run_epoch()["output"]]
            assert created[-1].rows <= 2 * per_pane * size + 10
            if pane == 50:
                harness.restore(harness.snapshot())
        result += [(row.card, row.window_end, row.n) for row in harness.end_input()["output"]]
    assert len(result) == len({(card, end) for card, end, _ in result})
    panes = [pane for pane in range(4 * size) if pane % 7]
    assert sum(n for *_, n in result) == len(panes) * per_pane * size
    if rare:
        assert len(result) == len(panes) * per_pane * size and {n for *_, n in result} == {1}
