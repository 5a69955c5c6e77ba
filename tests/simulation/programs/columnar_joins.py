"""Columnar interval joins. Their outcome is columns or a function's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from pillarbox import OutputTag, WatermarkStrategy
from pillarbox._datastream.connected import columnar_joins
from tests.simulation import oracles
from tests.simulation.programs.columns import EVENT, as_row
from tests.simulation.programs.program import SimulatedProgram
from tests.simulation.programs.two_inputs import LAST, of_one_key, of_two_streams

LATE_LEFT, LATE_RIGHT = OutputTag("late left columns"), OutputTag("late right columns")


def keyed(streams: Any, bound: int) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_assigner("at")
    return [stream.map(as_row, EVENT).assign_timestamps_and_watermarks(strategy).key_by("key") for stream in streams]


def near(lower: int, upper: int, how: Any = "inner", bound: int = 100) -> Callable[..., Any]:
    def build(env, lefts, rights):
        left, right = keyed((lefts, rights), bound)
        return left.interval_join(right).between(lower, upper).columns(how, suffixes=("", "_right"))

    return build


def near_and_late(env, lefts, rights):
    left, right = keyed((lefts, rights), 0)
    near = left.interval_join(right).between(-200, 300).side_output_left_late_data(LATE_LEFT)
    pairs = near.side_output_right_late_data(LATE_RIGHT).columns("left", suffixes=("", "_right"))
    late = [pairs.get_side_output(tag).map(lambda value: ("late", *value)) for tag in (LATE_LEFT, LATE_RIGHT)]
    return pairs.union(*late)


def by_function(env, lefts, rights):
    left, right = keyed((lefts, rights), 100)
    with mock.patch.object(columnar_joins, "_is_untouched", lambda step: True):
        pairs = left.interval_join(right).between(-50, 80)
        return pairs.process(lambda a, b, ctx: [(tuple(a), tuple(b), ctx.timestamp())])


PROGRAMS: dict[str, SimulatedProgram] = {
    "join-of-columns": of_two_streams(
        near(-50, 80),
        last=LAST,
        cut_free=True,
        batch_oracle=oracles.near_columns(-50, 80),
        batch_view=oracles.plain_rows,
    ),
    "left-join-of-columns": of_two_streams(
        near(-50, 80, "left"),
        bounded=True,
        cut_free=True,
        batch_oracle=oracles.near_columns(-50, 80, outer=True),
        batch_view=oracles.plain_rows,
    ),
    "left-join-of-columns-before": of_two_streams(
        near(-300, -150, "left"),
        bounded=True,
        cut_free=True,
        batch_oracle=oracles.near_columns(-300, -150, outer=True),
        batch_view=oracles.plain_rows,
    ),
    "left-join-of-columns-until-now": of_two_streams(
        near(-60, 0, "left"),
        bounded=True,
        cut_free=True,
        batch_oracle=oracles.near_columns(-60, 0, outer=True),
        batch_view=oracles.plain_rows,
    ),
    "left-join-of-columns-after": of_two_streams(
        near(20, 70, "left"),
        bounded=True,
        cut_free=True,
        batch_oracle=oracles.near_columns(20, 70, outer=True),
        batch_view=oracles.plain_rows,
    ),
    "left-join-of-columns-of-one-key": of_two_streams(
        near(-20, 20, "left", 2000),
        inputs=of_one_key,
        last=LAST,
        cut_free=True,
        batch_oracle=oracles.near_columns(-20, 20, outer=True),
        batch_view=oracles.plain_rows,
    ),
    "late-join-of-columns": of_two_streams(
        near_and_late,
        bounded=True,
        batch_oracle=oracles.near_columns(-200, 300, outer=True),
        batch_view=oracles.plain_rows,
    ),
    "join-of-columns-with-a-function": of_two_streams(
        by_function, last=LAST, cut_free=True, batch_oracle=oracles.near(-50, 80)
    ),
}
