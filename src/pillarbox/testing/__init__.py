"""Tests programs in milliseconds, without a JVM, threads or sleeping.

Mailbox, state, timers and operators are the same code as on Spark. :func:`harness_for` runs one function;
:class:`ProgramTestHarness` runs a whole program, epoch by epoch. :class:`FakeService` replaces a service, and can
simulate refused requests, crashes and lost answers. :func:`check_operator` checks that an operator obeys general laws,
and :func:`simulate` runs a program under many schedules with faults. See docs/testing.md for examples.

>>> from pillarbox import KeyedProcessFunction, ValueStateDescriptor
>>> from pillarbox.testing import harness_for, row
>>> class Count(KeyedProcessFunction):
...     def open(self, runtime_context):
...         self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))
...
...     def process_element(self, payment, ctx):
...         self.count.update(self.count.value() + 1)
...         ctx.timer_service().register_event_time_timer(60_000)
...
...     def on_timer(self, timestamp, ctx):
...         yield ctx.get_current_key(), self.count.value()

>>> with harness_for(Count(), key_by="card") as harness:
...     harness.push(row(card="c1"), timestamp=0)
...     state, snapshot = harness.state_of("c1"), harness.snapshot()
>>> with harness_for(Count(), key_by="card", snapshot=snapshot) as harness:  # timers are restored, too
...     harness.push_watermark(60_000)
...     state, harness.get_records()
({'count': 1}, [StreamRecord(value=('c1', 1), timestamp=60000)])
"""

from typing import Any

from pillarbox._elements.elements import Watermark, WatermarkStatus
from pillarbox._rows import Row
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox.testing._fake_service import FakeRequest, FakeService, TooManyRequestsError
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
    "FakeRequest",
    "FakeService",
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
    "TooManyRequestsError",
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
    """Return a row with these columns, of the same class as a DataFrame's rows."""
    return Row.of(**columns)
