# mypy: ignore-errors
# Wrong uses are what a type checker would find; one line for each is easier to read than one for each argument.
"""A table of wrong uses: program, time of refusal, and words of the error.

A program that fails while it runs fails at the record with id 3, key "k", in subtask 0.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pillarbox
from pillarbox import (
    AggregateFunction,
    AggregatingStateDescriptor,
    AsyncCache,
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    Budget,
    CheckpointedFunction,
    CircuitBreaker,
    DataStream,
    Duration,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    KeySelector,
    KeyTypeError,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OperatorError,
    OutputTag,
    PillarboxError,
    ProcessFunction,
    ProgramError,
    ReduceFunction,
    ReducingStateDescriptor,
    StateTtlConfig,
    StreamExecutionEnvironment,
    TimestampAssigner,
    TypeMismatchError,
    Types,
    ValueStateDescriptor,
    WatermarkGenerator,
    WatermarkStrategy,
    fallback,
)
from pillarbox.testing import row

RECORD = "Row(id=3, key='k')"
ZERO = "ZeroDivisionError: integer division or modulo by zero"


class Run(NamedTuple):
    """A program that fails while it runs.

    Attributes:
        program: converts a stream of five rows to the stream to run.
        says: expected words in the first lines.
        frame: the user function expected among the frames, or empty if no user code was running.
        on: further runtimes that test it: batch, streaming, connect.
    """

    name: str
    program: Callable[[DataStream], DataStream]
    says: tuple[str, ...]
    frame: str = ""
    kind: type[BaseException] = OperatorError
    on: str = ""
    columns: str = "x LONG"


class Build(NamedTuple):
    """A program that is refused while it is built or planned."""

    name: str
    program: Callable[[StreamExecutionEnvironment], Any]
    says: tuple[str, ...]


def rows(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_collection([row(id=number, key="k") for number in range(5)])


def untimed(stream: DataStream) -> DataStream:
    return stream.key_by("key").process(lambda value, ctx: [value])


# --- functions that fail ---


def _timed_map() -> MapStateDescriptor:
    descriptor = MapStateDescriptor("m")
    descriptor.enable_time_to_live(StateTtlConfig("1 hour"))
    return descriptor


class _Listing(MapFunction, CheckpointedFunction):
    def initialize_state(self, context: Any) -> None: ...

    def map(self, value: Any) -> Any:
        return value


class Broken(BaseException): ...


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pillarbox.immutable
@pillarbox.immutable
class Locked:
    def __init__(self, number: int) -> None:
        self.lock = threading.Lock() if number == 3 else None

    def __repr__(self) -> str:
        return "Locked()"


def exploding(value: Any) -> Any:
    return 1 // (value.id - 3)


def nested(value: Any) -> Any:
    try:
        return exploding(value)
    except ZeroDivisionError as error:
        raise LookupError("in two\nlines") from error


def raising(error: Callable[[], BaseException]) -> Callable[[Any], Any]:
    def raises(value: Any) -> Any:
        if value.id == 3:
            raise error()
        return 1

    return raises


def exiting(value: Any) -> Any:
    return sys.exit(4) if value.id == 3 else 1


def grouping(value: Any) -> Any:
    if value.id == 3:
        raise _group()("two of them", [ValueError("first"), KeyError("second")])
    return 1


def _group() -> Any:
    import builtins

    return getattr(builtins, "ExceptionGroup", None) or RuntimeError


def endless(value: Any) -> Any:
    return endless(value) if value.id == 3 else 1


def generating(value: Any) -> Any:
    yield 1
    yield exploding(value)


def yielding(value: Any, ctx: Any) -> Any:
    yield exploding(value)


class Maps(MapFunction):
    def map(self, value: Any) -> Any:
        return exploding(value)


class Opens(MapFunction):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def open(self, runtime_context: Any) -> None:
        raise self.error

    def map(self, value: Any) -> Any:
        return 1


class FlatMaps(FlatMapFunction):
    def flat_map(self, value: Any) -> Any:
        return [exploding(value)]


class Filters(FilterFunction):
    def filter(self, value: Any) -> bool:
        return bool(exploding(value))


class RetriesLater(AsyncRetryStrategy):
    async def can_retry(self, current_attempts): ...

    def get_backoff_time_millis(self, current_attempts): ...

    def get_retry_predicate(self): ...


class Selects(KeySelector):
    def get_key(self, value: Any) -> Any:
        return exploding(value)


class Reduces(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        exploding(value2)
        return value2


class Processes(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return self.work(value, ctx)

    def work(self, value: Any, ctx: Any) -> Any:
        return [exploding(value)]


class Waits(Processes):
    async def process_element(self, value: Any, ctx: Any) -> Any:
        return [value]


class SetsTimer(Processes):
    def work(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(5)


class AsksForState(Processes):
    def open(self, runtime_context: Any) -> None:
        runtime_context.get_state(ValueStateDescriptor("lonely"))


class Keyed(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return self.work(value, ctx) if value.id == 3 else None

    def work(self, value: Any, ctx: Any) -> Any:
        return [exploding(value)]


class Generates(Keyed):
    def work(self, value: Any, ctx: Any) -> Any:
        yield exploding(value)


class Working(Keyed):
    def __init__(self, does: Callable[[Any, Any], Any]) -> None:
        self.does = does

    def work(self, value: Any, ctx: Any) -> Any:
        return self.does(value, ctx)


class Timed(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(value.id)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        return [1 // (timestamp - 3)]


class TimedText(Timed):
    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        return "now"


class TimedExit(Timed):
    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        sys.exit("enough")


class Stateful(Keyed):
    def open(self, runtime_context: Any) -> None:
        self.context = runtime_context
        self.value = runtime_context.get_state(ValueStateDescriptor("value"))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list"))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map"))
        self.reduced = runtime_context.get_reducing_state(ReducingStateDescriptor("reduced", fold))
        self.aggregated = runtime_context.get_aggregating_state(AggregatingStateDescriptor("aggregated", Aggregates()))

    def work(self, value: Any, ctx: Any) -> Any:
        raise NotImplementedError


def fold(left: Any, right: Any) -> Any:
    return left // right


class Aggregates(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator // value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


class Folds(Stateful):
    def work(self, value: Any, ctx: Any) -> Any:
        self.reduced.add(1)
        self.reduced.add(0)


class AggregatesZero(Stateful):
    def work(self, value: Any, ctx: Any) -> Any:
        self.aggregated.add(0)


class DeclaresLate(Stateful):
    def work(self, value: Any, ctx: Any) -> Any:
        self.context.get_state(ValueStateDescriptor("late"))


class KeepsALock(Stateful):
    def work(self, value: Any, ctx: Any) -> Any:
        self.value.update(threading.Lock())


class ListsANumber(Stateful):
    def work(self, value: Any, ctx: Any) -> Any:
        self.list.update(5)


class DeclaresTwice(Keyed):
    def open(self, runtime_context: Any) -> None:
        runtime_context.get_state(ValueStateDescriptor("twice"))
        runtime_context.get_list_state(ListStateDescriptor("twice"))


class Tags(Keyed):
    def __init__(self, *results: Any) -> None:
        self.results = results

    def work(self, value: Any, ctx: Any) -> Any:
        return self.results


class UsedIn(Stateful):
    def __init__(self, where: str) -> None:
        self.where = where

    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        if self.where == "open":
            self.value.update(1)

    def work(self, value: Any, ctx: Any) -> Any:
        self.value.update(2)

    def close(self) -> None:
        if self.where == "close":
            self.value.update(3)


class JavasTimer(Keyed):
    def onTimer(self, timestamp: int, ctx: Any) -> Any:
        return [timestamp]


class OpensYielding(Keyed):
    def open(self, runtime_context: Any) -> Any:
        yield runtime_context.get_state(ValueStateDescriptor("value"))


class ClosesAsync(Maps):
    async def close(self) -> None: ...  # type: ignore[override]


class GetsAName(Keyed):
    def open(self, runtime_context: Any) -> None:
        runtime_context.get_state("x")


class GetsAList(Keyed):
    def open(self, runtime_context: Any) -> None:
        runtime_context.get_state(ListStateDescriptor("x"))


class Watermarks(WatermarkGenerator):
    def on_event(self, event: Any, timestamp: int, output: Any) -> None:
        exploding(event)

    def on_periodic_emit(self, output: Any) -> None:
        return None


class EmitsLater(Watermarks):
    async def on_periodic_emit(self, output: Any) -> None:
        return None


class ExtractsLater(TimestampAssigner):
    async def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return 0


class SelectsLater(KeySelector):
    async def get_key(self, value: Any) -> Any:
        return 0


class Periodic(Watermarks):
    def on_event(self, event: Any, timestamp: int, output: Any) -> None:
        return None

    def on_periodic_emit(self, output: Any) -> None:
        raise RuntimeError("no watermark today")


class AsksMany(AsyncFunction):
    async def async_invoke(self, value: Any) -> Any:
        return [exploding(value)]


class GivesUpLater(AsksMany):
    async def timeout(self, value: Any) -> Any:
        return []


class AsksYielding(AsyncFunction):
    async def async_invoke(self, value: Any) -> Any:
        yield value


class AsksOne(AsyncFunction):
    async def async_invoke(self, value: Any) -> Any:
        return exploding(value) if value.id != 3 else 7


async def asking(value: Any) -> Any:
    return exploding(value)


async def sleeping(value: Any) -> Any:
    import asyncio

    await asyncio.sleep(60)


async def sleeping_generator() -> Any:
    return Watermarks()


async def processing(value: Any, ctx: Any) -> Any:
    return [value]


def forgetting(value: Any, ctx: Any = None) -> Any:
    return processing(value, ctx)  # and not `await`: as a lambda around an async def does


async def folding(value1: Any, value2: Any) -> Any:
    return value1


def asking_many(values: list[Any]) -> Any:
    return [1]


class AsksClosed(Function):
    async def open(self, runtime_context: Any) -> None:
        raise ConnectionError("no route")

    async def __call__(self, value: Any) -> Any:
        return 1


def timed(stream: DataStream, assigner: Any = "id") -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner)
    return stream.assign_timestamps_and_watermarks(strategy)


def generated(stream: DataStream, factory: Any) -> DataStream:
    strategy = WatermarkStrategy.for_generator(factory).with_timestamp_assigner("id")
    return stream.assign_timestamps_and_watermarks(strategy).name("times")


def keyed(stream: DataStream, function: Any) -> DataStream:
    return stream.key_by("key").process(function).name("op")


AT = ("operator 'op' failed at the record", RECORD, "subtask 0")
KEYED = (*AT, "key 'k'")
ONE_VALUE = ("the function returned", "a single value instead of an iterable: yield it, or return a list")
NOBODY_WAITS = ("the function returned <coroutine object", "which is never awaited", "map_async()")

# fmt: off
RUNS = [
    # map
    Run("map", lambda s: s.map(exploding).name("op"), (*AT, ZERO), "exploding", on="batch streaming connect"),
    Run("map named by itself", lambda s: s.map(exploding), ("operator 'map: exploding'", ZERO), "exploding"),
    Run("MapFunction", lambda s: s.map(Maps()).name("op"), (*AT, ZERO), "map"),
    Run("map, nested", lambda s: s.map(nested).name("op"), (*AT, "LookupError: in two lines"), "exploding", on="batch"),
    Run("map, no such column", lambda s: s.map(lambda r: r.amount).name("op"), ("'op'", "Row(id=0", "amount"), "<lambda>"),
    Run("map, no such item", lambda s: s.map(lambda r: r["amount"]).name("op"), ("'op'", "no column 'amount'"), "<lambda>"),
    Run("map, exit", lambda s: s.map(exiting).name("op"), (*AT, "SystemExit: 4"), "exiting", on="batch streaming"),
    Run("map, BaseException", lambda s: s.map(raising(lambda: Broken("bad"))).name("op"), (*AT, "Broken: bad"), "raises", on="batch"),
    Run("map, GeneratorExit", lambda s: s.map(raising(GeneratorExit)).name("op"), (*AT, "GeneratorExit"), "raises", on="batch"),
    Run(
        "map, KeyboardInterrupt",
        lambda s: s.map(raising(KeyboardInterrupt)).name("op"),
        ("operator 'op' was interrupted at the record", RECORD),
        "raises",
        KeyboardInterrupt,
        on="batch",
    ),
    Run("map, StopIteration", lambda s: s.map(raising(StopIteration)).name("op"), (*AT, "StopIteration")),
    Run("map, mute error", lambda s: s.map(raising(Mute)).name("op"), (*AT, "Mute: <its message raised RuntimeError>"), "raises", on="batch"),
    Run("map, long error", lambda s: s.map(raising(lambda: ValueError("x" * 10_000_000))).name("op"), (*AT, "ValueError: xxx"), "raises", on="batch"),
    Run("map, group", lambda s: s.map(grouping).name("op"), (*AT, "two of them"), "grouping"),
    Run("map, recursion", lambda s: s.map(endless).name("op"), (*AT, "RecursionError"), "endless", on="batch"),
    Run("map, own class", lambda s: s.map(raising(lambda: OperatorError("mine"))).name("op"), ("mine", "operator 'op'", RECORD), "raises"),
    Run("map, assert", lambda s: s.map(raising(AssertionError)).name("op"), (*AT, "AssertionError"), "raises"),
    Run("map, memory", lambda s: s.map(raising(MemoryError)).name("op"), (*AT, "MemoryError"), "raises"),
    Run("open", lambda s: s.map(Opens(ConnectionError("no route"))).name("op"), ("operator 'op' failed in open(): ConnectionError: no route", "subtask 0"), "open", on="batch streaming"),
    Run("open, exit", lambda s: s.map(Opens(SystemExit(3))).name("op"), ("operator 'op' failed in open(): SystemExit: 3",), "open"),
    Run("map, long record", lambda s: s.map(lambda r: (r.id, "x" * 1000)).map(lambda r: 1 // (r[0] - 3)).name("op"), ("operator 'op' failed at the record (3, 'xxxxx", "xxx...", ZERO), "<lambda>"),
    Run("map, 2nd of a chain", lambda s: s.map(lambda r: r).name("first").map(exploding).name("op"), (*AT, ZERO), "exploding", on="batch"),
    # flat_map
    Run("flat_map", lambda s: s.flat_map(FlatMaps()).name("op"), (*AT, ZERO), "flat_map"),
    Run("flat_map, generator", lambda s: s.flat_map(generating).name("op"), (*AT, ZERO), "generating", on="batch"),
    Run("flat_map, a number", lambda s: s.flat_map(lambda r: 5).name("op"), ("operator 'op'", "Row(id=0", *ONE_VALUE, "returned 5")),
    Run("flat_map, exit", lambda s: s.flat_map(exiting).name("op"), ("operator 'op'",)),
    Run("map behind flat_map", lambda s: s.flat_map(lambda r: [r] * 10_000).name("many").map(exploding).name("op"), (*AT, ZERO), "exploding"),
    # filter
    Run("filter", lambda s: s.filter(lambda r: exploding(r) > 9).name("op"), (*AT, ZERO), "exploding", on="batch"),
    Run("FilterFunction", lambda s: s.filter(Filters()).name("op"), (*AT, ZERO), "filter"),
    Run("filter, exit", lambda s: s.filter(lambda r: sys.exit(1)).name("op"), ("operator 'op'", "Row(id=0", "SystemExit: 1"), "<lambda>"),
    Run("filter, no bool", lambda s: s.filter(lambda r: r.key).name("op"), ("operator 'op' failed at the record Row(id=0", "the function returned 'k' (str), not a bool", "return True or False"), on="batch"),
    Run("filter, nothing", lambda s: s.filter(lambda r: None).name("op"), ("operator 'op' failed at the record Row(id=0", "the function returned None (NoneType), not a bool")),
    Run("filter, a coroutine", lambda s: s.filter(forgetting).name("op"), ("operator 'op' failed at the record Row(id=0", "(coroutine), not a bool")),
    # process
    Run("process", lambda s: s.process(Processes()).name("op"), (*AT, ZERO), "work", on="batch"),
    Run("process, generator", lambda s: s.process(yielding).name("op"), (*AT, ZERO), "yielding"),
    Run("process, a timer without key", lambda s: s.process(SetsTimer()).name("op"), ("operator 'op' sets a timer on a stream without keys", "call key_by(...)", "Row(id=0"), "work", ProgramError, on="batch"),
    Run("process, state without key", lambda s: s.process(AsksForState()).name("op"), ("operator 'op'", "'lonely'", "without keys", "call key_by(...)"), "open", ProgramError),
    Run("process, a dict", lambda s: s.process(lambda v, c: {"id": v.id}).name("op"), ("operator 'op' failed at the record Row(id=0", *ONE_VALUE, "{'id': 0}"), on="batch"),
    Run("process, a string", lambda s: s.process(lambda v, c: v.key).name("op"), ("operator 'op' failed at the record Row(id=0", *ONE_VALUE, "'k'")),
    Run("process, the record", lambda s: s.process(lambda v, c: v).name("op"), ("operator 'op' failed at the record Row(id=0", *ONE_VALUE)),
    Run("process, a number", lambda s: s.process(lambda v, c: v.id).name("op"), ("operator 'op' failed at the record Row(id=0", *ONE_VALUE, "returned 0")),
    Run("process, a coroutine", lambda s: s.process(forgetting).name("op"), ("operator 'op' failed at the record Row(id=0", *NOBODY_WAITS)),
    Run("process, a side output by name", lambda s: s.process(lambda v, c: c.output("late", v)).name("op"), ("operator 'op': a side output needs an OutputTag, not 'late'", "OutputTag('...')", "Row(id=0"), "<lambda>", ProgramError, on="batch"),
    Run("keyed", lambda s: keyed(s, Keyed()), (*KEYED, ZERO), "work", on="batch streaming connect"),
    Run("keyed, generator", lambda s: keyed(s, Generates()), (*KEYED, ZERO), "work", on="batch"),
    Run("keyed, exit", lambda s: keyed(s, Working(lambda v, c: sys.exit(2))), (*KEYED, "SystemExit: 2"), "<lambda>", on="batch streaming"),
    *(
        Run(f"keyed, a tag and {len(more)} values", lambda s, more=more: keyed(s, Tags(*more)), (*KEYED, "the function emitted", "a side output takes a tag and one value", "yield tag, value"))
        for more in (((OutputTag("t"), 1, 2),), (OutputTag("t"), 1), ((OutputTag("t"),),))
    ),
    *(
        Run(f"keyed, state in {where}", lambda s, where=where: keyed(s, UsedIn(where)), ("operator 'op' uses the value state 'value' where there is no current key", "open() only declares states, close() is too late"), where, ProgramError)
        for where in ("open", "close")
    ),
    Run("keyed, a dict", lambda s: keyed(s, Working(lambda v, c: {"id": v.id})), (*KEYED, *ONE_VALUE, "{'id': 3}")),
    Run("keyed, a string", lambda s: keyed(s, Working(lambda v, c: v.key)), (*KEYED, *ONE_VALUE)),
    Run("keyed, a coroutine", lambda s: keyed(s, Working(forgetting)), (*KEYED, *NOBODY_WAITS)),
    Run("keyed, a side output by name", lambda s: keyed(s, Working(lambda v, c: c.output("late", v))), ("operator 'op': a side output needs an OutputTag, not 'late'", RECORD, "key 'k'"), "<lambda>", ProgramError),
    Run("keyed, no such column", lambda s: keyed(s, Working(lambda v, c: v.amount)), (*KEYED, "amount"), "<lambda>"),
    Run("keyed, no such method", lambda s: keyed(s, Working(lambda v, c: c.emit(1))), (*KEYED, "no attribute 'emit'"), "<lambda>"),
    Run("keyed, open", lambda s: keyed(s, GetsAName()), ("operator 'op'", "'x'", "ValueStateDescriptor"), "open", ProgramError),
    Run("keyed, state of another kind", lambda s: keyed(s, GetsAList()), ("operator 'op'", "get_state() takes a ValueStateDescriptor"), "open", ProgramError),
    Run("keyed, a state twice", lambda s: keyed(s, DeclaresTwice()), ("operator 'op' declares the state 'twice' twice", "subtask 0"), "open", ProgramError, on="batch"),
    Run("keyed, a state late", lambda s: keyed(s, DeclaresLate()), ("operator 'op' asks for the state 'late' while records are processed", "declare all states in open()", RECORD, "key 'k'"), "work", ProgramError, on="batch"),
    Run("keyed, a lock in the state", lambda s: keyed(s, KeepsALock()), ("operator 'op': the value state 'value' of key 'k' cannot be written: TypeError: cannot pickle",), on="streaming"),
    Run("keyed, list of a number", lambda s: keyed(s, ListsANumber()), (*KEYED[1:], "'op'"), "work", PillarboxError),
    Run("keyed, reducing state", lambda s: keyed(s, Folds()), (*KEYED, ZERO), "fold"),
    Run("keyed, aggregating state", lambda s: keyed(s, AggregatesZero()), (*KEYED, ZERO), "add"),
    Run("timer", lambda s: keyed(timed(s), Timed()), ("operator 'op' failed in the event time timer at 3 of key 'k'", ZERO, "subtask 0"), "on_timer", on="batch"),
    Run("timer, exit", lambda s: keyed(timed(s), TimedExit()), ("operator 'op' failed in the event time timer at 0 of key 'k'", "SystemExit: enough"), "on_timer"),
    Run("timer, a string", lambda s: keyed(timed(s), TimedText()), ("operator 'op' failed in the event time timer at 0 of key 'k'", *ONE_VALUE, "'now'")),
    Run("timer, behind no timestamp", lambda s: keyed(s, Working(lambda v, c: c.timer_service().register_event_time_timer(c.timestamp() + 1))), (*AT, "which has no timestamp (call assign_timestamps_and_watermarks(...) first): TypeError"), "<lambda>"),
    Run("a column that is not there", lambda s: s.map(lambda r: r.amuont), ("AttributeError: 'Row' object has no attribute 'amuont'; its fields are id, key",), "<lambda>"),
    Run("a value that is not there, behind no timestamp", lambda s: keyed(s, Working(lambda v, c: None + 1)), ("operator 'op' failed at the record Row(id=3, key='k'): TypeError",), "<lambda>"),
    Run("timer, at None", lambda s: keyed(s, Working(lambda v, c: c.timer_service().register_event_time_timer(None))), ("'op'", RECORD, "key 'k'", "None"), "<lambda>", PillarboxError, on="batch"),
    Run("timer, at a string", lambda s: keyed(s, Working(lambda v, c: c.timer_service().register_event_time_timer("now"))), ("'op'", RECORD, "key 'k'", "'now'"), "<lambda>", PillarboxError),
    # keys
    Run("key function", lambda s: s.key_by(exploding).process(Keyed()), ("the key function failed at the record", RECORD, ZERO, "subtask 0"), "exploding", on="batch streaming"),
    Run("KeySelector", lambda s: s.key_by(Selects()).process(Keyed()), ("the key function failed at the record", RECORD, ZERO), "get_key"),
    Run("key function, exit", lambda s: s.key_by(exiting).process(Keyed()), ("the key function failed at the record", RECORD, "SystemExit: 4"), "exiting"),
    Run("key, a list", lambda s: s.key_by(lambda r: [r.key]).process(Keyed()), ("has the key ['k'] of type list", "Row(id=0, key='k')", "return a string"), "", KeyTypeError, on="batch connect"),
    Run("key, a dict", lambda s: s.key_by(lambda r: {}).process(Keyed()), ("has the key {} of type dict", "return a string"), "", KeyTypeError),
    Run("key, a set", lambda s: s.key_by(lambda r: {1}).process(Keyed()), ("has the key {1} of type set",), "", KeyTypeError),
    Run("key, an object", lambda s: s.key_by(lambda r: Locked(1)).process(Keyed()), ("has the key Locked() of type Locked",), "", KeyTypeError),
    Run("key, a nested list", lambda s: s.key_by(lambda r: (1, [2])).process(Keyed()), ("has the key (1, [2])",), "", KeyTypeError),
    Run("key, NaN", lambda s: s.key_by(lambda r: float("nan")).process(Keyed()), ("Row(id=0", "nan"), "", KeyTypeError),
    Run("key, no such field", lambda s: s.key_by("amount").process(Keyed()), ("key function", "Row(id=0", "amount")),
    # reduce
    Run("reduce", lambda s: s.key_by("key").reduce(Reduces()).name("op"), (*KEYED, ZERO), "reduce", on="batch"),
    Run("reduce, nothing", lambda s: s.key_by("key").reduce(lambda a, b: None).name("op"), ("operator 'op' failed at the record Row(id=1, key='k')", "key 'k'", "the reduce function returned None", "return the result")),
    Run("reduce, exit", lambda s: s.key_by("key").reduce(lambda a, b: sys.exit(1)).name("op"), ("operator 'op' failed at the record Row(id=1, key='k')", "key 'k'", "SystemExit: 1"), "<lambda>"),
    # event time
    Run("assigner", lambda s: timed(s, exploding).name("times"), ("operator 'times': the timestamp assigner failed at the record", RECORD, ZERO), "exploding", on="batch"),
    Run("assigner, exit", lambda s: timed(s, lambda r: sys.exit(1)).name("times"), ("operator 'times'", "Row(id=0", "SystemExit: 1"), "<lambda>"),
    Run("assigner, a string", lambda s: timed(s, lambda r: "noon").name("times"), ("operator 'times'", "Row(id=0", "'noon'")),
    Run("assigner, None", lambda s: timed(s, lambda r: None).name("times"), ("operator 'times'", "Row(id=0", "None")),
    Run("assigner, too large", lambda s: timed(s, lambda r: 2**70).name("times"), ("operator 'times'", "Row(id=0", "64 bits")),
    Run("timestamp column missing", lambda s: timed(s, "at").name("times"), ("operator 'times'", "'at'", "Row(id=0")),
    Run("timestamp column of strings", lambda s: timed(s, "key").name("times"), ("operator 'times'", "'key'", "Row(id=0")),
    Run("no timestamps", lambda s: untimed(s).assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps()).name("times"), ("operator 'times': records have no timestamp", "with_timestamp_assigner"), "", ProgramError),
    Run("generator, on_event", lambda s: generated(s, Watermarks), ("operator 'times': the watermark generator failed at the record", RECORD, ZERO), "on_event", on="batch"),
    Run("generator, on_periodic_emit", lambda s: generated(s, Periodic), ("operator 'times'", "RuntimeError: no watermark today"), "on_periodic_emit"),
    Run("generator, none", lambda s: generated(s, lambda: 5), ("operator 'times'", "WatermarkGenerator", "not 5")),
    Run("generator, an async def", lambda s: generated(s, lambda: [EmitsLater()][0]), ("operator 'times'", "for_generator() got", "whose on_periodic_emit is an async def, which"), "", ProgramError),
    Run("generator, raises", lambda s: generated(s, lambda: 1 // 0), ("operator 'times'", ZERO), "<lambda>"),
    # async
    Run("async", lambda s: s.map_async(asking).name("op"), ("operator 'op'", RECORD, ZERO, "subtask 0"), "asking", on="batch streaming connect"),
    Run("async, plain", lambda s: s.map_async(exploding).name("op"), ("operator 'op'", RECORD, ZERO), "exploding", on="batch"),
    Run("async, timeout", lambda s: s.filter(lambda r: r.id == 3).map_async(sleeping, timeout="50 ms").name("op"), ("operator 'op'", RECORD, "50 ms")),
    Run("async, retried", lambda s: s.map_async(asking, retry=AsyncRetryStrategy.fixed_delay(2, "1 ms")).name("op"), ("operator 'op'", RECORD, ZERO), "asking"),
    Run("async, batch too small", lambda s: s.map_async(asking_many, batch_size=5).name("op"), ("operator 'op'", "5", "1")),
    Run("async, open", lambda s: s.map_async(AsksClosed()).name("op"), ("operator 'op' failed in open(): ConnectionError: no route",), "open", on="batch"),
    Run("async, AsyncFunction", lambda s: AsyncDataStream.unordered_wait(s, AsksMany(), 60_000).name("op"), ("operator 'op'", RECORD, ZERO), "async_invoke"),
    Run("async, no list", lambda s: AsyncDataStream.ordered_wait(s.filter(lambda r: r.id == 3), AsksOne(), 60_000).name("op"), ("operator 'op'", "7", "list")),
    Run("async, cache key", lambda s: s.map_async(asking, cache=AsyncCache(key=lambda r: [r.id])).name("op"), ("operator 'op'", "Row(id=0", "cache key [0]", "is not hashable")),
    # between operators, and out
    Run("a lock between operators", lambda s: s.map(lambda r: Locked(r.id)).name("op").key_by(lambda v: 1).process(Keyed()), ("operator 'op' emits the record Locked()", "cannot pickle", "subtask 0"), on="batch streaming"),
    Run("a generator between operators", lambda s: s.map(lambda r: (n for n in ())).name("op").key_by(lambda v: 1).process(Keyed()), ("operator 'op' emits the record <generator", "cannot pickle")),
    Run("a lock at the end", lambda s: s.map(lambda r: Locked(r.id)).name("op"), ("operator 'op' emits the record Locked()", "cannot pickle")),
]

# Only Spark has typed columns.
SPARK_RUNS = [
    Run("another type", lambda s: s.map(lambda r: (r.id, r.key)).name("op"), ("operator 'op': the field 'n' is declared int, but the value 'k' does not fit", "record (0, 'k')", "give an int"), columns="x LONG, n INT", kind=TypeMismatchError, on="batch streaming connect"),
    Run("a number too large", lambda s: s.map(lambda r: (r.id, 1 << 40)).name("op"), ("operator 'op': the field 'n'", "1099511627776"), columns="x LONG, n INT", kind=TypeMismatchError, on="batch"),
    Run("too many fields", lambda s: s.map(lambda r: (1, 2, 3)).name("op"), ("operator 'op': the record (1, 2, 3) does not fit the declared columns", "3 fields instead of 2"), columns="x LONG, n INT", kind=TypeMismatchError, on="batch"),
    Run("an undeclared field", lambda s: s.map(lambda r: {"x": 1, "m": 2}).name("op"), ("operator 'op'", "field 'm', which is not declared", "{'x': 1, 'm': 2}"), columns="x LONG, n INT", kind=TypeMismatchError, on="batch"),
]


@dataclass
class Odd:
    odd: complex


def _duration(option: Callable[[Any, Any], Any], value: Any) -> Callable[[StreamExecutionEnvironment], Any]:
    return lambda env: option(rows(env), value)


def _late_by(stream: DataStream, value: Any) -> Any:
    return WatermarkStrategy.for_bounded_out_of_orderness(value)


def _idle(stream: DataStream, value: Any) -> Any:
    return WatermarkStrategy.no_watermarks().with_idleness(value)


def _progress(stream: DataStream, value: Any) -> Any:
    return WatermarkStrategy.no_watermarks().with_wall_clock_progress(value)


def _progress_after_a_shuffle(env: StreamExecutionEnvironment) -> Any:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_wall_clock_progress("1 minute")
    strategy = strategy.with_timestamp_assigner("id")
    return rows(env).rebalance().assign_timestamps_and_watermarks(strategy).execute_and_collect()


def _idle_part_of_a_source(env: StreamExecutionEnvironment) -> Any:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("id").with_idleness("1 minute")
    source = rows(env)
    part = source.filter(lambda row: False).assign_timestamps_and_watermarks(strategy)
    return source.assign_timestamps_and_watermarks(strategy).union(part).map(exploding).execute_and_collect()


def _unshippable() -> Callable[[Any], Any]:
    lock = threading.Lock()
    return lambda value: lock


def _same_uid(env: StreamExecutionEnvironment) -> Any:
    return rows(env).map(exploding).uid("one").map(exploding).uid("one").execute_and_collect()


def _two_budgets(env):
    stream = rows(env)
    for rate in (5, 6):
        stream = stream.map_async(asking, budgets=[Budget("model", requests=rate)])
    return list(stream.execute_and_collect())


def _carrying(env: StreamExecutionEnvironment) -> Any:
    return rows(env).map_async(asking, on_barrier="carry").execute_and_collect()


def _too_parallel(env: StreamExecutionEnvironment) -> Any:
    return rows(env.set_parallelism(200).set_max_parallelism(100)).key_by("key").process(Keyed()).execute_and_collect()


BUILDS = [
    # the environment
    *(Build(f"parallelism {value!r}", lambda env, value=value: env.set_parallelism(value), ("parallelism must be a positive integer", repr(value))) for value in (0, -1, 1.5, True, "2", None)),
    *(Build(f"max parallelism {value!r}", lambda env, value=value: env.set_max_parallelism(value), ("max parallelism", repr(value))) for value in (0, 1 << 20, True, 2.0, "x", None)),
    Build("parallelism above the max", _too_parallel, ("parallelism 200 is above the max parallelism 100", "raise set_max_parallelism()")),
    *(Build(f"from_dataframe {value!r}", lambda env, value=value: env.from_dataframe(value), ("from_dataframe() takes a Spark DataFrame", repr(value))) for value in (42, [1], None)),
    *(Build(f"from_collection {value!r}", lambda env, value=value: env.from_collection(value), ("from_collection() takes a list", repr(value))) for value in (42, None, "text")),
    Build("nothing to execute", lambda env: (rows(env), env.execute()), ("no output", "execute_and_collect()")),
    Build("two of one uid", _same_uid, ("two operators have the uid 'one'", "map: exploding")),
    # invalid functions
    *(Build(f"{method} {value!r}", lambda env, method=method, value=value: getattr(rows(env), method)(value), (f"{method}() got", repr(value), "pass")) for method in ("map", "flat_map", "filter", "process") for value in (42, None, "x")),
    *(Build(f"{method} of a class", lambda env, method=method, kind=kind: getattr(rows(env), method)(kind), (f"{method}() got", f"an instance: {kind.__name__}()")) for method, kind in (("map", Maps), ("flat_map", FlatMaps), ("filter", Filters), ("process", Processes))),
    *(Build(f"{method} of an async def", lambda env, method=method, function=function: getattr(rows(env), method)(function), (f"{method}() got", "is an async def, which", "use map_async()")) for method, function in (("map", asking), ("flat_map", asking), ("filter", asking), ("process", processing), ("process", Waits()))),
    Build("map, two arguments", lambda env: rows(env).map(lambda a, b: 1), ("map() got <function", "which takes (a, b)", "called with (value)")),
    Build("capacity of a plain function", lambda env: rows(env).key_by("key").process(Keyed(), capacity=3), ("process() got capacity with", "which has no async def")),
    Build("on_barrier of a ProcessFunction", lambda env: rows(env).key_by("key").process(Processes(), on_barrier="carry"), ("process() got on_barrier with", "which has no async def")),
    Build("keyed process, wrong on_barrier", lambda env: rows(env).key_by("key").process(processing, on_barrier="wait"), ('process(): on_barrier= must be "drain" or "carry"', "not 'wait'")),
    Build("keyed process, wrong journal", lambda env: rows(env).key_by("key").process(processing, journal=""), ("process(): journal= must be a folder, such as", "not ''")),
    Build("recorded answers that are not carried", lambda env: rows(env).map_async(asking, record=True), ('map_async(): record= must be False, or True with on_barrier="carry"', "not True")),
    Build("async function that yields", lambda env: AsyncDataStream.ordered_wait(rows(env), AsksYielding(), 1000), ("AsksYielding.async_invoke() is a generator: return a list",)),
    Build("fallback of one parameter", lambda env: fallback(lambda record: 1), ("fallback() got", "which takes (record)", "called with (record, error)")),
    Build("open that yields", lambda env: rows(env).key_by("key").process(OpensYielding()), ("process() got", "whose open() yields, so it would never run")),
    Build("async close", lambda env: rows(env).map(ClosesAsync()), ("map() got", "whose close() is an async def, which")),
    Build("onTimer", lambda env: rows(env).key_by("key").process(JavasTimer()), ("process() got", "whose onTimer() is never called: rename it to on_timer()")),
    Build("reduce of an async def", lambda env: rows(env).key_by("key").reduce(folding), ("reduce() got", "folding is an async def, which")),
    *(Build(f"{method} of a generator", lambda env, method=method: getattr(rows(env), method)(generating), (f"{method}() got", "whose generating yields", "return the result")) for method in ("map", "filter")),
    Build("reduce 42", lambda env: rows(env).key_by("key").reduce(42), ("reduce() got 42", "ReduceFunction")),
    Build("keyed process 42", lambda env: rows(env).key_by("key").process(42), ("process() got 42", "KeyedProcessFunction")),
    Build("process of another kind", lambda env: rows(env).process(Maps()), ("process() got", "ProcessFunction")),
    Build("keyed function without key", lambda env: rows(env).process(Keyed()), ("process() got Keyed, a KeyedProcessFunction, on a stream without key", "call key_by(...)")),
    Build("a lock in a function", lambda env: rows(env).map(_unshippable()).name("op").execute_and_collect(), ("the function of operator 'op' cannot be pickled for the workers", "cannot pickle", "create it in open()")),
    Build("a lock in a result", lambda env: rows(env).map(lambda row: threading.Lock()).name("op").map(str).execute_and_collect(), ("operator 'op' emitted <unlocked", "which cannot be copied", "declare pillarbox.immutable(lock)", "env.enable_object_reuse()")),
    Build("immutable 'Cart'", lambda env: pillarbox.immutable("Cart"), ("immutable() takes a class, not 'Cart'",)),
    # keys, unions, side outputs, names
    *(Build(f"key_by {value!r}", lambda env, value=value: rows(env).key_by(value), ("key_by() takes a function or column names", repr(value))) for value in (42, None, [], ["a", 1])),
    Build("union of none", lambda env: rows(env).union(), ("union() takes at least one other stream",)),
    Build("union of 42", lambda env: rows(env).union(42), ("union() takes a stream, not 42",)),
    Build("union of two programs", lambda env: rows(env).union(rows(StreamExecutionEnvironment())), ("union() takes a stream from the same",)),
    Build("side output by name", lambda env: rows(env).map(exploding).get_side_output("late"), ("get_side_output() takes an OutputTag, not 'late'",)),
    Build("side output of a source", lambda env: rows(env).get_side_output(OutputTag("late")), ("has no side outputs", "process(...)")),
    *(Build(f"tag {value!r}", lambda env, value=value: OutputTag(value), ("an OutputTag's id must be a non-empty string", repr(value))) for value in ("", 5, None)),
    *(Build(f"uid {value!r}", lambda env, value=value: rows(env).map(exploding).uid(value), ("a uid must be a non-empty string", repr(value))) for value in ("", 5, None)),
    Build("uid of a source", lambda env: rows(env).uid("x"), ("uid('x') is for operators",)),
    # event time
    Build("strategy 42", lambda env: rows(env).assign_timestamps_and_watermarks(42), ("takes a WatermarkStrategy, not 42",)),
    *(Build(f"late by {value!r}", _duration(_late_by, value), ("for_bounded_out_of_orderness()", repr(value), "'5 seconds'")) for value in ("5 parsecs", None, 1.5, "", True)),
    Build("late by -5", _duration(_late_by, -5), ("for_bounded_out_of_orderness(): -5 is negative",)),
    *(Build(f"idle for {value!r}", _duration(_idle, value), ("with_idleness()", repr(value))) for value in ("-1 second", 0, "soon", None)),
    *(Build(f"progress after {value!r}", _duration(_progress, value), ("with_wall_clock_progress()", repr(value))) for value in ("-1 second", 0, "soon", None)),
    Build("progress after a shuffle", _progress_after_a_shuffle, ("with_wall_clock_progress() works only for sources", "before the first key_by(...)")),
    Build("idle part of a source", _idle_part_of_a_source, ("only a whole source can become idle", "after union(...)", "rebalance()")),
    Build("assigner 42", lambda env: timed(rows(env), 42), ("42 is not a timestamp assigner", "a column name")),
    Build("assigner ''", lambda env: timed(rows(env), ""), ("the timestamp column name is empty",)),
    Build("assigner of three", lambda env: timed(rows(env), lambda a, b, c: 1), ("must take (value) or (value, record_timestamp)",)),
    Build("generator, an instance", lambda env: WatermarkStrategy.for_generator(Watermarks()), ("the class Watermarks, not the instance",)),
    Build("generator, a class with an async def", lambda env: generated(rows(env), EmitsLater), ("for_generator() got", "whose on_periodic_emit is an async def, which")),
    Build("generator, a partial with an async def", lambda env: generated(rows(env), partial(EmitsLater)), ("for_generator() got", "whose on_periodic_emit is an async def, which")),
    Build("generator, from an async def", lambda env: generated(rows(env), sleeping_generator), ("for_generator() got", "whose sleeping_generator is an async def, which")),
    Build("timestamps of an async def", lambda env: timed(rows(env), asking), ("with_timestamp_assigner() got", "whose asking is an async def, which")),
    Build("timestamps of an async method", lambda env: timed(rows(env), ExtractsLater()), ("with_timestamp_assigner() got", "whose extract_timestamp is an async def, which")),
    Build("key by an async def", lambda env: rows(env).key_by(asking), ("key_by() got", "whose asking is an async def, which")),
    Build("key by an async method", lambda env: rows(env).key_by(SelectsLater()), ("key_by() got", "whose get_key is an async def, which")),
    Build("retry of an async def", lambda env: AsyncRetryStrategy.fixed_delay(3, 5, result_predicate=asking), ("AsyncRetryStrategy(result_predicate=...) got", "whose asking is an async def, which")),
    Build("retry of an async method", lambda env: rows(env).map_async(asking, retry=RetriesLater()), ("map_async(): retry= got", "whose can_retry is an async def, which")),
    Build("budget with an async estimate", lambda env: rows(env).map_async(asking, budgets=[Budget("b", requests=5, estimate=asking)]), ("Budget('b', estimate=...) got", "whose asking is an async def, which")),
    Build("generator 42", lambda env: WatermarkStrategy.for_generator(42), ("for_generator()", "42")),
    Build("time-to-live of nothing", lambda env: StateTtlConfig(0), ("the time-to-live of a state must be at least one millisecond, not 0",)),
    Build("time-to-live in event time", lambda env: StateTtlConfig.new_builder(5).set_ttl_time_characteristic("EventTime"), ("is measured in processing time, as in Flink", "set an event-time timer")),
    Build("time-to-live, a duration", lambda env: ValueStateDescriptor("v").enable_time_to_live("1 hour"), ("the state 'v': enable_time_to_live() takes a StateTtlConfig, as in StateTtlConfig('1 hour')",)),
    Build("time-to-live of broadcast state", lambda env: rows(env).broadcast(_timed_map()), ("broadcast(): the state 'm' has a time-to-live", "process_broadcast_element()")),
    Build("lists of an operator in a source", lambda env: rows(env).map(_Listing()).execute_and_collect(), ("operator 'map: _Listing' has operator state (CheckpointedFunction)", "put rebalance() or key_by(...) before it")),
    Build("lists of an operator and dead letters", lambda env: rows(env).rebalance().map(_Listing(), on_error=OutputTag("bad")).execute_and_collect(), ("on_error=...", "and operator state", "is not rolled back")),
    *(
        Build(f"type of a state {getattr(value, '__name__', value)!r}", lambda env, value=value, kind=kind: kind(value), ("the state 's': the type of its values is one of Types, such as Types.LONG(), or a class", "not"))
        for kind in (
            lambda value: ValueStateDescriptor("s", value),
            lambda value: ListStateDescriptor("s", value),
            lambda value: MapStateDescriptor("s", str, value),
            lambda value: ReducingStateDescriptor("s", max, value),
            lambda value: AggregatingStateDescriptor("s", Aggregates(), value),
        )
        for value in ("LONG", 5, [int], Types.STRING)
    ),
    *(
        Build(f"reduce function of a state {getattr(value, '__name__', value)!r}", lambda env, value=value: ReducingStateDescriptor("s", value), ("the state 's': reduce_function is a function f(folded, added)", "not"))
        for value in (Types.LONG(), None, "max", Reduces)
    ),
    *(
        Build(f"aggregate function of a state {getattr(value, '__name__', value)!r}", lambda env, value=value: AggregatingStateDescriptor("s", value), ("the state 's': agg_function is an instance of an AggregateFunction",))
        for value in (fold, None, Aggregates)
    ),
    Build("a default that can be changed", lambda env: ValueStateDescriptor("v", default=[]), ("the state 'v' has a default that can be changed", "default_factory=list")),
    Build("Duration 'x'", lambda env: Duration.of_seconds("x"), ("a duration takes a whole number, not 'x'",)),
    # state
    *(Build(f"state {value!r}", lambda env, value=value: ValueStateDescriptor(value), ("state's name is a non-empty string", repr(value))) for value in ("", 5, None)),
    # async
    *(Build(f"map_async {value!r}", lambda env, value=value: rows(env).map_async(value), ("map_async() got", repr(value))) for value in (42, None)),
    Build("async, a timeout() that waits", lambda env: AsyncDataStream.unordered_wait(rows(env), GivesUpLater(), 60_000), ("unordered_wait() got", "whose timeout is an async def, which")),
    Build("map_async of an AsyncFunction", lambda env: rows(env).map_async(AsksMany()), ("AsksMany, an AsyncFunction", "AsyncDataStream")),
    *(
        Build(f"{option} {value!r}", lambda env, option=option, value=value: rows(env).map_async(asking, **{option: value}), ("map_async()", option, repr(value)))
        for option, value in (
            ("capacity", 0), ("capacity", "many"), ("timeout", "soon"), ("timeout", 0), ("ordered", "yes"), ("batch_size", 0),
            ("batch_timeout", "1 second"), ("rate_limit", 0), ("rate_limit", "fast"), ("job_rate_limit", -1), ("cache", 5), ("budgets", 5),
            ("on_failure", "explode"), ("on_barrier", "hope"),
        )
    ),
    *(
        Build(f"budget {options!r}", lambda env, options=options: Budget("model", **options), ("Budget", *words))
        for options, words in (
            ({}, ("'model'", "limits nothing")), ({"requests": "fast"}, ("'model'", "requests", "'fast'")), ({"ceiling": 5}, ("'model'", "ceiling", "5")),
            ({"requests": 5, "when_exceeded": "drop"}, ("'model'", "when_exceeded", "'drop'")), ({"breaker": 3}, ("'model'", "a CircuitBreaker")),
        )
    ),
    Build("a breaker that never opens", lambda env: CircuitBreaker(5, 3), ("CircuitBreaker", "would never open")),
    Build("two budgets of one name", _two_budgets, ("two budgets have the name 'model'", "pass one Budget to all operators")),
    # dead letters
    *(
        Build(f"on_error {value!r}", lambda env, value=value: rows(env).map(exploding, on_error=value), ("map(): on_error= must be", "OutputTag", repr(value)))
        for value in ("drop", None, OutputTag)
    ),
    Build("on_error of a keyed process", lambda env: rows(env).key_by("key").process(Keyed(), on_error="late"), ("process(): on_error= must be", "not 'late'")),
    Build("on_error of a reduce", lambda env: rows(env).key_by("key").reduce(fold, on_error=5), ("reduce(): on_error= must be", "not 5")),
    Build("carrying without key", _carrying, ("on_barrier='carry' needs state", "call key_by(...) or rebalance() before the operator")),
    # columns
    Build("no columns", lambda env: rows(env).map(exploding).to_dataframe(), ("to_dataframe() needs columns", "declares no output_type")),
    Build("no columns of an output", lambda env: env.for_each_batch(print, {"a": (rows(env), Types.LONG()), "b": rows(env).map(exploding)}), ("for_each_batch(): output 'b' needs columns", "declares no output_type")),
    Build("wrong columns of an output", lambda env: env.for_each_batch(print, {"b": (rows(env), 42)}), ("for_each_batch(): output 'b': 42",)),
    Build("an output that is no stream", lambda env: env.for_each_batch(print, {"b": 42}), ("for_each_batch(): output 'b' must be a stream or (stream, columns), not 42",)),
    *(Build(f"columns {value!r}", lambda env, value=value: rows(env).to_dataframe(value), (repr(value)[:20], "declare")) for value in (42, int, [1])),
    Build("columns of objects", lambda env: rows(env).to_dataframe(Types.PICKLED_BYTE_ARRAY()), ("PICKLED_BYTE_ARRAY cannot be columns",)),
    Build("columns of an odd class", lambda env: rows(env).to_dataframe(Odd), ("Odd.odd is annotated complex", "no Spark type")),
    Build("names and types", lambda env: Types.ROW_NAMED(["a", "b"], [Types.INT()]), ("2 field names, but 1 field types",)),
]

# Programs that need Spark to build: a session that parses, a DataFrame with known columns.
SPARK_BUILDS = [
    Build("columns that cannot be parsed", lambda s: s.map(exploding).to_dataframe("id LONGG"), ("'id LONGG' is not a list of columns",)),
    Build("a column twice", lambda s: s.map(exploding).to_dataframe("id LONG, id DOUBLE"), ("2 columns have the name 'id'",)),
    Build("a type without name", lambda s: s.map(exploding).to_dataframe("LONG"), ("'LONG' is",)),
    Build("no column", lambda s: s.map(exploding).to_dataframe(""), ("declares no columns",)),
    Build("key of no column", lambda s: s.key_by("amount"), ("key_by(): there is no column 'amount' in 'dataframe'", "id, key")),
    Build("key of no column, after timestamps", lambda s: timed(s, "id").filter(bool).key_by("amount"), ("key_by(): there is no column 'amount' in 'dataframe'", "id, key")),
    Build("key, a list column", lambda s: s.key_by("tags"), ("key_by(): the column 'tags' of 'dataframe' is array<string>", "is not hashable")),
    Build("key, a map column", lambda s: s.key_by("key", "named"), ("the column 'named' of 'dataframe' is map<string,int>", "is not hashable")),
    Build("key, a list in a struct", lambda s: s.key_by("inner"), ("the column 'inner' of 'dataframe' is struct<", "is not hashable")),
    Build("key, a collated column", lambda s: s.key_by("name"), ("the column 'name' of 'dataframe' is string collate UTF8_LCASE", "cast it to STRING")),
    Build("key, a collation in a struct", lambda s: s.key_by("named_by"), ("the column 'named_by' of 'dataframe' is struct<", "without a collation")),
    Build("join, a collated key", lambda s: s.join(s).where("name").equal_to("name"), ("the column 'name' of 'dataframe' is string collate UTF8_LCASE",)),
    Build("timestamps of no column", lambda s: timed(s, "at"), ("there is no timestamp column 'at' in 'dataframe'",)),
    Build("timestamps of a string column", lambda s: timed(s, "key"), ("column 'key' of 'dataframe' is string, which is not a timestamp",)),
]
