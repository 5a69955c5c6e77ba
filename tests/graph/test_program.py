from __future__ import annotations

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProgramError,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._elements.buffers import channel_code, edge_of_channel
from pillarbox._graph.targets import spark_hash, subtask_codes, value_of_hash
from pillarbox._graph.transformations import SinkTransformation
from pillarbox._task.vertex import edge_id

SIDE = OutputTag("side")


class Keyed(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value
        yield SIDE, value


class Both(KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        yield value

    def process_element2(self, value, ctx):
        yield value


class Plain(ProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Timers(Keyed):
    def process_element(self, value, ctx):
        def later():
            ctx.timer_service().register_processing_time_timer(5)

        later()
        return ()


def key(value):
    return value


class Stateful(MapFunction):
    def map(self, value):
        return value


async def asked(value):
    return value


def environment(parallelism=2):
    return StreamExecutionEnvironment().set_parallelism(parallelism)


def compiled(env, **outputs: DataStream):
    sinks = [
        SinkTransformation(env._next(), name, [stream._plain_step()], output=name, uid=f"output-{name}")
        for name, stream in outputs.items()
    ]
    return env._compile("test", sinks)


def shape(program):
    vertices = [(vertex.level, [node.name for node in vertex.nodes]) for vertex in program.vertices]
    edges = [
        (sender.number, receiver if isinstance(receiver, str) else receiver.number)
        for sender, _, receiver in program.edges()
    ]
    return vertices, sorted(edges, key=str)


def test_a_chain():
    env = environment()
    stream = env.from_collection([1]).name("numbers").map(key).filter(key).flat_map(lambda x: [x])
    vertices, edges = shape(compiled(env, out=stream))
    assert vertices == [(0, ["numbers", "map: key", "filter: key", "flat_map", "out"])]
    assert edges == [(0, "out")]


def test_a_shuffle_cuts_the_chain():
    env = environment()
    first = env.from_collection([1]).key_by(key).process(Keyed()).map(key)
    second = first.key_by("a", "b").reduce(max).filter(key)
    program = compiled(env, out=second)
    assert shape(program) == (
        [(0, ["collection"]), (1, ["process: Keyed", "map: key"]), (2, ["reduce: max", "filter: key", "out"])],
        [(0, 1), (1, 2), (2, "out")],
    )
    assert [edge.partitioner.label for vertex in program.vertices for edge in vertex.edges] == [
        "key by function",
        "key by a, b",
        "rows",
    ]
    assert [vertex.parallelism for vertex in program.vertices] == [0, 2, 2]
    assert [vertex.is_source for vertex in program.vertices] == [True, False, False]
    assert [[edge.parallelism for edge in vertex.inputs] for vertex in program.vertices] == [[], [0], [2]]
    assert [len(level) for level in program.levels] == [1, 1, 1]


def test_union_of_sources_before_a_shuffle():
    env = environment()
    first, second = env.from_collection([1]).name("one"), env.from_collection([2]).name("two")
    program = compiled(env, out=first.map(key).union(second).filter(key).key_by(key).process(Keyed()))
    assert shape(program) == (
        [(0, ["one", "map: key", "filter: key"]), (1, ["process: Keyed", "out"]), (0, ["two", "filter: key"])],
        [(0, 1), (1, "out"), (2, 1)],
    )
    assert [edge.vertex for edge in program.vertices[1].inputs] == [0, 2]


def test_two_key_bys_of_one_stream():
    env = environment()
    source = env.from_collection([1]).map(key)
    left, right = source.key_by("a").process(Keyed()), source.key_by("b").reduce(max)
    program = compiled(env, left=left, right=right)
    assert shape(program) == (
        [(0, ["collection", "map: key"]), (1, ["process: Keyed", "left"]), (1, ["reduce: max", "right"])],
        [(0, 1), (0, 2), (1, "left"), (2, "right")],
    )


def test_two_keyed_streams_are_connected():
    env = environment()
    lefts, rights = env.from_collection([1]).name("one"), env.from_collection([2]).name("two")
    program = compiled(env, out=lefts.connect(rights).key_by("a", "b").process(Both()))
    assert shape(program) == (
        [(0, ["one"]), (1, ["process: Both", "out"]), (0, ["two"])],
        [(0, 1), (1, "out"), (2, 1)],
    )
    (first, second) = (program.vertices[number].edges[0] for number in (0, 2))
    assert (first.index, second.index) == (0, 1)
    assert [(edge.vertex, edge.index) for edge in program.vertices[1].inputs] == [(0, 0), (2, 1)]
    assert program.vertices[1].key == {"inputs": [{"columns": ["a"]}, {"columns": ["b"]}]}


def test_a_stream_that_is_connected_with_itself_keeps_both_keys():
    env = environment()
    source = env.from_collection([1])
    program = compiled(env, out=source.key_by("a").connect(source.key_by("b")).process(Both()))
    edges = program.vertices[0].edges
    assert [(edge.partitioner.label, edge.index, edge.receiver) for edge in edges] == [
        ("key by a", 0, 1),
        ("key by b", 1, 1),
    ]
    assert len({edge.id for edge in edges}) == 2
    assert [edge.id for edge in program.vertices[1].inputs] == [edge.id for edge in edges]
    same = source.key_by("a")
    program = compiled(env, out=same.connect(same).process(Both()))
    assert [edge.index for edge in program.vertices[0].edges] == [0, 1]


def test_rebalance_makes_a_vertex_without_key():
    env = environment(3)
    spread = env.from_collection([1]).rebalance().map(key).filter(key)
    program = compiled(env, out=spread)
    assert shape(program) == (
        [(0, ["collection"]), (1, ["map: key", "filter: key", "out"])],
        [(0, 1), (1, "out")],
    )
    assert program.vertices[1].parallelism == 3
    assert program.vertices[1].key is None
    assert program.vertices[0].edges[0].partitioner.label == "rebalance"


def test_a_vertex_is_keyed_where_its_head_has_keyed_state_or_timers():
    env = environment(3)
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda number: number)
    source = env.from_collection([1]).assign_timestamps_and_watermarks(at)
    by_key = source.key_by("a")
    program = compiled(
        env,
        spread=source.rebalance().map(key),
        plain=by_key.map(key),
        process=by_key.process(Keyed()),
        reduce=by_key.reduce(max),
        forget=by_key.deduplicate("1 s"),
        state=by_key.map(Stateful()),
        both=by_key.connect(by_key).process(Both()),
    )
    keyed = {vertex.kind: vertex.is_keyed for vertex in program.vertices}
    assert [vertex.is_keyed for vertex in program.vertices if vertex.kind == "map"] == [False, False, True]
    assert not program.vertices[0].is_keyed and keyed["process"] and keyed["reduce"] and keyed["deduplicate"]
    assert all(vertex.is_keyed for vertex in program.vertices if vertex.kind == "process")


def test_properties_of_an_operator_before_it_is_created():
    env = environment()
    spread = env.from_collection([1]).rebalance()
    program = compiled(env, drains=spread.map_async(asked), carries=spread.map_async(asked, on_barrier="carry"))
    drains, carries = (vertex.nodes[0].factory for vertex in program.vertices[1:])
    assert (drains.wakes_up, drains.stateful, drains.keyed) == (True, False, False)
    assert (carries.wakes_up, carries.stateful, carries.keyed) == (True, True, False)
    assert not any(node.factory.wakes_up for node in program.vertices[0].nodes)


def test_the_last_way_of_spreading_holds():
    env = environment()
    source = env.from_collection([1])
    program = compiled(env, out=source.rebalance().key_by("a").rebalance().rebalance().map(key))
    assert [edge.partitioner.label for edge in program.vertices[0].edges] == ["rebalance"]
    program = compiled(env, out=source.rebalance().key_by("a").process(Keyed()))
    assert [edge.partitioner.label for edge in program.vertices[0].edges] == ["key by a"]


def test_streams_that_are_spread_and_meet_keep_their_ways():
    env = environment()
    source = env.from_collection([1])
    program = compiled(env, out=source.rebalance().union(source.map(key).rebalance()).map(key))
    assert [edge.partitioner.label for edge in program.vertices[0].edges] == ["rebalance", "rebalance"]
    assert len({edge.id for edge in program.vertices[0].edges}) == 2


def test_a_diamond_over_two_levels():
    env = environment()
    source = env.from_collection([1])
    left = source.key_by("a").process(Keyed())
    far = source.key_by("b").process(Keyed()).key_by("c").reduce(max)
    program = compiled(env, out=left.union(far, source).key_by("d").reduce(min))
    vertices, edges = shape(program)
    last = next(n for n, (_, names) in enumerate(vertices) if names == ["reduce: min", "out"])
    assert vertices[last][0] == 3  # behind the longest way
    assert [vertices[edge.vertex][0] for edge in program.vertices[last].inputs] == [0, 1, 2]
    assert [level for level, _ in vertices if level == 1] == [1, 1]
    assert all(vertices[sender][0] < vertices[to][0] for sender, to in edges if not isinstance(to, str))


def test_streams_that_meet_before_a_shuffle_share_one_edge():
    """Two edges to the same subtasks would send two barriers on one channel."""
    env = environment()
    source = env.from_collection([1])
    both = source.map(key).union(source.filter(key), source, source)
    program = compiled(env, out=both.key_by("k").reduce(max))
    assert shape(program)[1] == [(0, 1), (1, "out")]
    assert len(program.vertices[0].edges) == 1
    nodes = {node.name: node.output for node in program.vertices[0].nodes}
    assert nodes["collection"].edges == [0, 0]  # twice in the union: its records count twice
    assert nodes["map: key"].edges == nodes["filter: key"].edges == [0]


def test_an_operator_comes_behind_all_that_it_takes_from():
    env = environment()
    source = env.from_collection([1])
    joined = source.union(source.map(key)).filter(key)
    names = shape(compiled(env, out=joined))[0][0][1]
    assert names == ["collection", "map: key", "filter: key", "out"]


def test_side_outputs():
    env = environment()
    main = env.from_collection([1]).key_by("a").process(Keyed())
    side = main.get_side_output(SIDE)
    program = compiled(env, main=main, side=side.map(key), again=main.union(side).key_by("b").reduce(max))
    vertices, edges = shape(program)
    assert vertices[1] == (1, ["process: Keyed", "main", "map: key", "side"])
    assert edges == [(0, 1), (1, "main"), (1, "side"), (1, 2), (2, "again")]
    head = program.vertices[1].nodes[0]
    assert [node.node for node in head.side_outputs["side"].nodes] == [2]
    assert [node.node for node in head.output.nodes] == [1]
    assert head.side_outputs["side"].edges == head.output.edges


def test_a_keyed_stream_spreads_plain_operators_too():
    env = environment()
    keyed = env.from_collection([1]).key_by("a")
    program = compiled(env, one=keyed.map(key), two=keyed.process(Plain()), three=keyed)
    assert shape(program) == (
        [(0, ["collection", "three"]), (1, ["map: key", "one"]), (1, ["process: Plain", "two"])],
        [(0, "three"), (0, 1), (0, 2), (1, "one"), (2, "two")],
    )


def test_operators_without_an_output_are_left_out():
    env = environment()
    source = env.from_collection([1])
    source.key_by("a").process(Keyed())
    assert shape(compiled(env, out=source.map(key)))[0] == [(0, ["collection", "map: key", "out"])]


# -- uids --


def test_uids_are_given_or_derived_from_kind_and_place():
    env = environment()
    source = env.from_collection([1])
    named = source.key_by("a").process(Keyed()).uid("mine")
    derived = source.key_by("a").process(Keyed()).name("for people")
    program = compiled(env, given=named, derived=derived)
    assert [vertex.uid for vertex in program.vertices] == ["", "mine", "process-5"]


@pytest.mark.parametrize("connected", [True, False])
def test_a_uid_is_unique(connected):
    env = environment()
    first = env.from_collection([1]).map(key).uid("same")
    second = (first if connected else env.from_collection([1])).filter(key).uid("same")
    with pytest.raises(ProgramError, match=r"two operators have the uid 'same' \('map: key' and 'filter: key'\)"):
        compiled(env, one=first, two=second)


def test_wrong_uids():
    source = environment().from_collection([1])
    with pytest.raises(ProgramError, match="is for operators"):
        source.uid("x")
    for wrong in ("", 5, None):
        with pytest.raises(ProgramError, match="non-empty string"):
            source.map(key).uid(wrong)


# -- programs that cannot run --


def test_programs_that_are_refused():
    env, other = environment(), environment()
    source = env.from_collection([1])
    for build, text in (
        (lambda: compiled(env), "no output"),
        (source.union, "at least one other"),
        (lambda: source.union(5), "takes a stream"),
        (lambda: source.union(other.from_collection([1])), "same StreamExecutionEnvironment"),
        (lambda: source.map(5), "pass a function or MapFunction"),
        (lambda: source.process(Keyed()), "call key_by"),
        (lambda: source.process(Plain), r"pass an instance: Plain\(\)"),
        (lambda: source.key_by("a").process(Keyed), r"pass an instance: Keyed\(\)"),
        (lambda: source.get_side_output("x"), "takes an OutputTag"),
        (lambda: source.get_side_output(SIDE), "has no side outputs"),
        (lambda: env.set_parallelism(0), "positive integer"),
        (lambda: env.set_parallelism(True), "positive integer"),
        (lambda: env.set_max_parallelism(1 << 16), "whole number from 1 to 32768"),
        (
            lambda: compiled(environment(300).set_max_parallelism(200), x=source),
            "some subtasks would have no key group",
        ),
    ):
        with pytest.raises(ProgramError, match=text):
            build()


def test_a_class_may_be_a_function():
    assert environment().from_collection([1, 2]).map(str).execute_and_collect() == ["1", "2"]


# -- processing time --


class Declares(Keyed):
    uses_processing_time = True


class DeclaresOtherwise(Timers):
    uses_processing_time = False


class DeclaresByItself(Keyed):
    def __init__(self, declared):
        self.uses_processing_time = declared


def test_use_of_processing_time_is_said_or_declared_or_found_in_the_code():
    env = environment()
    source = env.from_collection([1])
    for function, options, expected in (
        (Keyed(), {}, False),
        (Timers(), {}, True),
        (Timers(), {"processing_time": False}, False),
        (Keyed(), {"processing_time": True}, True),
        (Declares(), {}, True),
        (Declares(), {"processing_time": False}, False),
        (DeclaresOtherwise(), {}, False),
        (DeclaresOtherwise(), {"processing_time": True}, True),
        (DeclaresByItself(True), {}, True),
        (DeclaresByItself(False), {}, False),
    ):
        program = compiled(env, out=source.key_by("a").process(function, **options))
        assert program.uses_processing_time is expected
        assert program.vertices[1].uses_processing_time is expected
    with pytest.raises(ProgramError, match=r"DeclaresByItself\.uses_processing_time must be True or False, not 'yes'"):
        source.key_by("a").process(DeclaresByItself("yes"))


# -- codes --


def test_spark_hash():
    # SELECT hash(0L), hash(1L), hash(-1L)
    assert [spark_hash(value) for value in (0, 1, -1)] == [-1670924195, -1712319331, -939490007]


@given(
    st.lists(st.integers(0, (1 << 16) - 1), min_size=1, max_size=4, unique=True),
    st.integers(1, 300),
    st.lists(st.integers(1, 400), min_size=1, max_size=8),
)
def test_subtasks_lie_evenly_over_any_number_of_partitions(vertices, parallelism, partitions):
    codes = [subtask_codes(vertex, parallelism) for vertex in vertices]
    assert len({code for own in codes for code in own}) == len(vertices) * parallelism
    for vertex, own in zip(vertices, codes):
        assert own[0] == vertex
        assert all(1 << 32 <= code < 1 << 63 for code in own[1:])  # no vertex's number
        for count in partitions:
            filled = collections.Counter(spark_hash(code) % count for code in own)
            assert len(filled) == min(count, parallelism)
            assert max(filled.values()) - min(filled.values()) <= 1


def test_hashes_at_the_end_of_32_bits_are_consecutive_as_well():
    of_the_last = (value_of_hash((1 << 31) - before, 0) for before in range(1, 1_000))
    near = next(vertex for vertex in of_the_last if vertex < (1 << 31) - 1)
    many = (1 << 31) - spark_hash(near) + 1_000
    hashes = [spark_hash(code) for code in subtask_codes(near, many)[::-1]]
    assert hashes == list(range(spark_hash(near) - many + 1, spark_hash(near) + 1))


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, (1 << 31) - 1))
def test_the_hash_can_be_inverted(hashed, upper):
    value = value_of_hash(hashed, upper)
    assert spark_hash(value) == hashed and value >> 32 == upper


def test_channels():
    edges = [edge_id(vertex, ordinal) for vertex in range(4) for ordinal in range(3)]
    assert [edge_of_channel(channel_code(edge, 7)) for edge in edges] == edges
    assert len({channel_code(edge, subtask) for edge in edges for subtask in range(1000)}) == 12_000
    # As it was while a vertex had one edge to another at the most: checkpoints hold these numbers.
    assert edge_id(5) == 5


# -- pictures --


def plan():
    env = environment(3)
    words = env.from_collection(["a"]).name("words")
    counted = words.flat_map(str.split).key_by(key).process(Keyed()).uid("count")
    loud = counted.get_side_output(SIDE).filter(key).name('"loud" <only>')
    return compiled(env, counts=counted.key_by("word", "day").reduce(max), loud=loud)


def test_plan_as_text():
    assert (
        plan().to_text()
        == str(plan())
        == (
            "Program 'test': parallelism 3, max parallelism 6\n"
            "Level 0 (sources)\n"
            "  [0] words -> flat_map: split\n"
            "        --key by function--> [1]\n"
            "Level 1\n"
            '  [1] process: Keyed -> "loud" <only> -> loud  uid=count\n'
            "        --rows--> output 'loud'\n"
            "        --key by word, day--> [2]\n"
            "Level 2\n"
            "  [2] reduce: max -> counts  uid=reduce-8\n"
            "        --rows--> output 'counts'"
        )
    )


def test_plan_as_mermaid():
    assert plan().to_mermaid() == (
        "flowchart LR\n"
        '  subgraph L0["level 0"]\n'
        '    v0["words &rarr; flat_map: split"]\n'
        "  end\n"
        '  subgraph L1["level 1"]\n'
        '    v1["process: Keyed &rarr; &quot;loud&quot; &lt;only&gt; &rarr; loud"]\n'
        "  end\n"
        '  subgraph L2["level 2"]\n'
        '    v2["reduce: max &rarr; counts"]\n'
        "  end\n"
        '  o0(["counts"])\n'
        '  o1(["loud"])\n'
        '  v0 -- "key by function" --> v1\n'
        '  v1 -- "rows" --> o1\n'
        '  v1 -- "key by word, day" --> v2\n'
        '  v2 -- "rows" --> o0'
    )


def test_the_plan_of_an_unfinished_program():
    env = environment()
    env.from_collection([1]).map(key)
    assert "output 'stream 0'" in str(env.get_execution_graph())


def test_idleness_is_a_matter_of_the_clock_wherever_it_is_assigned():
    """Spark runs epochs without data if a source can become idle, also after a shuffle."""
    for timeout in (None, "1 second"):
        for shuffled in (True, False):
            strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: value)
            if timeout is not None:
                strategy = strategy.with_idleness(timeout)
            env = StreamExecutionEnvironment.get_execution_environment()
            values = env.from_collection([1])
            timed = (values.rebalance() if shuffled else values).assign_timestamps_and_watermarks(strategy)
            keyed = timed.key_by(lambda value: value).process(Keyed())
            sink = SinkTransformation(env._next(), "out", [keyed._plain_step()], output="out", uid="out")
            assert env._compile("test", [sink]).uses_processing_time is (timeout is not None)
