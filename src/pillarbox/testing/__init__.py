"""Testing programs in milliseconds: no JVM, no threads of one's own, no sleeping.

Three things make stream processing hard to test: state, time and failure. Here a test controls all three. *Time* stands
still until the test moves it: event time by watermarks, processing time by setting a clock. *State* can be looked at,
taken as a snapshot and started from. *Failure* is a method call. And nothing is a mock: mailbox, state, timers and
operators are the same as under Spark.

Test a function alone in an operator harness:

>>> from pillarbox import KeyedProcessFunction, ValueStateDescriptor
>>> from pillarbox.testing import harness_for, row
>>> class Sessions(KeyedProcessFunction):
...     '''Counts the payments of a card until it has been silent for a minute.'''
...
...     def open(self, runtime_context):
...         self.count = runtime_context.get_state(ValueStateDescriptor("count"))
...         self.end = runtime_context.get_state(ValueStateDescriptor("end"))
...
...     def process_element(self, payment, ctx):
...         if self.end.value() is not None:
...             ctx.timer_service().delete_event_time_timer(self.end.value())
...         self.count.update((self.count.value() or 0) + 1)
...         self.end.update(ctx.timestamp() + 60_000)
...         ctx.timer_service().register_event_time_timer(self.end.value())
...
...     def on_timer(self, timestamp, ctx):
...         yield ctx.get_current_key(), self.count.value()
...         self.count.clear()
...         self.end.clear()

>>> with harness_for(Sessions(), key_by="card") as harness:
...     harness.push(row(card="c1", amount=5), timestamp=0)
...     harness.push(row(card="c1", amount=7), timestamp=30_000)
...     harness.push_watermark(60_000)
...     early = harness.get_output()
...     state = harness.state_of("c1")
...     snapshot = harness.snapshot()
>>> early, state
([], {'count': 2, 'end': 90000})

Another harness can start from a snapshot, here of a closed harness. It includes timers:

>>> with harness_for(Sessions(), key_by="card", snapshot=snapshot) as harness:
...     harness.push_watermark(90_000)
...     harness.get_records(), harness.num_keyed_state_entries()
([StreamRecord(value=('c1', 2), timestamp=90000)], 0)

Test a whole program, with its own watermark strategy, shuffles and any number of subtasks, in a
:class:`ProgramTestHarness`. It runs epoch by epoch; an epoch corresponds to a micro-batch under Spark:

>>> from pillarbox import WatermarkStrategy
>>> from pillarbox.testing import ProgramTestHarness
>>> def build(env, payments):
...     strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("at")
...     return payments.assign_timestamps_and_watermarks(strategy).key_by("card").process(Sessions())

>>> with ProgramTestHarness(build, parallelism=2) as harness:
...     harness.push("payments", row(card="c1", at=0), row(card="c2", at=1_000))
...     harness.fail_epoch()  # the worker dies: no trace of it, and the payments come again
...     first = harness.run_epoch()["output"]
...     harness.push("payments", row(card="c3", at=80_000))
...     second = harness.run_epoch()["output"]
...     last = harness.end_input()["output"]
>>> first, sorted(second), last
([], [('c1', 1), ('c2', 1)], [('c3', 1)])

Some laws hold for every function: it keeps its state in its states and not in attributes, its results do not depend on
how records are cut into runs, and so on. :func:`check_operator` checks these laws:

>>> from pillarbox.testing import StreamRecord, Watermark, check_operator
>>> check_operator(
...     lambda **options: harness_for(Sessions(), key_by="card", **options),
...     [StreamRecord(row(card="c1"), 0), Watermark(30_000), StreamRecord(row(card="c1"), 45_000)],
... )

Whether a whole program survives restarts, lost workers, failed tasks and another parallelism is what :func:`simulate`
tries, under as many schedules as one likes; it shows the smallest input and the faults that break one:

>>> from pillarbox.testing import simulate
>>> payments = [row(card=f"c{n % 3}", at=n * 40_000) for n in range(12)]
>>> simulate(build, {"payments": payments}, key_by="card", seeds=20)
"""

from typing import Any

from pillarbox._elements import Watermark, WatermarkStatus
from pillarbox._rows import Row
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox.testing._harnesses import ProcessFunctionTestHarnesses, harness_for
from pillarbox.testing._keyed_operator_harness import (
    KeyedOneInputStreamOperatorTestHarness,
    KeyedTwoInputStreamOperatorTestHarness,
)
from pillarbox.testing._laws import ProcessingTime, check_operator
from pillarbox.testing._operator_harness import (
    OneInputStreamOperatorTestHarness,
    OperatorSnapshot,
    StreamRecord,
    TwoInputStreamOperatorTestHarness,
)
from pillarbox.testing._program_harness import ProgramSnapshot, ProgramTestHarness
from pillarbox.testing._simulation.simulate import SimulationError, simulate
from pillarbox.testing._tws_tester import TwsTester

__all__ = [
    "KeyedOneInputStreamOperatorTestHarness",
    "KeyedTwoInputStreamOperatorTestHarness",
    "ManualProcessingTimeService",
    "OneInputStreamOperatorTestHarness",
    "OperatorSnapshot",
    "ProcessFunctionTestHarnesses",
    "ProcessingTime",
    "ProgramSnapshot",
    "ProgramTestHarness",
    "SimulationError",
    "StreamRecord",
    "TwoInputStreamOperatorTestHarness",
    "TwsTester",
    "Watermark",
    "WatermarkStatus",
    "check_operator",
    "harness_for",
    "row",
    "simulate",
]


def row(**columns: Any) -> Row:
    """Return a row with these columns, like the records of a DataFrame."""
    return Row.of(**columns)
