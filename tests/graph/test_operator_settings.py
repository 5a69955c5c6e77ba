from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    CheckpointMismatchError,
    CoMapFunction,
    OutputTag,
    ProcessFunction,
    ProgramError,
    StreamExecutionEnvironment,
)
from pillarbox._elements.records import Records
from pillarbox._graph.description import compare, describe_programs
from pillarbox._task.network.partitioner import ForwardPartitioner, RescalePartitioner
from tests.graph.test_program import Keyed, compiled, environment, key, shape

ODD = OutputTag("odd")


class Where(ProcessFunction):
    def open(self, runtime_context):
        self.place = runtime_context.get_index_of_this_subtask(), runtime_context.get_number_of_parallel_subtasks()

    def process_element(self, value, ctx):
        yield value, *self.place


class Split(ProcessFunction):
    def process_element(self, value, ctx):
        yield (ODD, value) if value % 2 else value


class Both(CoMapFunction):
    def map1(self, value):
        return value

    def map2(self, value):
        return value


def labels(program):
    return [(sender.number, edge.partitioner.label) for sender, edge, _ in program.edges()]


def test_an_operator_with_a_parallelism_of_its_own():
    env = environment(4)
    keyed = env.from_collection([1, 2]).key_by(key).reduce(max)
    stream = keyed.map(key).set_parallelism(1).filter(key).set_parallelism(1).map(str)
    program = compiled(env, out=stream)
    assert shape(program)[0] == [
        (0, ["collection"]),
        (1, ["reduce: max"]),
        (2, ["map: key", "filter: key"]),
        (3, ["map: str", "out"]),
    ]
    assert [vertex.parallelism for vertex in program.vertices] == [0, 4, 1, 4]
    assert labels(program) == [(0, "key by function"), (1, "rebalance"), (2, "rebalance"), (3, "rows")]
    assert [[edge.parallelism for edge in vertex.inputs] for vertex in program.vertices] == [[], [0], [4], [1]]
    assert [len(edge.targets) for vertex in program.vertices for edge in vertex.edges] == [4, 1, 4, 1]
    assert "[2] map: key -> filter: key  uid=map-4  parallelism=1\n" in str(program)
    assert "<br/>parallelism 1" in program.to_mermaid()


def test_sinks_stay_where_their_records_are():
    env = environment(4)
    stream = env.from_collection([1]).key_by(key).reduce(max).set_parallelism(1)
    stream.print()
    stream.print().set_parallelism(2)
    stream.print().disable_chaining()
    program = env.get_execution_graph()
    assert [(vertex.name, vertex.parallelism) for vertex in program.vertices] == [
        ("collection", 0),
        ("reduce: max -> print", 1),
        ("print", 2),
        ("print", 1),
    ]
    assert labels(program)[1:] == [(1, "rebalance"), (1, "forward")]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_keyed_state_in_fewer_subtasks(parallelism):
    env = environment(3)
    words = env.from_collection([f"word {number % 7}" for number in range(50)]).key_by(key)
    counts = words.map(lambda word: word).key_by(key).process(Keyed()).set_parallelism(parallelism)
    seen = counts.process(Where()).set_parallelism(parallelism).execute_and_collect()
    assert sorted(word for word, _, _ in seen) == sorted(f"word {number % 7}" for number in range(50))
    assert {of for _, _, of in seen} == {parallelism}
    assert {subtask for _, subtask, _ in seen} == set(range(parallelism))
    assert len({(word, subtask) for word, subtask, _ in seen}) == 7


def test_a_parallelism_of_its_own_behind_a_source():
    env = environment(3)
    seen = env.from_collection(range(9)).process(Where()).set_parallelism(3).execute_and_collect()
    assert sorted(seen) == [
        (0, 0, 3),
        (1, 0, 3),
        (2, 0, 3),
        (3, 1, 3),
        (4, 1, 3),
        (5, 1, 3),
        (6, 2, 3),
        (7, 2, 3),
        (8, 2, 3),
    ]
    assert env.from_collection([1]).set_parallelism(1).map(str).execute_and_collect() == ["1"]


def test_chains_end_where_the_user_says_so():
    env = environment()
    first = env.from_collection([1]).map(str).name("a").map(str).name("b").start_new_chain().map(str).name("c")
    program = compiled(env, out=first.map(str).name("d").disable_chaining().map(str).name("e"))
    assert shape(program)[0] == [(0, ["collection", "a"]), (1, ["b", "c"]), (2, ["d"]), (3, ["e", "out"])]
    assert [label for _, label in labels(program)] == ["forward", "forward", "forward", "rows"]
    assert [vertex.parallelism for vertex in program.vertices] == [0, 2, 2, 2]


def test_without_chaining_each_operator_is_a_vertex():
    env = environment().disable_operator_chaining()
    split = env.from_collection(range(6)).map(key).process(Split())
    together = split.map(key).union(split.get_side_output(ODD)).map(key)
    program = compiled(env, out=together)
    assert all(len(vertex.nodes) == 1 for vertex in program.vertices[:-1])
    assert sorted(together.execute_and_collect()) == list(range(6))


def test_unchained_operators_keep_subtask_and_order():
    env = environment(3)
    first = env.from_collection(range(60)).rebalance().process(Where())
    second = first.map(lambda seen: seen).disable_chaining().process(Where()).disable_chaining()
    seen = second.execute_and_collect()
    assert sorted(value for (value, _, _), _, _ in seen) == list(range(60))
    assert all(before == after for (_, before, _), after, _ in seen)
    for subtask in range(3):
        own = [value for (value, _, _), index, _ in seen if index == subtask]
        assert own == sorted(own)


def test_forward_is_a_promise():
    env = environment(2)
    stream = env.from_collection([1, 2]).rebalance().map(key)
    assert shape(compiled(env, out=stream.forward().map(str)))[0][1][1] == ["map: key", "map: str", "out"]
    with pytest.raises(ProgramError, match="'map: key' has parallelism 2, and 'map: str' parallelism 1: drop forw"):
        stream.forward().map(str).set_parallelism(1).execute_and_collect()
    stream_ = stream.map(key).set_parallelism(1)
    with pytest.raises(ProgramError, match="has parallelism 1, and 'map: str' parallelism 2"):
        stream_.forward().map(str).execute_and_collect()
    with pytest.raises(ProgramError, match="has the partitions of its source, and 'map: str' parallelism 2"):
        env.from_collection([1]).forward().map(str).set_parallelism(2).execute_and_collect()
    # Two inputs are never chained.
    both = stream.forward().connect(stream.forward()).map(Both())
    assert sorted(both.execute_and_collect()) == [1, 1, 2, 2]


def test_more_subtasks_than_key_groups():
    env = environment(2)
    stream = env.from_collection([1]).map(str).set_parallelism(17)
    assert stream.execute_and_collect() == ["1"]  # by default there are as many as an operator asks for
    env.set_max_parallelism(16)
    with pytest.raises(
        ProgramError, match="operator 'map: str' has parallelism 17, above the max parallelism 16, so some"
    ):
        stream.execute_and_collect()
    env.set_max_parallelism(17)
    assert stream.execute_and_collect() == ["1"]


@given(st.integers(1, 9), st.integers(1, 9))
def test_rescale_deals_out_as_flink_does(senders, receivers):
    """Each sender has its own receivers, or each receiver its own senders. The shares differ by at most one."""
    reached: list[list[int]] = []
    for subtask in range(senders):
        selector = RescalePartitioner().selector(receivers, 128, senders)
        selector.begin_epoch(subtask, 0)
        shares = list(selector.divide(Records(list(range(receivers)))))
        assert sorted(value for _, share in shares for value in share.values) == list(range(receivers))
        reached.append([target for target, _ in shares])
    if senders <= receivers:
        assert [target for targets in reached for target in targets] == list(range(receivers))
        assert max(map(len, reached)) - min(map(len, reached)) <= 1
    else:
        flat = [target for (target,) in reached]
        assert flat == sorted(flat) and set(flat) == set(range(receivers))
        # Flink: receiver r has the senders from r * S // R to before (r + 1) * S // R.
        assert flat == [
            r for r in range(receivers) for _ in range(r * senders // receivers, (r + 1) * senders // receivers)
        ]


def test_forward_from_the_partitions_of_a_source():
    selector = ForwardPartitioner().selector(2, 128, 0)
    selector.begin_epoch(5, 0)
    assert [target for target, _ in selector.divide(Records([1, 2]))] == [1]


def test_a_checkpoint_keeps_the_parallelism_of_each_operator():
    def described(total, own):
        env = environment(total)
        stream = env.from_collection([1]).key_by(key).reduce(max).uid("most")
        if own is not None:
            stream.set_parallelism(own)
        return describe_programs([compiled(env, out=stream)])

    assert compare(described(4, 2), described(4, 2)).refused == []
    assert compare(described(4, 2), described(4, None)).refused == [
        "operator 'most' had parallelism 2, and now has 4, but a checkpoint's value is fixed: call set_parallelism(2)"
        " on the operator"
    ]
    assert compare(described(4, None), described(2, None)).refused == []  # it is taken from the checkpoint


def test_state_of_another_parallelism_is_refused():
    def job(own, savepoint=None):
        env = StreamExecutionEnvironment().set_parallelism(4)
        stream = env.from_collection(range(20)).key_by(key).reduce(max).uid("most").set_parallelism(own)
        return env.local_job(savepoint=savepoint, out=stream)

    with job(2) as first:
        first.run_epoch({0: [[Records(list(range(20)))]]})
        saved = first.savepoint()
    with job(2, saved) as again:
        assert sorted(again.run_epoch({0: [[Records([3])]]})["out"]) == [3]
    with pytest.raises(CheckpointMismatchError, match="subtask 1, but the program has no such subtask"):
        job(1, saved)


def test_methods_of_flink_that_are_not_there():
    env = environment()
    stream = env.from_collection([1]).map(str)
    with pytest.raises(AttributeError, match=r"set_description\(\).*name"):
        stream.set_description("x")
    assert not hasattr(stream, "slot_sharing_group")
