"""Programs with more steps than Python's recursion limit."""

from __future__ import annotations

import pytest

from pillarbox import OperatorError, StreamExecutionEnvironment, Types
from pillarbox._datastream.checks.schemas import known_schema

DEEP = 1_100


@pytest.mark.slow("a thousand steps")
def test_a_chain_of_many_steps_has_a_plan():
    env = StreamExecutionEnvironment()
    stream = env.from_collection([1])
    for _ in range(DEEP):
        stream = stream.map(lambda number: number + 1)
    plan = env.get_execution_graph()
    assert [len(vertex.nodes) for vertex in plan.vertices] == [DEEP + 2]
    # Each operator of a chain calls the next.
    with pytest.raises(OperatorError, match=rf"its {DEEP + 2} operators call each other; divide the chain by"):
        stream.execute_and_collect()


@pytest.mark.long("the other tests have programs as deep")
def test_a_union_of_many_unions_gives_the_records_of_all():
    env = StreamExecutionEnvironment()
    number = Types.ROW_NAMED(["n"], [Types.LONG()])
    stream = env.from_collection([(0,)], number)
    for n in range(1, DEEP):
        stream = stream.union(env.from_collection([(n,)], number))
    assert sorted(record.n for record in stream.execute_and_collect()) == list(range(DEEP))
    schema = known_schema(stream._step)
    assert schema is not None and schema.names == ["n"]


def test_many_partitions_in_a_row_count_as_the_last_one():
    env = StreamExecutionEnvironment().set_parallelism(2)
    stream = env.from_collection([1])
    for _ in range(DEEP):
        stream = stream.rebalance()
    stream.global_().map(str).print()
    (edge,) = [edge for _, edge, receiver in env.get_execution_graph().edges() if not isinstance(receiver, str)]
    assert "Global" in type(edge.partitioner).__name__
