# mypy: ignore-errors
# (Wrong uses are what a type checker would find.)
"""If an argument has a wrong type, every public function either works or raises pillarbox's own error.

(For missing and unknown arguments, Python raises TypeError.)
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pillarbox
import pillarbox.functions
from pillarbox import (
    AggregateFunction,
    AggregatingStateDescriptor,
    CountTrigger,
    DataStream,
    Duration,
    KeyedStream,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    PillarboxError,
    ProgramError,
    ReducingStateDescriptor,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    TimeWindow,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox.testing import ProgramTestHarness, row


class Same(MapFunction):
    def map(self, value: Any) -> Any:
        return value


class Nothing(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


def three(first: Any, second: Any, more: Any) -> int:
    return 1


WRONG = [None, 5, -1, 1.5, True, float("nan"), 2**70, "x", "", b"x", [], [5], ["a"], ("a", 5), {}, {1: 2}]
WRONG += [object(), int, Same, Same(), three, lambda: 1]

BY_ID = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: value.id)
TEN = TumblingEventTimeWindows.of(10)
STATE: MapStateDescriptor[Any, Any] = MapStateDescriptor("m")


def rows(env: StreamExecutionEnvironment | None = None) -> Any:
    return (env or StreamExecutionEnvironment()).from_collection([row(id=number, key="k") for number in range(3)])


def timed() -> Any:
    return rows().assign_timestamps_and_watermarks(BY_ID)


def pair(combine: Callable[[Any, Any], Any]) -> Any:
    env = StreamExecutionEnvironment()
    return combine(rows(env), rows(env))


def windows(method: str) -> Any:
    return pair(lambda left, right: getattr(left, method)(right).where("key").equal_to("key").window(TEN))


# The objects of method calls, by class name; functions and static methods need none.
OBJECTS: dict[str, Callable[[], Any]] = {
    "StreamExecutionEnvironment": StreamExecutionEnvironment,
    "DataStream": rows,
    "KeyedStream": lambda: timed().key_by("key"),
    "WindowedStream": lambda: timed().key_by("key").window(TEN),
    "AllWindowedStream": lambda: timed().window_all(TEN),
    "ConnectedStreams": lambda: pair(lambda left, right: left.connect(right)),
    "BroadcastStream": lambda: rows().broadcast(STATE),
    "BroadcastConnectedStream": lambda: pair(lambda left, right: left.connect(right.broadcast(STATE))),
    "JoinedStreams": lambda: pair(lambda left, right: left.join(right)),
    "JoinedWindows": lambda: windows("join"),
    "CoGroupedStreams": lambda: pair(lambda left, right: left.co_group(right)),
    "CoGroupedWindows": lambda: windows("co_group"),
    "IntervalJoin": lambda: pair(lambda left, right: left.key_by("key").interval_join(right.key_by("key"))),
    "DataStreamSink": lambda: rows().print(),
    "WatermarkStrategy": WatermarkStrategy.for_monotonous_timestamps,
    "ValueStateDescriptor": lambda: ValueStateDescriptor("v"),
    "ListStateDescriptor": lambda: ListStateDescriptor("v"),
    "MapStateDescriptor": lambda: MapStateDescriptor("v"),
    "ReducingStateDescriptor": lambda: ReducingStateDescriptor("v", max),
    "AggregatingStateDescriptor": lambda: AggregatingStateDescriptor("v", Nothing()),
    "StateTtlConfig": lambda: StateTtlConfig(5),
    "TimeWindow": lambda: TimeWindow(0, 10),
    "Duration": lambda: Duration.of_millis(5),
    "Time": lambda: Time.milliseconds(5),
}
# Valid arguments by parameter name; "x" for other parameters.
RIGHT: dict[str, Any] = {
    "func": Same(),
    "reduce_function": max,
    "aggregate_function": Nothing(),
    "collection": [1],
    "trigger": CountTrigger.of(1),
    "assigner": TEN,
    "window_assigner": TEN,
    "output_tag": OutputTag("x"),
    "tag": OutputTag("x"),
    "key_selector": "key",
    "element_type": Types.LONG(),
    "key_type_info": Types.LONG(),
    "value_type_info": Types.LONG(),
    "field_types": [Types.LONG()],
    "field_names": ["a"],
    "other": TimeWindow(0, 5),
    "window_function": None,
    "timeout": 5,
    "drain": False,
    **dict.fromkeys(["size", "slide", "gap", "max_size", "step", "interval", "ttl", "window_size", "parallelism"], 10),
    **dict.fromkeys(["timestamp", "offset", "start", "lower_bound", "max_out_of_orderness"], 0),
    **dict.fromkeys(["upper_bound", "max_parallelism", "lateness"], 100),
}
# They would run a program, or start Spark if an argument is valid.
LEFT_OUT = {"execute", "execute_and_collect", "print", "local_session"}


def places() -> Iterator[tuple[str, Callable[[], Any]]]:
    for module in pillarbox, pillarbox.functions:
        for name in module.__all__:
            result = getattr(module, name)
            if inspect.isfunction(result) and name not in LEFT_OUT:
                yield name, lambda result_=result: result_
            if not inspect.isclass(result):
                continue
            for method in dir(result):
                static = inspect.getattr_static(result, method)
                if method.startswith("_") or method in LEFT_OUT:
                    continue
                if isinstance(static, (staticmethod, classmethod)):
                    yield f"{name}.{method}", lambda owner=result, method=method: getattr(owner, method)
                elif inspect.isfunction(static) and name in OBJECTS:
                    make = OBJECTS[name]
                    yield f"{name}.{method}", lambda make=make, method=method: getattr(make(), method)


PLACES = dict(places())


def calls(make: Callable[[], Any]) -> Iterator[tuple[str, Any, list[Any], dict[str, Any]]]:
    parameters = list(inspect.signature(make()).parameters.values())
    needed = [parameter for parameter in parameters if parameter.default is parameter.empty]
    for wrong in parameters:
        for value in WRONG:
            arguments = [
                value if parameter is wrong else RIGHT.get(parameter.name, "x")
                for parameter in needed
                if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            ]
            named = {
                parameter.name: RIGHT.get(parameter.name, "x")
                for parameter in needed
                if parameter.kind is parameter.KEYWORD_ONLY
            }
            if wrong.kind is wrong.VAR_POSITIONAL:
                arguments.append(value)
            elif wrong.kind is wrong.VAR_KEYWORD:
                named["more"] = value
            elif wrong not in needed or wrong.kind is wrong.KEYWORD_ONLY:
                named[wrong.name] = value
            yield wrong.name, value, arguments, named


@pytest.mark.parametrize("case", PLACES)
def test_arguments_of_wrong_kinds_are_no_raw_errors(case):
    make = PLACES[case]
    raw = []
    for name, value, arguments, named in calls(make):
        try:
            result = make()(*arguments, **named)
            if isinstance(result, DataStream) and not isinstance(result, KeyedStream):
                result.execute_and_collect()  # errors that only a run can find
        except PillarboxError as error:
            assert str(error), (name, value)
        except Exception as error:
            of_the_call = isinstance(error, TypeError) and len(traceback.extract_tb(error.__traceback__)) == 1
            if not of_the_call:
                raw.append(f"{name}={value!r}: {type(error).__name__}: {error}")
    assert not raw


class _Session:
    readStream = None


class _Query:
    awaitTermination = None


class _Frame:
    isStreaming = False


NO_DIRECTORY = [None, 5, "", b"x", [], object()]
# Functions with a session and other arguments: each call has one wrong argument.
WRONG_PLACES: list[tuple[Callable[[Any], Any], str]] = [
    (
        lambda wrong: pillarbox.read_state(_Session(), wrong, "uid"),
        r"read_state\(\): checkpoint= must be a path",
    ),
    (lambda wrong: pillarbox.savepoint(_Session(), wrong, "to"), r"savepoint\(\): checkpoint= must be a path"),
    (
        lambda wrong: pillarbox.savepoint(_Session(), "from", wrong),
        r"savepoint\(\): directory= must be a path",
    ),
    (lambda wrong: pillarbox.rescale(_Session(), wrong, 2), r"rescale\(\): checkpoint= must be a path"),
    (
        lambda wrong: pillarbox.stop_with_savepoint(_Query(), wrong),
        r"stop_with_savepoint\(\): directory=",
    ),
    (
        lambda wrong: pillarbox.write_state(_Frame(), wrong, "uid"),
        r"write_state\(\): directory= must be a path",
    ),
    (
        lambda wrong: pillarbox.read_state(_Session(), "from", wrong),
        r"read_state\(\): uid= must be a non-empty string",
    ),
    (pillarbox.local_session, r"local_session\(\): cores= must be a positive integer, not"),
    (
        lambda wrong: pillarbox.local_session(app_name=wrong),
        r"local_session\(\): app_name= must be a non-empty string, not",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG_PLACES, ids=[message for _, message in WRONG_PLACES])
def test_arguments_that_a_session_would_be_asked_with(call, message):
    for wrong in NO_DIRECTORY:
        if wrong == 5 and "cores" in message:
            continue
        with pytest.raises(ProgramError, match=message):
            call(wrong)


def test_a_program_of_a_harness_is_built_by_a_function():
    for value in None, 5, "x", [], int, object():
        with pytest.raises(ProgramError, match=r"a program must be a function of the environment and its sources"):
            ProgramTestHarness(value)
