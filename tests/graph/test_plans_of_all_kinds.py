from __future__ import annotations

import pytest

from pillarbox import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)

RULES = MapStateDescriptor("rules")
MINUTE = TumblingEventTimeWindows.of("1 minute")


class Maps(CoMapFunction):
    def map1(self, value): ...
    def map2(self, value): ...


class FlatMaps(CoFlatMapFunction):
    def flat_map1(self, value): ...
    def flat_map2(self, value): ...


class Either(CoProcessFunction):
    def process_element1(self, value, ctx): ...
    def process_element2(self, value, ctx): ...


class Both(KeyedCoProcessFunction):
    def process_element1(self, value, ctx): ...
    def process_element2(self, value, ctx): ...


class Ruled(BroadcastProcessFunction):
    def process_element(self, value, ctx): ...
    def process_broadcast_element(self, value, ctx): ...


class KeyedRuled(KeyedBroadcastProcessFunction):
    def process_element(self, value, ctx): ...
    def process_broadcast_element(self, value, ctx): ...


def near(left, right, ctx): ...


def pair(left, right): ...


# Expected texts of the operator, and of its edges from both streams.
KEYS = ("key by id", "key by order")
OF_TWO = {
    "map": (lambda a, b: a.connect(b).map(Maps()), "map: Maps", ("rebalance", "rebalance")),
    "flat_map": (
        lambda a, b: a.key_by("id").connect(b.key_by("order")).flat_map(FlatMaps()),
        "flat_map: FlatMaps",
        KEYS,
    ),
    "process": (
        lambda a, b: a.shuffle().connect(b.global_()).process(Either()),
        "process: Either",
        ("shuffle", "global"),
    ),
    "process by key": (lambda a, b: a.connect(b).key_by("id", "order").process(Both()), "process: Both", KEYS),
    "broadcast": (
        lambda a, b: a.connect(b.broadcast(RULES)).process(Ruled()),
        "process: Ruled",
        ("rebalance", "broadcast"),
    ),
    "broadcast by key": (
        lambda a, b: a.key_by("id").connect(b.broadcast(RULES)).process(KeyedRuled()),
        "process: KeyedRuled",
        ("key by id", "broadcast"),
    ),
    "interval join": (
        lambda a, b: a.key_by("id").interval_join(b.key_by("order")).between(0, 5).process(near),
        "interval_join: near",
        KEYS,
    ),
    "join": (
        lambda a, b: a.join(b).where("id").equal_to("order").window(MINUTE).apply(pair),
        "join: pair",
        KEYS,
    ),
    "co_group": (
        lambda a, b: a.co_group(b).where("id").equal_to("order").window(MINUTE).apply(pair),
        "co_group: pair",
        KEYS,
    ),
}


@pytest.mark.parametrize("kind", OF_TWO)
def test_operators_of_two_streams(kind):
    build, name, labels = OF_TWO[kind]
    env = StreamExecutionEnvironment().set_parallelism(2)
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    streams = [
        env.from_collection([1]).name(name).assign_timestamps_and_watermarks(at) for name in ("orders", "payments")
    ]
    build(*streams).uid("both")
    plan = env.get_execution_graph()
    assert plan.to_text() == (
        "Program 'program': parallelism 2, max parallelism 4\n"
        "Level 0 (sources)\n"
        "  [0] orders -> timestamps\n"
        f"        --{labels[0]}--> [1]\n"
        "  [2] payments -> timestamps\n"
        f"        --{labels[1]}--> [1]\n"
        "Level 1\n"
        f"  [1] {name} -> sink  uid=both\n"
        "        --rows--> output 'stream 0'"
    )
    drawn = plan.to_mermaid()
    assert f'v1["{name} &rarr; sink"]' in drawn
    assert f'v0 -- "{labels[0]}" --> v1' in drawn
    assert f'v2 -- "{labels[1]}" --> v1' in drawn


SPREAD = {
    "rebalance": lambda s: s.rebalance(),
    "shuffle": lambda s: s.shuffle(),
    "rescale": lambda s: s.rescale(),
    "global": lambda s: s.global_(),
    "broadcast": lambda s: s.broadcast(),
    "partition custom": lambda s: s.partition_custom(lambda key, n: 0, "id"),
    "key by id": lambda s: s.key_by("id"),
}


@pytest.mark.parametrize("label", SPREAD)
def test_ways_of_spreading(label):
    env = StreamExecutionEnvironment().set_parallelism(2)
    SPREAD[label](env.from_collection([1]).name("orders")).map(str).name("text")
    assert f"  [0] orders\n        --{label}--> [1]\nLevel 1\n  [1] text -> sink" in env.get_execution_graph().to_text()


def test_forward_edges_are_not_cut():
    env = StreamExecutionEnvironment().set_parallelism(2)
    env.from_collection([1]).name("orders").rebalance().forward().map(str).name("text")
    assert "  [0] orders -> text -> sink\n" in env.get_execution_graph().to_text()
