from __future__ import annotations

from typing import Any

import pytest

from pillarbox import KeyedProcessFunction, OutputTag, ProgramError, StreamExecutionEnvironment
from pillarbox.testing import ProgramTestHarness

LATE = OutputTag("late")
seen: list[Any] = []


def write(value: Any) -> Any:
    seen.append(value)
    return value


class Writes(KeyedProcessFunction):
    def process_element(self, value, ctx):
        seen.append((ctx.get_current_key(), value))
        ctx.output(LATE, value)


async def send(value: Any) -> Any:
    return write(value)


@pytest.fixture(autouse=True)
def nothing_is_seen():
    seen.clear()


BRANCHES = {
    "map": lambda stream: stream.map(write),
    "a chain": lambda stream: stream.map(str).map(int).map(write),
    "flat_map": lambda stream: stream.flat_map(lambda value: [write(value)]),
    "map_async": lambda stream: stream.map_async(send, timeout=None, capacity=1),
    "then a key": lambda stream: stream.map(write).key_by(lambda value: value),
    "then a side output": lambda stream: stream.map(write).get_side_output(LATE),
    "then a union": lambda stream: stream.map(write).union(stream),
}


@pytest.mark.parametrize("branch", BRANCHES.values(), ids=BRANCHES)
def test_it_runs_beside_a_sink(branch, capsys):
    env = StreamExecutionEnvironment().set_parallelism(1)
    stream = env.from_collection([1, 2, 3])
    branch(stream)
    stream.print()
    env.execute()
    assert sorted(seen) == [1, 2, 3]
    assert capsys.readouterr().out == "1\n2\n3\n"


def test_it_runs_behind_a_shuffle_and_alone():
    env = StreamExecutionEnvironment().set_parallelism(2)
    env.from_collection([1, 2, 3]).key_by(lambda value: value % 2).process(Writes())
    env.execute()
    assert sorted(seen) == [(0, 2), (1, 1), (1, 3)]


def test_it_runs_once(capsys):
    env = StreamExecutionEnvironment().set_parallelism(1)
    stream = env.from_collection([1])
    stream.map(write)
    stream.print()
    env.execute()
    stream.map(write)
    stream.print()
    env.execute()
    assert seen == [1, 1]
    with pytest.raises(ProgramError, match="no"):
        env.execute()


def test_the_input_of_another_program_is_no_branch(capsys):
    env = StreamExecutionEnvironment().set_parallelism(1)
    stream = env.from_collection([1, 2])
    assert stream.map(write).execute_and_collect() == [1, 2]
    stream.print()
    env.execute()
    assert seen == [1, 2]


def test_branches_without_a_sink_are_ignored(capsys):
    env = StreamExecutionEnvironment().set_parallelism(1)
    stream = env.from_collection([1])
    stream.key_by(write)
    stream.union(env.from_collection([2]))
    stream.print()
    env.execute()
    assert seen == [] and capsys.readouterr().out == "1\n"


def test_it_is_in_the_plan(capsys):
    env = StreamExecutionEnvironment().set_parallelism(1)
    numbers = env.from_collection([1])
    numbers.map(write)
    numbers.print()
    assert "map: write -> discard" in str(env.get_execution_graph())


def test_a_harness_runs_what_it_looks_at():
    def build(env, numbers):
        numbers.map(write)
        return numbers.map(str)

    with ProgramTestHarness(build) as harness:
        harness.push("numbers", 1, 2)
        assert harness.run_epoch()["output"] == ["1", "2"]
    assert seen == []
