# mypy: ignore-errors
"""Wrong uses of two streams, broadcast state and partitioners, for the table in ``wrong_uses``."""

from __future__ import annotations

from typing import Any

from pillarbox import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    DataStream,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    MapStateDescriptor,
    OperatorError,
    ProcessJoinFunction,
    ProgramError,
    ReduceFunction,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from tests.errors.wrong_uses import RECORD, ZERO, Build, Run, exploding, rows, untimed

RULES = MapStateDescriptor("rules")


def timed(stream: DataStream) -> DataStream:
    return stream.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("id")
    )


def near(stream: DataStream) -> Any:
    return timed(stream).key_by("key").interval_join(timed(stream).key_by("key"))


def grouped(stream: DataStream) -> Any:
    pair = timed(stream).co_group(timed(stream)).where("key").equal_to("key")
    return pair.window(TumblingEventTimeWindows.of(10))


def ruled(stream: DataStream, function: Any) -> DataStream:
    keyed = isinstance(function, KeyedBroadcastProcessFunction)
    left = stream.key_by("key") if keyed else stream
    return left.connect(stream.broadcast(RULES)).process(function).name("op")


class HasState:
    name = "count"

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor(self.name))


class Maps(HasState, CoMapFunction):
    def map1(self, value):
        return value.id

    def map2(self, value):
        return value.id


class Processes(HasState, CoProcessFunction):
    def process_element1(self, value, ctx):
        yield value.id

    def process_element2(self, value, ctx):
        yield value.id


class SetsTimer(CoProcessFunction):
    def process_element1(self, value, ctx):
        ctx.timer_service().register_event_time_timer(1)

    def process_element2(self, value, ctx):
        return None


class KeyedProcesses(KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        yield value.id

    def process_element2(self, value, ctx):
        yield value.id


class Fails2(CoFlatMapFunction):
    def flat_map1(self, value):
        return []

    def flat_map2(self, value):
        return [exploding(value)]


class OneValue(Fails2):
    def flat_map2(self, value):
        return value.id


class Joins(ProcessJoinFunction):
    def process_element(self, left, right, ctx):
        yield exploding(right)


class JoinsWithState(HasState, Joins):
    name = "left"


class FoldsWithState(HasState, ReduceFunction):
    name = "reduced"

    def reduce(self, value1, value2):
        return value1


class Rules(BroadcastProcessFunction):
    def __init__(self, process=lambda ctx: None, other=lambda ctx: None):
        self.process, self.other = process, other

    def process_element(self, value, ctx):
        self.process(ctx)

    def process_broadcast_element(self, value, ctx):
        self.other(ctx)


async def wait(key: Any, state: Any) -> None: ...


class KeyedRules(HasState, KeyedBroadcastProcessFunction):
    __init__ = Rules.__init__
    process_element = Rules.process_element
    process_broadcast_element = Rules.process_broadcast_element


class RulesWithState(HasState, Rules):
    pass


def spread(stream: DataStream, partitioner: Any) -> DataStream:
    stream._env.set_parallelism(2)
    return stream.partition_custom(partitioner, "id").map(lambda value: value.id)


def one_of_all(stream: DataStream, function: Any) -> DataStream:
    return near(stream).between(3, 3).process(function).name("op")


NO_KEY = ("uses the keyed state 'count' on a stream without keys", "on both streams")
ONLY_READ = ("operator 'op'", "broadcast state is read-only here")
HERE = "the stream has no key: put key_by(...) before connect(), and use a KeyedBroadcastProcessFunction"
FIRST = "Row(id=0, key='k')"

# fmt: off
TWO_INPUT_RUNS = [
    *(
        Run(f"state of two streams, {name}", lambda s, keys=keys: keys(s).map(Maps()).name("op"), ("operator 'op'", *NO_KEY), "open", ProgramError)
        for name, keys in (
            ("no keys", lambda s: s.connect(s)),
            ("a key of the first", lambda s: s.key_by("key").connect(s)),
            ("a key of the second", lambda s: s.connect(s.key_by("key"))),
        )
    ),
    Run("state of a CoProcessFunction", lambda s: s.connect(s).process(Processes()), NO_KEY, "open", ProgramError),
    Run("state of a CoProcessFunction under keys", lambda s: s.connect(s).key_by("key", "key").process(Processes()), (*NO_KEY, "KeyedCoProcessFunction"), "open", ProgramError),
    Run("a timer of a CoProcessFunction", lambda s: s.connect(s).process(SetsTimer()).name("op"), ("operator 'op' sets a timer on a stream without keys",), "process_element1", ProgramError),
    Run("flat_map2", lambda s: s.connect(s).flat_map(Fails2()).name("op"), (f"operator 'op' failed at the record {RECORD}: {ZERO}",), "flat_map2"),
    Run("flat_map2, a value", lambda s: s.connect(s).flat_map(OneValue()).name("op"), ("operator 'op'", FIRST, "0, a single value")),
    Run("interval join", lambda s: one_of_all(s, Joins()), ("operator 'op' failed at the record Row(id=", ZERO, "key 'k'"), "exploding"),
    Run("interval join, a value", lambda s: one_of_all(s, lambda left, right, ctx: 5), ("operator 'op'", "returned 5, a single value")),
    Run("interval join, a state of its own", lambda s: one_of_all(s, JoinsWithState()), ("operator 'op' has an internal state 'left': rename your state",), "open", ProgramError),
    Run("interval join, no timestamps", lambda s: untimed(s).key_by("key").interval_join(untimed(s).key_by("key")).between(0, 1).process(Joins()).name("op"), ("operator 'op'", FIRST, "has no timestamp", "put assign_timestamps_and_watermarks(...) before")),
    Run("reduce, a state of its own", lambda s: s.key_by("key").reduce(FoldsWithState()).name("op"), ("operator 'op' has an internal state 'reduced'",), "open", ProgramError),
    Run("co_group, a value", lambda s: grouped(s).apply(lambda firsts, seconds: 5).name("op"), ("operator 'op' failed", "key 'k'", "returned 5, a single value")),
    Run("broadcast, the other side writes", lambda s: ruled(s, Rules(lambda ctx: ctx.get_broadcast_state(RULES).put(1, 1))), (*ONLY_READ, FIRST), "process_element", ProgramError),
    Run("broadcast, the keyed side writes", lambda s: ruled(s, KeyedRules(lambda ctx: ctx.get_broadcast_state(RULES).clear())), (*ONLY_READ, FIRST, "key 'k'"), "process_element", ProgramError, on="batch"),
    Run("broadcast, another state", lambda s: ruled(s, Rules(lambda ctx: ctx.get_broadcast_state(MapStateDescriptor("limits")))), ("operator 'op': there is no broadcast state 'limits' (there are 'rules')",), "process_element", ProgramError),
    Run("broadcast, no descriptor", lambda s: ruled(s, Rules(lambda ctx: ctx.get_broadcast_state("rules"))), ("operator 'op'", "pass its descriptor to broadcast(...)"), "process_element", ProgramError),
    Run("broadcast, state without key", lambda s: ruled(s, RulesWithState()), ("operator 'op'", *NO_KEY, "KeyedBroadcastProcessFunction"), "open", ProgramError),
    Run("broadcast, timers without key", lambda s: ruled(s, Rules(lambda ctx: ctx.timer_service())), (f"timer_service() is not available here: {HERE}", "operator 'op'"), "process_element", ProgramError),
    Run("broadcast, a key without key", lambda s: ruled(s, Rules(other=lambda ctx: ctx.get_current_key())), (f"get_current_key() is not available here: {HERE}", "operator 'op'"), "process_broadcast_element", ProgramError),
    Run("broadcast, a key of the broadcast side", lambda s: ruled(s, KeyedRules(other=lambda ctx: ctx.get_current_key())), ("get_current_key() is not available here: a record of the broadcast stream has no key", "operator 'op'"), "process_broadcast_element", ProgramError),
    Run("broadcast, a timer of the broadcast side", lambda s: ruled(s, KeyedRules(other=lambda ctx: ctx.timer_service())), ("timer_service() is not available here: a record of the broadcast stream has no key", "apply_to_keyed_state(...)"), "process_broadcast_element", ProgramError),
    Run("broadcast, all keys of the keyed side", lambda s: ruled(s, KeyedRules(lambda ctx: ctx.apply_to_keyed_state(None, print))), ("apply_to_keyed_state() is not available here: use it in process_broadcast_element()", "key 'k'"), "process_element", ProgramError),
    Run("broadcast, a method that is none", lambda s: ruled(s, Rules(lambda ctx: ctx.get_state())), ("operator 'op' failed at the record", "AttributeError: a context of 'op' has no attribute 'get_state'"), "process_element"),
    Run("broadcast, an async def for all keys", lambda s: ruled(s, KeyedRules(other=lambda ctx: ctx.apply_to_keyed_state(ValueStateDescriptor("other"), wait))), ("apply_to_keyed_state() got", "whose wait is an async def, which"), "process_broadcast_element", ProgramError),
    Run("broadcast, a state that is not declared", lambda s: ruled(s, KeyedRules(other=lambda ctx: ctx.apply_to_keyed_state(ValueStateDescriptor("other"), print))), ("operator 'op' asks for the state 'other' while records are processed: declare all states in open()",), "process_broadcast_element", ProgramError),
    *(
        Run(f"partitioner, {value!r}", lambda s, value=value: spread(s, lambda key, n: value), ("the partitioner failed at the record", FIRST, f"it returned {value!r}, but there are 2 subtasks: return a number from 0 to 1"))
        for value in (2, -1, None, "1")
    ),
    Run("partitioner", lambda s: spread(s, lambda key, n: abs(1 // (key - 3))), ("operator 'partition_custom after collection': the partitioner failed at the record", RECORD, ZERO), "<lambda>"),
    Run("sum of text", lambda s: s.key_by("key").sum("key").name("op"), ("operator 'op' failed at the record Row(id=0, key='k')", "sum('key'): 'k' is not a number")),
    Run("sum of no field", lambda s: s.key_by("key").sum("amount").name("op"), ("operator 'op' failed at the record Row(id=0, key='k')", "no column 'amount'; the columns are id, key"), kind=OperatorError),
]

TWO_INPUT_BUILDS = [
    *(
        Build(f"two streams, {which} without key", lambda env, pair=pair: pair(rows(env)).process(KeyedProcesses()), (f"process() of connected streams: the {which} stream has no key", "connect(...).key_by(first_key, second_key)"))
        for which, pair in (("second", lambda s: s.key_by("key").connect(s)), ("first", lambda s: s.connect(s.key_by("key"))))
    ),
    Build("interval join, two arguments", lambda env: one_of_all(rows(env), lambda left, right: []), ("which takes (left, right)", "called with (left, right, ctx)")),
    Build("co_group, two records", lambda env: grouped(rows(env)).apply(lambda firsts: []), ("which takes (firsts)", "called with (firsts, seconds)")),
    Build("partitioner of one argument", lambda env: spread(rows(env), lambda key: 1), ("which takes (key)", "called with (key, num_partitions)")),
    Build("interval, the wrong way round", lambda env: near(rows(env)).between("1 minute", "-1 minute"), ("between(): the lower bound, '1 minute', is above the upper bound, '-1 minute'", "swap them")),
    Build("interval, no duration", lambda env: near(rows(env)).between("5 parsecs", 0), ("between(): lower: '5 parsecs' is not a duration",)),
    Build("interval, no bounds", lambda env: near(rows(env)).process(Joins()), ("interval_join() has no bounds",)),
    Build("interval join without key", lambda env: rows(env).interval_join(rows(env)), ("interval_join() needs a keyed stream: put key_by(...) before it",)),
    Build("interval join with a plain stream", lambda env: rows(env).key_by("key").interval_join(rows(env)), ("takes a keyed stream",)),
    Build("co_group without keys", lambda env: timed(rows(env)).co_group(timed(rows(env))).window(TumblingEventTimeWindows.of(5)), ("co_group(): where(...) is missing",)),
    *(
        Build(f"{kind.__name__} of streams that are not broadcast", lambda env, kind=kind: rows(env).key_by("key").connect(rows(env).key_by("key")).process(kind()), (f"process() of connected streams got {kind.__name__}, which needs a broadcast stream", "connect(rules.broadcast(MapStateDescriptor(...)))"))
        for kind in (Rules, KeyedRules)
    ),
    *(
        Build(f"{function.__name__} of a broadcast stream", lambda env, keys=keys, function=function: keys(rows(env)).connect(rows(env).broadcast(RULES)).process(function()), (f"got {function.__name__}, which takes no broadcast stream", "drop broadcast(...)"))
        for keys, function in ((lambda s: s, Processes), (lambda s: s.key_by("key"), KeyedProcesses))
    ),
    Build("connect of 5", lambda env: rows(env).connect(5), ("connect() takes a stream, not 5",)),
    Build("connected map of a function", lambda env: rows(env).connect(rows(env)).map(exploding), ("map() of connected streams got", "pass a CoMapFunction")),
    Build("broadcast of another state", lambda env: rows(env).broadcast(ValueStateDescriptor("rules")), ("broadcast() takes MapStateDescriptors, not ValueStateDescriptor('rules')",)),
    Build("a broadcast stream is asked", lambda env: rows(env).broadcast(RULES).connect(rows(env)), ("a broadcast stream has no connect()", "stream.connect(broadcast)")),
    Build("keyed state behind a partitioner", lambda env: rows(env).partition_custom(lambda key, n: 0, "id").reduce(max), ("reduce() needs a keyed stream: put key_by(...) before it",)),
    Build("min_by of -1", lambda env: rows(env).key_by("key").min_by(-1), ("min_by() takes a field's position (from 0) or name, not -1",)),
]
