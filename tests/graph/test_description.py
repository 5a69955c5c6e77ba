from __future__ import annotations

import json

import pytest

from pillarbox import CheckpointMismatchError, KeyedProcessFunction, StreamExecutionEnvironment, Types
from pillarbox._graph.description import FORMAT, compare, describe_programs, read_description
from pillarbox._graph.transformations import SinkTransformation


class Keyed(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


def program(
    *,
    parallelism=2,
    max_parallelism=128,
    sources=("one",),
    keys=("card",),
    uids=("first",),
    kinds=("process",),
    before=False,
    behind=False,
    chained=None,
    key_type=None,
    processing_time=None,
):
    env = StreamExecutionEnvironment().set_parallelism(parallelism).set_max_parallelism(max_parallelism)
    streams = [env.from_collection([1]).name(name) for name in sources]
    stream = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
    outputs = []
    if before:
        outputs.append(stream.key_by("card").process(Keyed()).uid("more"))
    if chained is not None:
        stream = stream.map(chained)
    source = stream
    for key, uid, kind in zip(keys, uids, kinds):
        keyed = stream.key_by(key, key_type=key_type)
        stream = (
            keyed.process(Keyed(), processing_time=processing_time) if kind == "process" else keyed.reduce(max)
        ).uid(uid)
    outputs.append(stream)
    if behind:
        outputs.append(source.key_by("card").process(Keyed()).uid("more"))
    sinks = [
        SinkTransformation(env._next(), f"out{n}", [output._plain_step()], output=f"out{n}", uid=f"columns-{n}")
        for n, output in enumerate(outputs)
    ]
    return env._compile("test", sinks)


TWO = {"keys": ("card", "shop"), "uids": ("first", "second"), "kinds": ("process", "process")}


def by_card(row):
    return row.card


def by_shop(row):
    return row.shop


def compared(old, new):
    then = read_description(json.dumps({**describe_programs([program(**old)]), "number": 1, "batch": 0}))
    assert then is not None
    return compare(then, describe_programs([program(**new)]))


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        (
            {},
            {"parallelism": 3},
            [
                "max_parallelism was 2, and is now 3, but a checkpoint's value is fixed: call set_max_parallelism(2),"
                " or drop the call"
            ],
        ),
        (
            {},
            {"uids": ("other",)},
            [
                "it contains state of 'first', but the program has no such operator (but has 'other': set uid() to the"
                " old uid)"
            ],
        ),
        (
            {},
            TWO,
            ["there was 1 shuffle, and now there are 2 ('second' added): Spark stores the state per shuffle"],
        ),
        (TWO, {}, ["it contains state of 'second', but the program has no such operator"]),
        (
            {},
            {"sources": ("one", "two")},
            ["there was 1 source ('one'), and now there are 2 ('one', 'two'): Spark stores a position for each source"],
        ),
        (
            {"sources": ("one", "two")},
            {"sources": ("two",)},
            [
                "there were 2 sources ('one', 'two'), and now there is 1 ('two'): Spark stores a position for each"
                " source"
            ],
        ),
        (
            {},
            {"processing_time": True},
            [
                "it did not use processing time (timers, idleness or carried requests), but now does, and Spark stores"
                " that with the state: if it was detected wrongly, pass process(..., processing_time=False)"
            ],
        ),
        (
            {"processing_time": True},
            {},
            [
                "it used processing time (timers, idleness or carried requests), but now does not, and Spark stores"
                " that with the state: if it was detected wrongly, pass process(..., processing_time=True)"
            ],
        ),
        ({}, {"kinds": ("reduce",)}, ["operator 'first' was created by process(), and is now created by reduce()"]),
        (
            {},
            {"before": True},
            [
                "operator 'first' has another position in the program, where its state is not found: add 'more' after"
                " the other operators, not before"
            ],
        ),
        (
            {},
            {"keys": ("shop",)},
            [
                "operator 'first': the key was the column card, and is the column shop; old and new keys would mix in"
                " one state"
            ],
        ),
        (
            {"key_type": Types.STRING()},
            {"key_type": Types.LONG()},
            [
                "operator 'first': the key was the column card STRING, and is the column card BIGINT; old and new keys"
                " would mix in one state"
            ],
        ),
        (
            TWO,
            {**TWO, "uids": ("second", "first"), "parallelism": 4},
            [
                "max_parallelism was 2, and is now 4, but a checkpoint's value is fixed: call set_max_parallelism(2),"
                " or drop the call",
                "operator 'first' has another position in the program, where its state is not found",
                "operator 'first': the key was the column card, and is the column shop; old and new keys would mix in"
                " one state",
                "operator 'second' has another position in the program, where its state is not found",
                "operator 'second': the key was the column shop, and is the column card; old and new keys would mix in"
                " one state",
            ],
        ),
    ],
)
def test_refused(old, new, refused):
    comparison = compared(old, new)
    assert comparison.refused == refused
    assert not comparison.doubtful
    # A start from a savepoint refuses another key, or another kind of operator, as well.
    assert comparison.survives_savepoint is not any(
        ": the key was" in what or " was created by " in what for what in refused
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {}),
        (TWO, TWO),
        ({}, {"behind": True}),
        ({}, {"chained": abs}),
        ({}, {"sources": ("renamed",)}),
        ({"keys": (by_card,)}, {"keys": (by_card,)}),
        ({"key_type": Types.INT()}, {"key_type": Types.LONG()}),
        ({"key_type": Types.STRING()}, {"key_type": Types.PICKLED_BYTE_ARRAY()}),
    ],
)
def test_accepted(old, new):
    comparison = compared(old, new)
    assert not comparison.refused and not comparison.doubtful


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ({"keys": (by_card,)}, {"keys": (by_shop,)}, f"made by {__name__}.by_card, and is made by {__name__}.by_shop"),
        ({"keys": ("card",)}, {"keys": (by_card,)}, f"the column card, and is made by {__name__}.by_card"),
    ],
)
def test_warned_of(old, new, change):
    comparison = compared(old, new)
    assert not comparison.refused
    assert comparison.doubtful == [f"operator 'first': the key was {change}; old and new keys may mix in one state"]


def reading(*sources):
    described = describe_programs([program(sources=tuple(name for name, _ in sources))])
    for source, (_, columns) in zip(described["programs"][0]["sources"], sources):
        source["columns"] = columns
    return described


ONE, TWO_OF_THEM = ("one", ["id bigint"]), ("two", ["id bigint", "at timestamp"])


def test_sources_in_another_order_are_refused():
    comparison = compare(reading(ONE, TWO_OF_THEM), reading(TWO_OF_THEM, ONE))
    assert comparison.refused == [
        "the sources were 'one' (id bigint); 'two' (id bigint, at timestamp); and are now 'two' (id bigint, at"
        " timestamp); 'one' (id bigint): restore their order, by which Spark stores their positions"
    ]
    assert not comparison.doubtful


def test_a_source_at_the_position_of_another_is_refused():
    comparison = compare(reading(ONE, TWO_OF_THEM), reading(TWO_OF_THEM, ("three", ["id bigint"])))
    assert comparison.refused == [
        "the sources were 'one' (id bigint); 'two' (id bigint, at timestamp); and are now 'two' (id bigint, at"
        " timestamp); 'three' (id bigint): restore their order, by which Spark stores their positions"
    ]


def test_a_source_with_other_columns_may_be_another_one():
    comparison = compare(reading(ONE, TWO_OF_THEM), reading(ONE, ("other", ["x int"])))
    assert not comparison.refused
    assert comparison.doubtful == [
        "a source was 'two' (id bigint, at timestamp), and is now 'other' (x int): Spark resumes it at the old"
        " position. If it reads other data, use a new checkpoint directory"
    ]


def test_several_programs_of_one_query():
    first, second = describe_programs([program()]), describe_programs([program(), program(**TWO)])
    comparison = compare(first, second)
    assert comparison.refused == ["the query had 1 pillarbox program, and now has 2"]
    assert not compare(second, second).refused
    comparison = compare(second, describe_programs([program(**TWO), program()]))
    assert comparison.refused == [
        "the query's programs have another order: their operators were 'first'; 'first', 'second', and are now"
        " 'first', 'second'; 'first'. Restore the order, by which Spark stores their state"
    ]
    assert not comparison.survives_savepoint


@pytest.mark.parametrize(("step", "advice"), [(1, "update"), (-1, "run the version of pillarbox that wrote it")])
def test_a_description_of_another_format_is_refused(step, advice):
    other = json.dumps({**describe_programs([program()]), "number": 1, "batch": 0, "format": FORMAT + step})
    with pytest.raises(CheckpointMismatchError, match=f"has format {FORMAT + step}.* reads format {FORMAT}: {advice}"):
        read_description(other)


MALFORMED = [
    json.dumps({"format": 1, "number": 1, "batch": 0, **more})
    for more in ({}, {"programs": 5}, {"programs": [5]}, {"programs": [{"sources": ["one"], "operators": []}]})
]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"x"', "{}", '{"format": "1"}', '{"format": 1, "programs": []}', *MALFORMED]
)
def test_invalid_descriptions_are_skipped(text):
    assert read_description(text) is None
