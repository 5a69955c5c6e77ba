"""A tuple that a function returns is a sequence of records. Errors explain this to users who meant one record."""

from __future__ import annotations

import pytest

from pillarbox import (
    CoProcessFunction,
    KeyedProcessFunction,
    OperatorError,
    ProcessFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    TypeMismatchError,
    Types,
)

PAIRS = Types.ROW_NAMED(["key", "n"], [Types.STRING(), Types.LONG()])


class Returns(KeyedProcessFunction):
    def process_element(self, value, ctx):
        return value, 1


class WindowReturns(ProcessWindowFunction):
    def process(self, key, context, elements):
        return key, len(elements)


@pytest.mark.parametrize("declared", [PAIRS, "key STRING, n LONG"])
@pytest.mark.parametrize(
    "build",
    [
        lambda keyed, declared: keyed.process(Returns(), declared),
        lambda keyed, declared: keyed.flat_map(lambda value: (value, 1), declared),
        lambda keyed, declared: keyed.count_window(1).process(WindowReturns(), declared),
    ],
    ids=["process", "flat_map", "window"],
)
def test_the_error_says_what_a_returned_tuple_is(build, declared):
    keyed = StreamExecutionEnvironment().from_collection(["a"]).key_by(lambda value: value)
    with pytest.raises(TypeMismatchError, match=r"'a' .*does not fit.*returns is a sequence of records: yield key, n"):
        build(keyed, declared).map(lambda pair: pair.key).execute_and_collect()


class SetsTimer(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)


class AddsToTime(ProcessFunction):
    def process_element(self, value, ctx):
        yield ctx.timestamp() + 10


class AddsToTimeOfTwo(CoProcessFunction):
    def process_element1(self, value, ctx):
        yield ctx.timestamp() + 10

    process_element2 = process_element1


@pytest.mark.parametrize(
    "build",
    [
        lambda stream: stream.key_by(lambda value: value).process(SetsTimer()),
        lambda stream: stream.process(AddsToTime()),
        lambda stream: stream.connect(stream).process(AddsToTimeOfTwo()),
    ],
    ids=["keyed", "without a key", "two streams"],
)
def test_a_missing_timestamp_is_named(build):
    stream = StreamExecutionEnvironment().from_collection(["a"])
    with pytest.raises(OperatorError, match=r"'a', which has no timestamp \(call assign_timestamps_and_watermarks\("):
        build(stream).execute_and_collect()
