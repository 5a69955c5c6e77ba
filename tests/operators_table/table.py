"""The operator table: each way to create an operator, with data for tests and pages.

Enter a new operator here, once. Its entry drives the tests in this folder, the simulation (``tests/simulation``),
``tests/faults/test_every_operator.py``, chaos (``tests/faults/chaos``) and ``docs/operators.md``. ``entry.py`` explains
the fields.
"""

from __future__ import annotations

from pillarbox._operators.columnar.columnar_operator import ColumnarOperator
from pillarbox._operators.columnar.joins.join_operator import BaseJoinOperator
from pillarbox._operators.columnar.pre_aggregate import PreAggregateOperator
from pillarbox._operators.connected.broadcast import _BroadcastOperator
from pillarbox._operators.frame.function_operator import FunctionOperator
from pillarbox._operators.frame.gathering import GatheringOperator
from pillarbox._operators.frame.inputs import TwoInputs
from pillarbox._operators.frame.keyed_operator import KeyedOperator
from pillarbox._operators.frame.operator import StreamOperator
from pillarbox._operators.stateful_processor.group_state import GroupStateOperator
from pillarbox._operators.stateful_processor.operator import StatefulProcessorOperator
from pillarbox._operators.stateless.limit import LimitOperator
from pillarbox._operators.stateless.pass_through import PassThroughOperator
from pillarbox._operators.stateless.sinks import ColumnSinkOperator, PrintOperator
from pillarbox._operators.timestamps_and_watermarks import TimestampsAndWatermarksOperator
from pillarbox._operators.windowing.base_operator import BaseWindowOperator
from pillarbox._operators.windowing.folding_operator import FoldingWindowOperator
from pillarbox._operators.windowing.shared_operator import SharedWindowOperator
from pillarbox.testing._tws_tester import _TestedOperator
from pillarbox_tools.replay.refused_calls import UnansweredCallOperator
from tests.faults.parts.part import Joined, Part
from tests.operators_table import keyed, stateless, two_streams, windows
from tests.operators_table.entry import Entry
from tests.simulation.programs.program import SimulatedProgram

__all__ = ["ALIKE", "BASES", "NOT_ENTERED", "OPERATORS", "OTHERS", "chaos_parts", "simulated"]

OPERATORS: list[Entry] = [*stateless.ENTRIES, *keyed.ENTRIES, *windows.ENTRIES, *two_streams.ENTRIES]

# Classes of streams whose methods create the same operators as another class.
ALIKE = {"AllWindowedStream": "WindowedStream"}


def _of(stream: str, methods: str, reason: str) -> dict[str, str]:
    return {f"{stream}.{method}": reason for method in methods.split()}


# Public methods of streams that have no entry, and why.
NOT_ENTERED: dict[str, str] = {
    **_of(
        "DataStream",
        "name uid set_parallelism disable_chaining start_new_chain get_name",
        "are settings of an operator",
    ),
    **_of("DataStream", "rebalance rescale shuffle broadcast forward global_ partition_custom", "say where records go"),
    **_of("DataStream", "union get_side_output get_execution_environment", "make no operator"),
    **_of("DataStream", "connect join co_group window_all count_window_all", "begin to make an operator"),
    **_of("DataStream", "assign_timestamps_and_watermarks", "is in tests/testing/test_laws.py"),
    **_of(
        "DataStream",
        "print to_dataframe execute_and_collect",
        "are ends of programs: tests/runtime/programs",
    ),
    **_of("KeyedStream", "interval_join window count_window", "begin to make an operator"),
    **_of("WindowedStream", "trigger allowed_lateness evictor", "are settings of windows: tests/operators/windowing"),
    **_of("WindowedStream", "side_output_late_data side_output_errors", "are settings of windows"),
    **_of("ConnectedStreams", "key_by", "begins to make an operator"),
    **_of("IntervalJoin", "between lower_bound_exclusive upper_bound_exclusive", "are settings of the join"),
    **_of("IntervalJoin", "side_output_left_late_data side_output_right_late_data", "are settings of the join"),
    **_of("JoinedStreams", "where equal_to window get_side_output", "begin to make an operator"),
    **_of("CoGroupedStreams", "where equal_to window get_side_output", "begin to make an operator"),
    **_of("JoinedWindows", "trigger evictor allowed_lateness side_output_errors", "are settings of windows"),
    **_of("CoGroupedWindows", "trigger evictor allowed_lateness side_output_errors", "are settings of windows"),
    **_of(
        "AsyncDataStream",
        "ordered_wait_with_retry unordered_wait_with_retry ordered_wait_batch unordered_wait_batch",
        "are map_async with options of its own: tests/operators/async_io",
    ),
}

BASES: tuple[type[StreamOperator], ...] = (
    FunctionOperator,
    GatheringOperator,
    KeyedOperator,
    BaseWindowOperator,
    FoldingWindowOperator,
    SharedWindowOperator,
    ColumnarOperator,
    BaseJoinOperator,
    TwoInputs,
    _BroadcastOperator,
)
# Operators for Spark's stateful programs, which no method of a stream makes.
SPARK_PROGRAMS: tuple[type[StreamOperator], ...] = (StatefulProcessorOperator, GroupStateOperator)
# Why an operator is in no entry.
OTHERS: dict[type[StreamOperator], str] = {
    **dict.fromkeys(BASES, "is what others are made of"),
    PassThroughOperator: "is in test_the_operator_that_does_nothing",
    TimestampsAndWatermarksOperator: "emits watermarks after each run, so cuts show: tests/testing/test_laws.py",
    PreAggregateOperator: "sends one partial result more where there is a snapshot: windows of columns are made of it",
    ColumnSinkOperator: "has no state, and emits columns: tests/types",
    PrintOperator: "emits nothing",
    UnansweredCallOperator: "stops a replay at a call: tests/runtime/recording/test_replay.py",
    **dict.fromkeys(
        SPARK_PROGRAMS, "compares with Spark: tests/spark/stateful_programs, tests/faults/test_stateful_programs.py"
    ),
    _TestedOperator: "is in no program: it is TwsTester's, tests/operators/stateful_processor",
    LimitOperator: "counts what a bounded program emits, without snapshots: tests/runtime/programs/test_results.py",
}


def simulated() -> dict[str, SimulatedProgram]:
    return {
        name: program
        for entry in OPERATORS
        if isinstance(entry.simulated, dict)
        for name, program in entry.simulated.items()
    }


def chaos_parts(joined: Joined | None = None) -> list[Part]:
    parts = list({entry.chaos.name: entry.chaos for entry in OPERATORS if isinstance(entry.chaos, Part)}.values())
    return [part if part.of is None or joined is None else part.of(joined) for part in parts]
