from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.cloudpickle import dumps

from pillarbox import StreamExecutionEnvironment
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.columnar.columnar_operator import ColumnarOperator
from pillarbox._operators.frame.operator import StreamOperator
from pillarbox._operators.stateless.pass_through import PASS_THROUGH
from pillarbox._task.vertex import ChainNode
from pillarbox.testing import (
    KeyedOneInputStreamOperatorTestHarness,
    OneInputStreamOperatorTestHarness,
    StreamRecord,
    Watermark,
    check_operator,
)
from tests.operators_table.entry import ROW, Entry, record
from tests.operators_table.table import OPERATORS

# Windows of several keys that end together fire in any order, and so do timers of one time: they have none after a
# restart. Some records are late, equal, out of order, or in the far future.
SCRIPT: list[tuple[int, StreamRecord] | Watermark] = [
    (0, record("a", 1, 0)),
    (0, record("b", 2, 3)),
    (1, record("a", 3, 5)),
    (1, record("a", 4, 7)),
    (1, record("b", 5, 5)),
    (0, record("a", 5, 7)),
    Watermark(6),
    (0, record("c", 6, 16)),
    (0, record("a", 7, 14)),
    (1, record("c", 8, 12)),
    (1, record("a", 9, 5)),
    (0, record("b", 14, 10**12)),
    (1, record("a", 15, 10**12)),
    (1, record("a", 15, 10**12)),
    Watermark(15),
    (0, record("a", 16, 10**12 - 1)),
    (0, record("d", 17, 2)),
    (1, record("b", 10, 30)),
    (0, record("b", 11, 24)),
    (0, record("c", 12, 30)),
    Watermark(40),
    (1, record("a", 13, 41)),
]


class OfColumns(KeyedOneInputStreamOperatorTestHarness):
    """The harness of an operator whose input consists of columns of partial results."""

    def _process(self, records: Records, index: int = 0) -> None:
        if not isinstance(records, ArrowRecords):
            batch = pa.RecordBatch.from_pylist([value.as_dict() for value in records.values])
            records = ArrowRecords(batch, np.array(records.timestamps))
        super()._process(records, index)


def harness_of(step: Any, operator: type[StreamOperator] = StreamOperator, **options: Any) -> Any:
    if issubclass(operator, ColumnarOperator):
        kind: type[OneInputStreamOperatorTestHarness] = OfColumns
    else:
        kind = KeyedOneInputStreamOperatorTestHarness if step.factory.keyed else OneInputStreamOperatorTestHarness
    # Two copies of the functions may be open at the same time.
    return kind(ChainNode(step.name, "operator", pickle.loads(dumps(step.factory))), **options)


def input_of(entry: Entry, step: Any) -> list[Any]:
    script: list[Any] = list(SCRIPT)
    if entry.inputs == 1:
        script = [step[1] if isinstance(step, tuple) else step for step in SCRIPT]
    if not issubclass(entry.operator, ColumnarOperator):
        return script
    before = next(ancestor for ancestor in ancestors(step) if ancestor.name == "window.partials")
    with harness_of(before) as harness:
        for element in script:
            if isinstance(element, Watermark):
                harness.push_watermark(element.timestamp)
                harness.snapshot()
            else:
                harness.push(element.value, element.timestamp)
        harness.end_input()
        elements: list[Any] = harness.get_elements()
        return elements[:-1]


def ancestors(step: Any) -> Iterator[Any]:
    for input_ in step.inputs:
        yield input_
        yield from ancestors(input_)


@pytest.mark.slow("all epochs of each operator, cut everywhere")
@pytest.mark.parametrize("entry", OPERATORS, ids=str)
def test_the_laws(entry):
    env = StreamExecutionEnvironment()
    step = entry.build(*(env.from_collection([], ROW) for _ in range(entry.inputs)))._step
    with harness_of(step) as harness:
        assert type(harness.operator) is entry.operator

    def open_harness(**options: Any) -> Any:
        return harness_of(step, entry.operator, **options)

    check_operator(open_harness, input_of(entry, step), ordered=entry.ordered, examples=6)


def test_the_operator_that_does_nothing():
    script = [item[1] if isinstance(item, tuple) else item for item in SCRIPT]
    node = ChainNode("nothing", "nothing", PASS_THROUGH)
    check_operator(lambda **options: OneInputStreamOperatorTestHarness(node, **options), script)
