"""Windows: whole, folded and columnar."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pillarbox import (
    EventTimeSessionWindows,
    OutputTag,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowFunction,
    count_,
    first_,
    sum_,
)
from pillarbox._operators.columnar.session_operator import ColumnarSessionOperator
from pillarbox._operators.columnar.window_operator import ColumnarWindowOperator
from pillarbox._operators.windowing.guarded_operator import GuardedWindowOperator
from pillarbox._operators.windowing.operator import WindowOperator
from pillarbox._operators.windowing.pane_operator import PaneWindowOperator
from pillarbox._operators.windowing.session_operator import SessionWindowOperator
from pillarbox._operators.windowing.tumbling_operator import TumblingWindowOperator
from tests.faults.parts import columns as column_parts
from tests.faults.parts import windows as parts
from tests.operators_table.entry import DROPPED, SAME, Entry, Reason, Refused, StoredState, pick
from tests.operators_table.functions import Numbers, RaisingNumbers, Total
from tests.simulation.programs import columns, windows

__all__ = ["ENTRIES", "SESSIONS", "SLIDING", "TUMBLING"]

TUMBLING, SLIDING, SESSIONS = (
    TumblingEventTimeWindows.of(10),
    SlidingEventTimeWindows.of(20, 5),
    EventTimeSessionWindows.with_gap(6),
)


def windowed(stream: Any, assigner: Any) -> Any:
    return stream.key_by("key").window(assigner)


class Times(WindowFunction):
    def apply(self, key, window, inputs):
        yield [input_.at for input_ in inputs]


def counted(stream: Any, size: int, slide: int = 0) -> Any:
    return stream.key_by("key").count_window(size, slide)


def other_windows(finish: Any) -> list[Refused]:
    return [
        Refused(
            "windows of another clock, or without a clock",
            lambda s: finish(s.key_by("key").count_window(3)),
            "it kept windows of event time, and keeps windows of 3 records",
        )
    ]


# -- windows that keep their elements --

ELEMENTS = StoredState("the elements", "pickle: the list state 'window-contents': no type")

PROCESS = Entry(
    "WindowedStream.process",
    WindowOperator,
    lambda s: windowed(s, SLIDING).process(Numbers()),
    ordered=False,
    state=ELEMENTS,
    late=DROPPED,
    batch=SAME,
    changes=other_windows(lambda windows: windows.process(Numbers())),
    simulated=pick(windows, "tumbling-windows", "firing-again", "early-results"),
    chaos=parts.WHOLE,
)
WHOLE = [
    PROCESS,
    replace(
        PROCESS,
        build=lambda s: windowed(s, SESSIONS).allowed_lateness(9).process(Numbers()),
        case="sessions",
        simulated=pick(windows, "late-sessions"),
        chaos=Reason("tumbling windows have the same operator"),
    ),
    replace(
        PROCESS,
        operator=GuardedWindowOperator,
        build=lambda s: windowed(s, SLIDING).side_output_errors(OutputTag("bad")).process(RaisingNumbers()),
        case="with `side_output_errors`",
        simulated=Reason("that a record or a window leaves nothing behind shows under faults: chaos has it"),
        chaos=parts.PICKY,
    ),
    replace(
        PROCESS,
        method="WindowedStream.apply",
        build=lambda s: windowed(s, SLIDING).apply(Times()),
        changes=other_windows(lambda windows: windows.apply(Times())),
        simulated=Reason("process() has the same operator"),
        chaos=Reason("process() has the same operator"),
    ),
]

# -- windows that fold --

AGGREGATE = Entry(
    "WindowedStream.aggregate",
    TumblingWindowOperator,
    lambda s: windowed(s, TUMBLING).aggregate(Total(), accumulator_type=int),
    case="tumbling",
    ordered=False,
    state=StoredState("an accumulator with a declared `accumulator_type`"),
    late=DROPPED,
    batch=SAME,
    changes=other_windows(lambda windows: windows.aggregate(Total(), accumulator_type=int)),
    simulated=pick(windows, "late-totals", "stacked-windows"),
    chaos=parts.TOTALS,
)
FOLDED = [
    AGGREGATE,
    replace(
        AGGREGATE,
        operator=PaneWindowOperator,
        build=lambda s: windowed(s, SLIDING).aggregate(Total(), accumulator_type=int),
        case="sliding",
        state=StoredState("an accumulator for each pane"),
        simulated=pick(windows, "sliding-windows", "late-panes", "cumulating-windows"),
        chaos=parts.PANES,
    ),
    replace(
        AGGREGATE,
        operator=SessionWindowOperator,
        build=lambda s: windowed(s, SESSIONS).aggregate(Total(), accumulator_type=int),
        case="sessions",
        state=StoredState("an accumulator for each session"),
        simulated=pick(windows, "merging-sessions", "late-folded-sessions"),
        chaos=parts.SESSIONS,
    ),
]


def of_field(method: str) -> Entry:
    return replace(
        AGGREGATE,
        method=f"WindowedStream.{method}",
        build=lambda s: getattr(windowed(s, TUMBLING), method)("n"),
        case="",
        state=StoredState("the result so far", "pickle: the reducing state 'window-contents': no type"),
        changes=[
            Refused(
                "another field",
                lambda s: getattr(windowed(s, TUMBLING), method)("at"),
                f"'op': it kept {method}('n'), and keeps {method}('at')",
            )
        ],
        simulated=Reason("aggregate() has the same operators"),
        chaos=Reason("aggregate() has the same operators"),
    )


REDUCE = replace(
    of_field("sum"),
    method="WindowedStream.reduce",
    build=lambda s: windowed(s, TUMBLING).reduce(
        lambda event, other: max(event, other, key=lambda candidate: candidate.n)
    ),
    changes=other_windows(lambda windows: windows.reduce(max)),
    simulated=pick(windows, "cumulating-windows"),
)

# -- windows of columns --


def of_columns(windows: Any, **fields: Any) -> Entry:
    return replace(
        AGGREGATE,
        build=lambda s: windows(s.key_by("key")).aggregate(rows=count_(), total=sum_("n"), first=first_("n")),
        state=StoredState("columns of partial results"),
        changes=[
            Refused(
                "aggregates other than a `count_()` of rows",
                lambda s: windows(s.key_by("key")).aggregate(rows=count_(), total=sum_("at"), first=first_("n")),
                "the checkpoint holds windows with other aggregates",
                by_tasks=True,
            )
        ],
        **fields,
    )


OF_COLUMNS = [
    of_columns(
        lambda keyed: keyed.window(SLIDING),
        operator=ColumnarWindowOperator,
        case="of columns",
        simulated=pick(columns, "sliding-columns", "cumulating-columns"),
        chaos=column_parts.PANES,
    ),
    of_columns(
        lambda keyed: keyed.window(TUMBLING).allowed_lateness(9),
        operator=ColumnarWindowOperator,
        case="of columns, tumbling, with allowed_lateness",
        simulated=pick(columns, "tumbling-columns", "late-columns"),
        chaos=column_parts.TUMBLING_COLUMNS,
    ),
    of_columns(
        lambda keyed: keyed.window(SESSIONS),
        operator=ColumnarSessionOperator,
        case="of columns, sessions",
        simulated=pick(columns, "sessions-of-columns", "late-sessions-of-columns", "unbounded-columns"),
        chaos=column_parts.SESSIONS,
    ),
]

FIELDS = [of_field(method) for method in ("sum", "min", "max", "min_by", "max_by")]
ENTRIES = [*WHOLE, *FOLDED, REDUCE, *FIELDS, *OF_COLUMNS]
