"""Columnar windows and joins for ``make chaos``, in a program and as DataFrame functions.

The program's operators receive events from Python functions. The DataFrame functions form a separate query, whose
source contains Arrow rows.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import pillarbox.functions as PF
from pillarbox import (
    DataStream,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
    count_,
    last_,
    min_,
    sum_,
)
from pillarbox._time.timestamp_assigner import to_timestamp
from tests.faults.parts.joins import LATE_LEFT, LATE_RIGHT, JoinModel, is_left, is_right
from tests.faults.parts.part import BEGINNING, Joined, Model, OutputRow, Part
from tests.faults.parts.windows import GAP, LATENESS, SIZE, SLIDE, TUMBLING, WindowsModel, id_of
from tests.faults.programs.job import HEARTBEAT, OUT_OF_ORDER, Epoch, Event, Faults, Out, Row

__all__ = ["PANES", "SESSIONS", "TUMBLING_COLUMNS", "build", "frames_answer", "pairs_of", "processed"]

SESSION = GAP // 2  # milliseconds; short, for many sessions

EVENT = Types.ROW_NAMED(["id", "key", "ts"], [Types.LONG(), Types.LONG(), Types.LONG()])
AGGREGATES = {"n": count_(), "total": sum_("id"), "least": min_("id"), "latest": last_("id")}


def as_it_is(event: Any) -> Any:
    return event


# -- windows --


def aggregated(assigner: Any, lateness: int, events: DataStream, faults: Faults) -> DataStream:
    windows = events.map(as_it_is, EVENT).key_by("key").window(assigner).allowed_lateness(lateness)
    return windows.aggregate(**AGGREGATES)


def window_row(row: Any) -> OutputRow:
    state = [to_timestamp(row.window_end), row.n, row.total, row.least, row.latest]
    return OutputRow(row.key, to_timestamp(row.window_start), state)


def state_of(end: int, events: Sequence[Event]) -> list[int]:
    ids = [event.id for event in events]
    latest = max(event.ts for event in events)
    return [end, len(ids), sum(ids), min(ids), min(event.id for event in events if event.ts == latest)]


class ColumnWindowsModel(WindowsModel):
    """A model of tumbling or sliding windows. All late events of an epoch make a window fire once more."""

    def __init__(self, size: int, slide: int | None = None, lateness: int = 0) -> None:
        super().__init__(size, slide)
        self._lateness = lateness
        self._late: set[tuple[int, int]] = set()

    def record(self, event: Event) -> None:
        for start in self.starts(event):
            last = start + self.size - 1
            if last + self._lateness > self.watermark:
                self.windows[event.key, start].append(event)
                if last <= self.watermark:
                    self._late.add((event.key, start))

    def end_of_input(self) -> None:
        for key, start in self._late:
            self.fire(key, start, self.windows[key, start])
        self._late.clear()

    def fire(self, key: int, start: int, events: list[Event]) -> None:
        self.say(key, start, state_of(start + self.size, events))


class ColumnSessionsModel(Model):
    """A model of sessions without allowed lateness. Merges an epoch's sessions before it removes expired sessions."""

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[int, list[tuple[int, int, list[Event]]]] = {}
        self._came: defaultdict[int, list[Event]] = defaultdict(list)

    def record(self, event: Event) -> None:
        self._came[event.key].append(event)

    def end_of_input(self) -> None:
        for key, events in self._came.items():
            parts = [*self._open.get(key, ()), *((event.ts, event.ts + SESSION, [event]) for event in events)]
            merged: list[tuple[int, int, list[Event]]] = []
            for start, end, content in sorted(parts, key=lambda part: part[0]):
                if merged and start <= merged[-1][1]:
                    before = merged[-1]
                    merged[-1] = before[0], max(end, before[1]), before[2] + content
                else:
                    merged.append((start, end, content))
            self._open[key] = [session for session in merged if session[1] - 1 > self.watermark]
        self._came.clear()

    def advance(self, watermark: int) -> None:
        super().advance(watermark)
        for key, sessions in self._open.items():
            for start, end, events in sessions:
                if end - 1 <= watermark:
                    self.say(key, start, state_of(end, events))
            self._open[key] = [session for session in sessions if session[1] - 1 > watermark]


TUMBLING_COLUMNS = Part(
    "column tumbling",
    partial(aggregated, TumblingEventTimeWindows.of(TUMBLING), LATENESS),
    partial(ColumnWindowsModel, TUMBLING, None, LATENESS),
    window_row,
)
PANES = Part(
    "column sliding",
    partial(aggregated, SlidingEventTimeWindows.of(SIZE, SLIDE), 0),
    partial(ColumnWindowsModel, SIZE, SLIDE),
    window_row,
)
SESSIONS = Part(
    "column sessions",
    partial(aggregated, EventTimeSessionWindows.with_gap(SESSION), 0),
    ColumnSessionsModel,
    window_row,
)


# -- joins --


def pairs(joined: Joined, events: DataStream, faults: Faults) -> DataStream:
    left, right = (events.filter(side).map(as_it_is, EVENT).key_by("key") for side in (is_left, is_right))
    near = left.interval_join(right).between(*joined.bounds).side_output_left_late_data(LATE_LEFT)
    return near.side_output_right_late_data(LATE_RIGHT).columns(joined.how, suffixes=("", "_right"))


def pair_row(row: Any) -> OutputRow:
    return OutputRow(row.key, row.ts, [row.id, row.id_right])


class ColumnJoinModel(JoinModel):
    def __init__(self, joined: Joined) -> None:
        super().__init__(joined)
        self._is_left = joined.how == "left"
        self._alone: set[Event] = set()

    def record(self, event: Event) -> None:
        if is_left(event) and event.ts >= self.watermark:
            self._alone.add(event)
        super().record(event)

    def pair(self, left: Event, right: Event) -> None:
        self._alone.discard(left)
        self.say(left.key, left.ts, [left.id, right.id])

    def end_of_input(self) -> None:
        over = [event for event in self._alone if event.ts + self._bounds[1] < self.watermark]
        self._alone.difference_update(over)
        for event in over if self._is_left else ():
            self.say(event.key, event.ts, [event.id, None])

    def advance(self, watermark: int) -> None:
        super().advance(watermark)
        self.end_of_input()


def pairs_of(joined: Joined = Joined()) -> Part:  # noqa: B008
    sides = dict.fromkeys((LATE_LEFT, LATE_RIGHT), id_of)
    return Part("column pairs", partial(pairs, joined), partial(ColumnJoinModel, joined), pair_row, sides, of=pairs_of)


# -- the DataFrame functions --


def _pair_of(left: Any, right: Any, ctx: Any) -> Iterator[Out]:
    state = json.dumps([left.id, right.id], separators=(",", ":"))
    yield Out("processed", left.key, ctx.timestamp(), state, os.getpid(), 0)


def build(events: DataFrame, joined: Joined = Joined()) -> DataFrame:  # noqa: B008
    """Return a query with the results of all DataFrame functions, including a join before a Python function.

    Args:
        joined: bounds of both joins, and kind of the join by DataFrame function.
    """
    windows = PF.window_aggregate(
        events,
        keys="key",
        time="ts",
        window=SlidingEventTimeWindows.of(SIZE, SLIDE),
        delay=OUT_OF_ORDER,
        allowed_lateness=LATENESS,
        uid="windows",
        **AGGREGATES,
    )
    # The heartbeat brings event time to its end on both sides.
    left, right = (events.where((F.col("id") % 2 == rest) | (F.col("key") == HEARTBEAT)) for rest in (0, 1))
    pairs = PF.interval_join(
        left,
        right,
        on="key",
        time="ts",
        lower=joined.bounds[0],
        upper=joined.bounds[1],
        how=joined.how,
        delay=OUT_OF_ORDER,
        suffixes=("", "_right"),
        uid="pairs",
    )
    end = F.unix_millis("window_end")
    return (
        _rows(windows, "windows", F.unix_millis("window_start"), end, "n", "total", "least", "latest")
        .unionByName(_rows(pairs, "pairs", F.col("ts"), "id", "id_right"))
        .unionByName(processed(left, right, joined).where(F.col("key") != HEARTBEAT))
    )


def processed(left: DataFrame, right: DataFrame, joined: Joined = Joined()) -> DataFrame:  # noqa: B008
    env = StreamExecutionEnvironment.get_execution_environment(left.sparkSession).set_parallelism(1)
    by_time = WatermarkStrategy.for_bounded_out_of_orderness(f"{OUT_OF_ORDER} ms").with_timestamp_assigner("ts")
    lefts, rights = (
        env.from_dataframe(side).assign_timestamps_and_watermarks(by_time).key_by("key") for side in (left, right)
    )
    pairs = lefts.interval_join(rights).between(*joined.bounds).process(_pair_of).uid("processed")
    return pairs.to_dataframe(Out)


def _rows(df: DataFrame, part: str, time: Any, *values: Any) -> DataFrame:
    none = F.lit(0)
    state = F.to_json(F.array(*values))
    return df.where(F.col("key") != HEARTBEAT).select(
        F.lit(part).alias("part"),
        "key",
        time.alias("ts"),
        state.alias("state"),
        none.cast("long").alias("pid"),
        none.alias("subtask"),
    )


class _OnlyPairs(Model):
    def say(self, key: int, ts: int, state: Any, side: str | None = None) -> None:
        if side is None:
            super().say(key, ts, state)


class ProcessedModel(_OnlyPairs, JoinModel):
    pass


class FramePairsModel(_OnlyPairs, ColumnJoinModel):
    pass


def watermark_of(parts: Sequence[Iterable[Event]]) -> int:
    marks = [max(event.ts for event in part) - OUT_OF_ORDER - 1 for part in map(list, parts) if part]
    return min(marks, default=BEGINNING)


def frames_answer(epochs: Sequence[Epoch], joined: Joined = Joined()) -> dict[int, list[Row]]:  # noqa: B008
    windows, pairs, processed = (
        ColumnWindowsModel(SIZE, SLIDE, LATENESS),
        FramePairsModel(joined),
        ProcessedModel(joined),
    )
    models: dict[str, Model] = {"windows": windows, "pairs": pairs, "processed": processed}
    for name, model in models.items():
        model.name = name
    sides = [BEGINNING, BEGINNING]
    answer = {}
    for batch, parts in enumerate(epochs):
        for event in (event for part in parts for event in part if event.key != HEARTBEAT):
            for model in models.values():
                model.record(event)
        for side in (0, 1):
            own = [[event for event in part if event.id % 2 == side or event.key == HEARTBEAT] for part in parts]
            sides[side] = max(sides[side], watermark_of(own))
        for model in models.values():
            model.end_of_input()
            watermark = watermark_of(parts) if model is windows else min(sides)
            if watermark > model.watermark:
                model.advance(watermark)
        rows = [row for model in models.values() for row in model.taken()[0]]
        answer[batch] = sorted((*row[:3], row[3].replace(" ", "")) for row in rows)
    return answer
