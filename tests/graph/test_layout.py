"""Parallelism, max parallelism, and a checkpoint's layout."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from pillarbox import CheckpointMismatchError, ProgramError, StreamExecutionEnvironment
from pillarbox._graph.description import compare, describe_programs, read_layouts
from pillarbox._graph.layout import Layout, lay_out, subtask_places
from pillarbox._graph.targets import CODES, subtask_codes
from pillarbox._graph.transformations import SinkTransformation
from pillarbox._runtime.spark.tasks.task_info import TaskInfo, TaskLayout
from tests.runtime.spark_of_dicts import context_of_task


class Frame:
    columns = ("key",)
    schema = StructType([StructField("key", LongType())])
    sparkSession = SimpleNamespace(conf=SimpleNamespace(get=lambda name, default="UTC": default))

    def __init__(self, *, streaming: bool) -> None:
        self.isStreaming = streaming

    def mapInArrow(self) -> None: ...


def constant(record: Any) -> Any:
    return record


def compiled(parallelism: int = 2, most: int | None = None, *, streaming: bool = True, report: int | None = None):
    env = StreamExecutionEnvironment().set_parallelism(parallelism)
    if most is not None:
        env.set_max_parallelism(most)
    stream = env.from_dataframe(Frame(streaming=streaming)).key_by("key").reduce(max).uid("most")  # type: ignore[arg-type]
    if report is not None:
        stream = stream.map(constant).set_parallelism(report).uid("report")
    sink = SinkTransformation(env._next(), "out", [stream._plain_step()], output="out", uid="out")
    return env._compile("test", [sink])


def numbers(program):
    return [(v.parallelism, v.job_parallelism, v.max_parallelism, len(v.edges[0].targets)) for v in program.vertices]


def test_a_streaming_query_has_a_subtask_for_each_key_group():
    program = compiled(2)
    assert (program.parallelism, program.max_parallelism, program.layout) == (2, 4, Layout(4, 4))
    assert numbers(program) == [(0, 4, 4, 4), (4, 4, 4, 1)]
    assert str(program).startswith("Program 'test': parallelism 2, max parallelism 4\n")
    assert compiled(3, 5).layout == Layout(5, 5)
    # Without a checkpoint, only as many subtasks as run at a time are needed.
    assert compiled(2, streaming=False).layout == Layout(2, 4)
    assert numbers(compiled(2, streaming=False)) == [(0, 2, 4, 2), (2, 2, 4, 1)]
    with pytest.raises(
        ProgramError, match="parallelism 6 is above the max parallelism 5, so some subtasks would have no"
    ):
        compiled(6, 5)


def test_an_operator_of_a_parallelism_of_its_own():
    program = compiled(2, report=1)
    assert [vertex.parallelism for vertex in program.vertices] == [0, 4, 1]
    assert "uid=report  parallelism=1" in str(program)
    # By default it is at least the most subtasks that an operator has.
    assert compiled(2, report=16).layout == Layout(16, 16)
    # The default depends on the parallelism, which may change. So chains do not depend on it: 16 is one's own number.
    assert len(compiled(2, report=16).vertices) == len(compiled(4, report=16).vertices) == 3
    assert len(compiled(2, 16, report=16).vertices) == len(compiled(4, 16, report=16).vertices) == 2


def test_a_program_takes_the_layout_of_a_checkpoint():
    program, layout = compiled(2, report=1), Layout(4, 128, CODES)
    for vertex in program.vertices:
        lay_out(vertex, layout)
    assert numbers(program) == [(0, 4, 128, 4), (4, 4, 128, 1), (1, 4, 128, 1)]
    codes = subtask_codes(1, 4)
    assert program.vertices[0].edges[0].targets == codes
    assert program.vertices[1].edges[0].targets == subtask_codes(2, 1) == [2]
    assert [edge.parallelism for vertex in program.vertices for edge in vertex.inputs] == [0, 4]
    assert program.vertices[1].edges[0].senders == 4 and program.vertices[0].edges[0].senders == 0
    assert [vertex.codes for vertex in program.vertices] == [CODES] * 3
    places = subtask_places(program.parallelisms, layout)
    assert places == {**{code: (1, subtask) for subtask, code in enumerate(codes)}, 2: (2, 0)}
    lay_out(program.vertices[0], Layout(3, 3, CODES))
    assert program.vertices[0].edges[0].targets == subtask_codes(1, 3)


def test_tasks_learn_the_layout_from_their_query(monkeypatch):
    from pyspark import TaskContext

    program = compiled(2)
    layout = TaskLayout.of(program)
    compiled_with = TaskInfo.here(layout).layout
    assert compiled_with == Layout(4, 4, 2)
    assert [layout.decode(compiled_with, code) for code in (1, 2)] == [(1, 0), None]
    context = context_of_task(0, 0, {f"spark.pillarbox.layout.{program.id}": "[4, 128, 2]"})
    monkeypatch.setattr(TaskContext, "_taskContext", context)
    current = TaskInfo.here(layout).layout
    assert current == Layout(4, 128, 2)
    assert layout.decode(current, subtask_codes(1, 4)[3]) == (1, 3)


def described(program, layout=None):
    return describe_programs([program], None if layout is None else [layout])


def test_the_max_parallelism_of_a_resumed_query():
    then = described(compiled(2))
    assert (then["programs"][0]["parallelism"], then["programs"][0]["operators"][0]["parallelism"]) == (4, 4)
    assert compare(then, described(compiled(4), Layout(4, 4))).refused == []
    assert compare(then, described(compiled(4))).refused == []  # as another checkpoint has it, begun by such a program
    assert compare(then, described(compiled(4, 4))).refused == []
    assert compare(then, described(compiled(4, 20))).refused == [
        "max_parallelism was 4, and is now 20, but a checkpoint's value is fixed: call set_max_parallelism(4), or drop"
        " the call"
    ]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"number": 3}', '{"codes": "2"}', '{"codes": 2}', '{"format": 1, "programs": []}'],
)
def test_other_notes_are_skipped(text):
    assert read_layouts(text) is None


def test_notes_of_layouts():
    noted = read_layouts('{"codes": 2, "layouts": [[16, 16]], "number": 3}')
    assert noted is not None and tuple(noted) == (3, 2, [[16, 16]])
    assert json.loads(noted.to_json()) == {"codes": 2, "layouts": [[16, 16]], "number": 3}


@pytest.mark.parametrize(
    ("codes", "advice"), [(1, "run the version of pillarbox that wrote it"), (3, "update pillarbox")]
)
def test_another_scheme_of_codes_is_refused(codes, advice):
    with pytest.raises(CheckpointMismatchError) as caught:
        read_layouts(json.dumps({"codes": codes, "layouts": [[16, 16]], "number": 3}))
    message = str(caught.value)
    assert f"numbers its subtasks by version {codes}, but this version of pillarbox by version 2: {advice}" in message


def test_a_local_job_takes_the_key_groups_of_its_savepoint():
    def job(most, savepoint=None):
        env = StreamExecutionEnvironment().set_parallelism(2)
        if most is not None:
            env.set_max_parallelism(most)
        stream = env.from_collection(list(range(20))).key_by(constant).reduce(lambda a, b: a + b).uid("sum")
        return env.local_job(savepoint=savepoint, out=stream)

    with job(100) as first:
        first.run()
        saved = first.savepoint()
    with job(None, saved) as again:
        assert sorted(again.run()["out"]) == [2 * n for n in range(20)]
    with (
        job(50, saved) as other,
        pytest.raises(Exception, match="written with 100 key groups, the program runs with 50"),
    ):
        other.run()
