"""Windows and joins of columns that ``make chaos`` runs: in the program of the fault tests, and by DataFrame functions.

The former have the events that Python functions have touched, and a place in the level of the others. The latter are a
query of their own, of which Arrow sees the rows as the source has them; and so does a join whose pairs a function gets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import pillarbox.functions as PF
from pillarbox import (
    DataStream,
    EventTimeSessionWindows,
    OutputTag,
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
from pillarbox._time import to_timestamp
from tests.faults.programs.job import HEARTBEAT, OUT_OF_ORDER, Out
from tests.faults.programs.join_job import JOINED, Joined, is_left, is_right
from tests.faults.programs.window_job import GAP, LATENESS, SIZE, SLIDE, TUMBLING

__all__ = ["SESSION", "build", "columns", "processed"]

SESSION = GAP // 2  # milliseconds: shorter ones, so that there are more

EVENT = Types.ROW_NAMED(["id", "key", "ts"], [Types.LONG(), Types.LONG(), Types.LONG()])
LATE_LEFT, LATE_RIGHT = OutputTag("late left columns"), OutputTag("late right columns")
AGGREGATES = {"n": count_(), "total": sum_("id"), "least": min_("id"), "latest": last_("id")}


def as_it_is(event: Any) -> Any:
    return event


def columns(stamped: DataStream, joined: Joined = JOINED) -> list[DataStream]:
    """Return what windows and a join of columns give, and what is too late for the join."""
    keyed = stamped.map(as_it_is, EVENT).key_by("key")
    tumbling = keyed.window(TumblingEventTimeWindows.of(TUMBLING)).allowed_lateness(LATENESS)
    sliding = keyed.window(SlidingEventTimeWindows.of(SIZE, SLIDE))
    sessions = keyed.window(EventTimeSessionWindows.with_gap(SESSION))
    left, right = (stamped.filter(kind).map(as_it_is, EVENT).key_by("key") for kind in (is_left, is_right))
    near = left.interval_join(right).between(*joined.bounds).side_output_left_late_data(LATE_LEFT)
    pairs = (
        near.side_output_right_late_data(LATE_RIGHT).columns(joined.how, suffixes=("", "_right")).uid("column pairs")
    )
    return [
        tumbling.aggregate(**AGGREGATES).uid("column tumbling").map(_said_by(10)),
        sliding.aggregate(**AGGREGATES).uid("column sliding").map(_said_by(11)),
        sessions.aggregate(**AGGREGATES).uid("column sessions").map(_said_by(12)),
        pairs.map(_pair),
        pairs.get_side_output(LATE_LEFT).map(_late),
        pairs.get_side_output(LATE_RIGHT).map(_late),
    ]


def _said_by(level: int) -> Any:
    def said(row: Any) -> Out:
        state = [to_timestamp(row.window_end), row.n, row.total, row.least, row.latest]
        return Out(level, row.key, to_timestamp(row.window_start), json.dumps(state), os.getpid(), 0)

    return said


def _pair(row: Any) -> Out:
    return Out(13, row.key, row.ts, json.dumps([row.id, row.id_right]), os.getpid(), 0)


def _late(row: Any) -> Out:
    return Out(14, row.key, row.ts, json.dumps(row.id), os.getpid(), 0)


def _pair_of(left: Any, right: Any, ctx: Any) -> Iterator[Out]:
    state = json.dumps([left.id, right.id], separators=(",", ":"))
    yield Out(25, left.key, ctx.timestamp(), state, os.getpid(), 0)


def build(events: DataFrame, joined: Joined = JOINED) -> DataFrame:
    """Return what the DataFrame functions give, and a join whose pairs a function gets: one query of all.

    Args:
        joined: the bounds of both joins, and the kind of the one by a DataFrame function.
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
        _rows(windows, 20, F.unix_millis("window_start"), end, "n", "total", "least", "latest")
        .unionByName(_rows(pairs, 21, F.col("ts"), "id", "id_right"))
        .unionByName(processed(left, right, joined).where(F.col("key") != HEARTBEAT))
    )


def processed(left: DataFrame, right: DataFrame, joined: Joined = JOINED) -> DataFrame:
    """Return what a function makes of pairs of rows that no other function has touched."""
    env = StreamExecutionEnvironment.get_execution_environment(left.sparkSession).set_parallelism(1)
    by_time = WatermarkStrategy.for_bounded_out_of_orderness(f"{OUT_OF_ORDER} ms").with_timestamp_assigner("ts")
    one, other = (
        env.from_dataframe(side).assign_timestamps_and_watermarks(by_time).key_by("key") for side in (left, right)
    )
    pairs = one.interval_join(other).between(*joined.bounds).process(_pair_of).uid("processed")
    return pairs.to_dataframe(Out)


def _rows(df: DataFrame, level: int, time: Any, *values: Any) -> DataFrame:
    none = F.lit(0)
    state = F.to_json(F.array(*values))
    return df.where(F.col("key") != HEARTBEAT).select(
        F.lit(level).alias("level"),
        "key",
        time.alias("ts"),
        state.alias("state"),
        none.cast("long").alias("pid"),
        none.alias("subtask"),
    )
