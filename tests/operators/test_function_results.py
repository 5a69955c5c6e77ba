from __future__ import annotations

import collections
import copy
import functools
from typing import Any

import numpy as np
import pytest

from pillarbox import (
    KeyedProcessFunction,
    KeySelector,
    ListStateDescriptor,
    MapFunction,
    OperatorError,
    ProgramError,
    Row,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._operators.stateless.filter import FilterOperator
from pillarbox._operators.stateless.flat_map import FlatMapOperator
from pillarbox._operators.stateless.map import MapOperator
from pillarbox._operators.stateless.process import ProcessOperator
from pillarbox.testing import (
    KeyedOneInputStreamOperatorTestHarness as Keyed,
)
from pillarbox.testing import (
    OneInputStreamOperatorTestHarness as Harness,
)
from tests.support.nodes import node, run


def test_an_emitted_value_does_not_change_with_the_functions_copy():
    class Gather(KeyedProcessFunction):
        def open(self, runtime_context):
            self.all = runtime_context.get_list_state(ListStateDescriptor("all"))
            self.memo = runtime_context.get_state(ValueStateDescriptor("memo"))

        def process_element(self, value, ctx):
            memo = self.memo.value() or []
            memo.append(value)
            self.memo.update(memo)
            yield memo
            yield value, memo

    env = StreamExecutionEnvironment.get_execution_environment()
    out = env.from_collection([1, 2]).key_by(lambda value: 0).process(Gather()).execute_and_collect()
    assert out == [[1], (1, [1]), [1, 2], (2, [1, 2])]
    env = StreamExecutionEnvironment.get_execution_environment()
    lists = env.from_collection([[1], [2], [3]]).key_by(lambda value: 0)
    longer = lists.reduce(lambda a, b: a.extend(b) or a)  # type: ignore[func-returns-value]
    assert longer.execute_and_collect() == [[1], [1, 2], [1, 2, 3]]


@pytest.mark.parametrize("method", ["map", "filter", "key_by"])
def test_a_function_that_raises_stop_iteration_loses_nothing_in_silence(method):
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = getattr(env.from_collection([1, 2, 3]), method)(lambda value: next(iter([value] if value < 2 else [])))
    if method == "key_by":
        stream = stream.reduce(lambda a, b: b)
    with pytest.raises(
        OperatorError, match=r"failed at the record 2: (RuntimeError: the function raised )?StopIteration"
    ):
        stream.execute_and_collect()


class Reusing:
    """Emits the same object repeatedly, like Flink's object reuse."""

    def __init__(self, wrap):
        self.memo, self.wrap = [], wrap

    def __call__(self, value):
        self.memo[:] = [2 * value]
        return self.wrap(self.memo)


@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        (lambda memo: memo, lambda n: [n]),
        (lambda memo: ("x", memo), lambda n: ("x", [n])),
        (lambda memo: Row.of(a=1, memo=memo), lambda n: (1, [n])),
        (lambda memo: (1, ("deep", memo)), lambda n: (1, ("deep", [n]))),
        (lambda memo: [memo], lambda n: [[n]]),
        (lambda memo: {"x": memo}, lambda n: {"x": [n]}),
    ],
)
def test_an_object_that_is_given_again_and_again_is_copied(wrap, expected):
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers: Any = env.from_collection([1, 2, 3, 4])
    right = [expected(2 * n) for n in (1, 2, 3, 4)]
    assert numbers.map(Reusing(wrap)).map(lambda value: value).execute_and_collect() == right
    reusing = Reusing(wrap)
    assert numbers.flat_map(lambda value: [reusing(value)]).map(lambda v: v).execute_and_collect() == right
    reusing = Reusing(wrap)
    assert numbers.process(lambda value, ctx: [reusing(value)]).map(lambda v: v).execute_and_collect() == right


class Tally(dict[str, int]): ...


@pytest.mark.parametrize(
    "memo",
    [
        collections.Counter(),
        collections.defaultdict(list),
        collections.OrderedDict(),
        Tally(),
        collections.deque(maxlen=5),
        bytearray(),
    ],
    ids=lambda memo: type(memo).__name__,
)
@pytest.mark.parametrize("wrap", [lambda memo: memo, lambda memo: (1, memo), lambda memo: {"all": [memo]}])
def test_containers_of_other_classes_are_copied(memo, wrap):
    def note(value):
        if isinstance(memo, dict):
            memo[value] = value
        else:
            memo.append(value)
        return wrap(memo)

    memo.clear()
    results = [record.value for record in run(node(MapOperator, "map", note), [1, 2, 3])]
    expected = []
    memo.clear()
    for value in [1, 2, 3]:
        expected.append(copy.deepcopy(note(value)))
    assert results == expected
    assert [repr(result) for result in results] == [repr(result_) for result_ in expected]  # also of the same class


@pytest.mark.parametrize("answer", [None, 0, 1, "yes", [], object()], ids=["None", "0", "1", "text", "list", "object"])
def test_a_filter_gives_bools(answer):
    with (
        Harness(node(FilterOperator, "f", lambda value: answer if value == 2 else True)) as harness,
        pytest.raises(
            OperatorError, match=rf"operator 'f' failed at the record 2: .* \({type(answer).__name__}\), not a bool"
        ),
    ):
        harness.push_all([1, 2, 3])
    assert [r.value for r in run(node(FilterOperator, "f", lambda value: np.int64(value) > 1), [1, 2])] == [2]


@pytest.mark.filterwarnings("error")
def test_a_filter_that_gives_coroutines_is_refused():
    async def keep(value):
        return False

    with (
        Harness(node(FilterOperator, "f", keep)) as harness,
        pytest.raises(OperatorError, match="not a bool"),
    ):
        harness.push_all([1, 2, 3])


async def _coroutine(*values):
    return values


async def _async_generator(*values):
    yield values


def _generator(*values):
    yield values


class _AsyncCall:
    async def __call__(self, *values):
        return values


class _AsyncSelector(KeySelector):
    async def get_key(self, value):
        return value


class _AsyncMap(MapFunction):
    async def map(self, value):
        return value


@pytest.mark.parametrize("function", [_coroutine, _async_generator, _AsyncCall(), functools.partial(_coroutine, 1)])
@pytest.mark.parametrize("method", ["map", "flat_map", "filter", "process", "key_by", "reduce", "keyed map"])
def test_an_async_def_is_refused_when_the_program_is_built(method, function):
    stream: Any = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    if method in ("reduce", "keyed map"):
        stream, method = stream.key_by(lambda value: value), method.removeprefix("keyed ")
    with pytest.raises(ProgramError, match=rf"{method}\(\) got .* is an async def, .* use map_async"):
        getattr(stream, method)(function)


def test_async_methods_of_plain_functions_are_refused():
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(ProgramError, match="whose get_key is an async def"):
        stream.key_by(_AsyncSelector())
    with pytest.raises(ProgramError, match="whose map is an async def"):
        stream.map(_AsyncMap())


@pytest.mark.parametrize("method", ["map", "filter", "key_by"])
def test_a_generator_is_refused_where_one_result_is_asked_for(method):
    stream: Any = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(ProgramError, match=rf"{method}\(\) got .* whose _generator yields"):
        getattr(stream, method)(_generator)
    stream.flat_map(_generator)
    stream.process(_generator)


@pytest.mark.parametrize(
    "results", ["late", b"late", bytearray(b"x"), {"a": 1}, collections.Counter("ab"), Row.of(a=1)], ids=repr
)
def test_one_value_in_the_place_of_results_is_refused(results):
    for operator in (
        node(FlatMapOperator, "op", lambda value: results),
        node(ProcessOperator, "op", lambda value, ctx: results),
        node(KeyedProcessOperator, "op", lambda value, ctx: results, Keying(lambda value: 0, "key_by")),
    ):
        with (
            Keyed(operator) as harness,
            pytest.raises(
                OperatorError, match=r"'op' failed at the record 1: .* a single value instead of an iterable"
            ),
        ):
            harness.push(1)


def test_results_may_be_any_other_iterable():
    for results in ([1, 2], (1, 2), {1: 2}.keys(), {1}, range(2), iter([1]), np.array([1, 2]), map(str, [1])):
        assert run(node(FlatMapOperator, "op", lambda value, results=results: results), [0])


def test_a_side_output_has_a_tag():
    def process(value, ctx):
        ctx.output("late", value)

    with (
        Harness(node(ProcessOperator, "p", process)) as harness,
        pytest.raises(ProgramError, match="operator 'p': a side output needs an OutputTag, not 'late'"),
    ):
        harness.push(1)
