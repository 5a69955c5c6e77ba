from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import MapFunction, OperatorError, Partitioner, ProgramError, StreamExecutionEnvironment
from pillarbox.testing import ProgramTestHarness, row


class Where(MapFunction):
    def open(self, runtime_context):
        self.subtask = runtime_context.get_index_of_this_subtask()

    def map(self, value):
        return value, self.subtask


SPREAD = {
    "shuffle": lambda stream: stream.shuffle(),
    "rescale": lambda stream: stream.rescale(),
    "rebalance": lambda stream: stream.rebalance(),
    "global": lambda stream: stream.global_(),
    "custom": lambda stream: stream.partition_custom(lambda key, n: key % n, lambda value: value),
    "broadcast": lambda stream: stream.broadcast(),
    "forward behind a rebalance": lambda stream: stream.rebalance().map(lambda value: value).forward(),
}


@pytest.mark.slow("a model")
@pytest.mark.parametrize("how", SPREAD)
@given(st.lists(st.integers(0, 99), max_size=30), st.integers(1, 4), st.integers(1, 3))
def test_each_record_comes_where_it_belongs_also_if_an_epoch_is_run_again(how, values, parallelism, partitions):
    outs = []
    for fails in (False, True):
        with ProgramTestHarness(
            lambda env, numbers: SPREAD[how](numbers).map(Where()), parallelism=parallelism
        ) as harness:
            for _ in range(2):
                for number, value in enumerate(values):
                    harness.push("numbers", value, partition=number % partitions)
                if fails:
                    harness.fail_epoch()
                outs.append(harness.run_epoch()["output"])
    assert outs[:2] == outs[2:]
    out = outs[1]
    copies = parallelism if how == "broadcast" else 1
    assert Counter(value for value, _ in out) == Counter(value for value in values for _ in range(copies))
    if how == "global":
        assert {subtask for _, subtask in out} <= {0}
    elif how == "custom":
        assert all(subtask == value % parallelism for value, subtask in out)
    elif how == "broadcast":
        assert Counter(out) == Counter((value, subtask) for value in values for subtask in range(parallelism))
    elif how == "rescale":
        expected = Counter((value, (number % partitions) % parallelism) for number, value in enumerate(values))
        assert Counter(out) == expected


def test_a_shuffle_uses_all_subtasks():
    with ProgramTestHarness(lambda env, numbers: numbers.shuffle().map(Where()), parallelism=4) as harness:
        harness.push_all("numbers", range(400))
        counts = Counter(subtask for _, subtask in harness.run_epoch()["output"])
    assert sorted(counts) == [0, 1, 2, 3]
    assert min(counts.values()) > 50


@pytest.mark.parametrize("how", ["rebalance", "shuffle", "rescale behind one"])
def test_a_trickle_comes_to_all_subtasks(how):
    def build(env, numbers):
        if how == "rescale behind one":
            return numbers.rebalance().map(lambda value: value).set_parallelism(1).rescale().map(Where())
        return SPREAD[how](numbers).map(Where())

    with ProgramTestHarness(build, parallelism=4) as harness:
        results = []
        for number in range(24):
            harness.push("numbers", number)
            results += harness.run_epoch()["output"]
    assert [number for number, _ in results] == list(range(24))
    counts = Counter(subtask for _, subtask in results)
    assert set(counts) == {0, 1, 2, 3}
    assert how == "shuffle" or set(counts.values()) == {6}


class ByName(Partitioner):
    def partition(self, key, num_partitions):
        return {"a": 0, "b": num_partitions - 1}[key]


def test_a_partitioner_gets_the_key_of_columns():
    def build(env, events):
        return events.partition_custom(ByName(), "name").map(Where())

    with ProgramTestHarness(build, parallelism=3) as harness:
        harness.push("events", row(name="a"), row(name="b"), row(name="a"))
        assert sorted(harness.run_epoch()["output"]) == [(("a",), 0), (("a",), 0), (("b",), 2)]
        harness.push("events", row(name="c"))
        with pytest.raises(OperatorError, match=r"the partitioner failed at the record Row\(name='c'\)"):
            harness.run_epoch()


@pytest.mark.parametrize("target", [2, -1, 1.0, None, True, "1"])
def test_a_subtask_that_is_none_is_named(target):
    numbers = StreamExecutionEnvironment().set_parallelism(2).from_collection([7])
    spread = numbers.partition_custom(lambda key, n: target, lambda number: number).map(str)
    with pytest.raises(OperatorError, match="there are 2 subtasks: return a number from 0 to 1") as caught:
        spread.execute_and_collect()
    assert "the partitioner failed at the record 7" in str(caught.value)


def test_wrong_uses_are_refused():
    numbers = StreamExecutionEnvironment().from_collection([1])
    with pytest.raises(ProgramError, match=r"partition_custom\(\) got 5: pass a function or Partitioner"):
        numbers.partition_custom(5, lambda number: number)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"pass an instance: ByName\(\)"):
        numbers.partition_custom(ByName, "name")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"takes a function or column names, not 5"):
        numbers.partition_custom(ByName(), 5)  # type: ignore[arg-type]
