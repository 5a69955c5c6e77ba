"""Behind which micro-batch an ``availableNow`` query has nothing left to do."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox._runtime.spark.output import REPORT_TYPES
from pillarbox._runtime.spark.query import EndOfWork

# 2026-11-21T20:00:00.000Z, and a second later.
TEN = 1795291200000
ELEVEN = TEN + 1000


def task(next_wake_up: int | None = None, unfinished: bool = False) -> list[Any]:
    """A report as Spark Connect has it: without names."""
    values = {"next_wake_up": next_wake_up, "unfinished": unfinished}
    return [values.get(field) for field in REPORT_TYPES]


def batch(*tasks: list[Any], read: bool = False, second: int = 0, name: str = "pillarbox") -> dict[str, Any]:
    return {
        "timestamp": f"2026-11-21T20:00:0{second}.000Z",
        "sources": [{"startOffset": "1", "endOffset": "1"}, {"startOffset": "1", "endOffset": "2" if read else "1"}],
        "observedMetrics": {name: [list(tasks)], "the user's": [3]},
    }


@pytest.mark.parametrize(
    ("batches", "reached"),
    [
        # Input: whatever the tasks say.
        ([batch(task(), read=True)], False),
        # None, and nobody had to run.
        ([batch()], True),
        ([batch(task(), task())], True),
        # A timer that is due, one that is later.
        ([batch(task(TEN))], False),
        ([batch(task(TEN + 1))], True),
        ([batch(task(ELEVEN), task(TEN - 5))], False),
        # The time is that of the first batch without input: a timer that is set over and over does not hold the end up.
        ([batch(task(TEN)), batch(task(ELEVEN), second=2)], True),
        ([batch(task(TEN)), batch(task(TEN), second=2)], False),
        # It counts anew after input.
        ([batch(task(TEN)), batch(read=True, second=1), batch(task(ELEVEN), second=2)], False),
        # Carried requests, also in the second program of the query.
        ([batch(task(unfinished=True))], False),
        ([batch(task(unfinished=True), name="pillarbox 2")], False),
        ([batch(task(unfinished=True)), batch(task(ELEVEN), second=3)], True),
    ],
)
def test_the_end(batches: list[dict[str, Any]], reached: bool) -> None:
    end = EndOfWork()
    # The first may be left from the run before.
    assert not end.is_reached(batch())
    assert [end.is_reached(progress) for progress in batches][-1] is reached
