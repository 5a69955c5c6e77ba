"""Each operator is part of a ``make chaos`` program, or the table of operators states why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pillarbox._graph.program import Program
from pillarbox._operators.async_keyed.two_inputs import AsyncKeyedBroadcastOperator, AsyncKeyedCoProcessOperator
from pillarbox._operators.frame.captured import Captured
from pillarbox._operators.frame.operator import StreamOperator
from pillarbox._operators.stateless.sinks import PrintOperator
from pillarbox._runtime.spark import runtime
from pillarbox.testing._tws_tester import _TestedOperator
from pillarbox_tools.replay.refused_calls import UnansweredCallOperator
from tests.faults.parts import columns
from tests.faults.parts.part import streams_of
from tests.faults.programs import job, limited_job, second_job
from tests.faults.programs.job import NO_FAULTS
from tests.faults.programs.second_job import MODES
from tests.operators_table.table import BASES, OPERATORS, OTHERS, SPARK_PROGRAMS, chaos_parts
from tests.operators_table.test_entries import all_operators

ONE_RUNNER = (AsyncKeyedCoProcessOperator, AsyncKeyedBroadcastOperator)
NOT_UNDER_FAULTS: dict[type[StreamOperator], str] = {
    **dict.fromkeys(BASES, "is what others are made of"),
    **{operator: OTHERS[operator] for operator in (*SPARK_PROGRAMS, _TestedOperator)},
    **dict.fromkeys(ONE_RUNNER, "has the loop, the elements and the snapshots of AsyncKeyedOperator, which is"),
    PrintOperator: "writes to the output of a worker, where nothing can be compared",
    UnansweredCallOperator: "is in no query: it stops a replay at a call",
}


class Rows:
    schema = StructType().add("id", "long").add("key", "long").add("ts", "long")
    columns = schema.names
    mapInArrow = createDataFrame = None
    isStreaming = True

    @property
    def sparkSession(self) -> Rows:
        return self

    def coalesce(self, partitions: int) -> Rows:
        return self


class Shown:
    programs: list[Program]
    parallelism = task_slots = 2
    time_zone = "UTC"

    def __init__(self, session: Any) -> None: ...

    def collect(self, program: Program, limit: int | None = None) -> Iterator[list[Any]]:
        self.programs.append(program)
        yield []

    def dataframe(self, program: Program, schema: StructType) -> None:
        self.programs.append(program)


def operators_of(make: Callable[..., Any] | None) -> Iterator[type[StreamOperator]]:
    if make is None:
        return
    if isinstance(make, Captured):
        make = make.function
    operator: Any = make.func if isinstance(make, partial) else make
    assert isinstance(operator, type) and issubclass(operator, StreamOperator), f"an operator is made by {make}"
    yield operator
    if isinstance(make, partial):
        yield from operators_of(make.keywords.get("make"))


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    Shown.programs = []
    monkeypatch.setattr(runtime, "SparkRuntime", Shown)
    return Shown.programs


def test_every_operator_is_under_faults(programs):
    events: Any = Rows()
    job.build(events, further=streams_of(chaos_parts()))
    columns.processed(events, events)
    for mode in MODES:
        second_job.build(events, "http://nowhere", mode, NO_FAULTS)
    limited_job.first_sums(events, NO_FAULTS)
    assert len(programs) == 3 + len(MODES)
    nodes = [node for program in programs for vertex in program.vertices for node in vertex.nodes]
    tested = {operator for node in nodes for operator in operators_of(node.factory.make)}
    missing = set(all_operators()) - tested - NOT_UNDER_FAULTS.keys()
    missing -= {entry.operator for entry in OPERATORS if entry.lacks("chaos")}  # tested by the table's own test
    assert not missing, f"chaos has no program with {missing}: enter a part in the table, or say why not"
    assert not tested & NOT_UNDER_FAULTS.keys(), "there is a program with what is said to be in none"
