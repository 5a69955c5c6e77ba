from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox import ProgramError
from pillarbox._graph.layout import Layout
from pillarbox._reports.failure import FailedAttempt, Failure
from pillarbox._reports.plan import Plan, PlanOperator, PlanVertex
from pillarbox._runtime.spark.plan.registry import RegisteredProgram, vertex_with
from pillarbox_tools.recording.target import Target


def vertex(number: int, level: int, *operators: tuple[str, str]) -> PlanVertex:
    return PlanVertex("p", number, level, "map", 2, False, [], [PlanOperator(*operator) for operator in operators])


# One output takes the records of three tasks.
SOURCE = vertex(0, 0, ("map", "split"), ("output", "all-output"))
COUNTED = vertex(1, 1, ("count", "count"), ("output", "all-output"))
OUTPUT = vertex(2, 1, ("output", "all-output"))
EVERY = [SOURCE, COUNTED, OUTPUT]


def planned(*vertices: PlanVertex) -> RegisteredProgram:
    facts: Any = SimpleNamespace(plan=Plan(list(vertices), []))
    return RegisteredProgram("program", 2, Layout(2, 128), False, False, facts)


PROGRAM = planned(*EVERY)


@pytest.mark.parametrize(("uid", "vertex"), [("split", SOURCE), ("count", COUNTED), ("map", SOURCE)])
def test_a_uid_or_a_name_that_one_of_them_has(uid: str, vertex: PlanVertex) -> None:
    assert vertex_with([PROGRAM], uid) == (PROGRAM, vertex)


def test_a_uid_in_several_programs_is_resolved_by_the_failed_vertex() -> None:
    says = "the query has 3 tasks with an operator 'all-output': 'map -> output', 'count -> output', 'output'. Pass a"
    for name in ("all-output", "output"):
        with pytest.raises(ProgramError, match=says.replace("all-output", name)):
            vertex_with([PROGRAM], name)
    for vertex in EVERY:
        failure = Failure.of(ValueError("no"), 1, FailedAttempt(vertex.number, 7, 0))
        assert vertex_with([PROGRAM], "all-output", failure.vertex) == (PROGRAM, vertex)


def test_an_unknown_uid() -> None:
    with pytest.raises(ProgramError, match=r"no operator with the uid 'cuont'; it has 'split', 'all-output', 'count'$"):
        vertex_with([PROGRAM], "cuont")


def test_a_task_goes_by_the_uid_that_no_other_has() -> None:
    uids = [Target(PROGRAM, vertex, 0, 7, None, None).uid for vertex in EVERY]
    assert uids == ["split", "count", "all-output"]
    assert Target(planned(vertex(0, 0, ("map", ""))), vertex(0, 0, ("map", "")), 0, 7, None, None).uid == ""
