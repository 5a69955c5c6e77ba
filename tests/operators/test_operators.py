from __future__ import annotations

from dataclasses import replace
from itertools import repeat

import pytest

from pillarbox import (
    FilterFunction,
    FlatMapFunction,
    MapFunction,
    OperatorError,
    OutputTag,
    ProcessFunction,
    ProgramError,
    ReduceFunction,
    Row,
    ValueStateDescriptor,
)
from pillarbox._copies import Copier
from pillarbox._elements.records import Records
from pillarbox._operators.frame.collector import RUN_LIMIT
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorDiscard, OperatorFanout
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._operators.keyed.reduce import ReduceOperator
from pillarbox._operators.stateless.filter import FilterOperator
from pillarbox._operators.stateless.flat_map import FlatMapOperator
from pillarbox._operators.stateless.map import MapOperator
from pillarbox._operators.stateless.process import ProcessOperator
from pillarbox._operators.stateless.sinks import PrintOperator
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP
from pillarbox.testing import KeyedOneInputStreamOperatorTestHarness as Keyed
from pillarbox.testing import OneInputStreamOperatorTestHarness as Harness
from pillarbox.testing import harness_for
from tests.support.nodes import node, run

SIDE = OutputTag("side")


class Runs(OperatorDiscard):
    def __init__(self):
        self.sizes = []
        self.stamps = []

    def process_records(self, records):
        assert records.timestamps is None or len(records.timestamps) == len(records)
        self.sizes.append(len(records))
        self.stamps += records.timestamps or [None] * len(records)


# -- one in, one out --


def test_map_keeps_timestamps():
    assert run(node(MapOperator, "map", str), [1, 2], [5, None]) == [("1", 5), ("2", None)]
    assert run(node(MapOperator, "map", str), [1, 2]) == [("1", None), ("2", None)]


def test_filter_keeps_the_timestamps_of_what_it_keeps():
    operator = node(FilterOperator, "filter", lambda value: value % 2 == 1)
    assert run(operator, [1, 2, 3], [5, 6, 7]) == [(1, 5), (3, 7)]
    assert run(operator, [2, 4], [5, 6]) == []


def test_flat_map_gives_each_result_its_records_timestamp():
    assert run(node(FlatMapOperator, "flat_map", lambda value: ["x"] * value), [2, 0, 1], [5, 6, 7]) == [
        ("x", 5),
        ("x", 5),
        ("x", 7),
    ]
    assert run(node(FlatMapOperator, "flat_map", lambda value: None), [1]) == []
    assert run(node(FlatMapOperator, "flat_map", lambda value: iter([value])), [1]) == [(1, None)]


@pytest.mark.parametrize("stamps", [None, [7, 8, 9]])
def test_results_of_a_run_are_passed_on_in_portions(stamps):
    for operator in (
        node(FlatMapOperator, "flat_map", lambda value: range(RUN_LIMIT)),
        node(ProcessOperator, "process", lambda value, ctx: range(RUN_LIMIT)),
    ):
        with Harness(operator) as harness:
            harness.operator.context.output = runs = Runs()
            harness.push_all([1, 2, 3], stamps)
            assert runs.sizes == [RUN_LIMIT] * 3


def test_side_outputs_are_handed_on_in_parts_too():
    def process(value, ctx):
        ctx.output(SIDE, value)

    operator = node(ProcessOperator, "process", process)
    with Harness(operator) as harness:
        runs = Runs()
        harness.operator.context.side_outputs = {"side": runs}
        harness.push_all(range(2 * RUN_LIMIT + 5))
        assert runs.sizes == [RUN_LIMIT, RUN_LIMIT, 5]


FANS = [
    node(FlatMapOperator, "fan", lambda value: iter(range(3 * RUN_LIMIT + 5))),
    node(ProcessOperator, "fan", lambda value, ctx: iter(range(3 * RUN_LIMIT + 5))),
    node(KeyedProcessOperator, "fan", lambda value, ctx: iter(range(3 * RUN_LIMIT + 5)), Keying(str, "key_by")),
]


@pytest.mark.parametrize("operator", FANS, ids=["flat_map", "process", "keyed process"])
def test_the_results_of_one_call_leave_meanwhile(operator):
    runs = Runs()
    with Keyed(operator) as harness:
        harness.operator.context.output = runs
        harness.push(1, timestamp=1)
        assert runs.sizes == [RUN_LIMIT] * 3 + [5]
        harness.push(2)
        assert runs.sizes == ([RUN_LIMIT] * 3 + [5]) * 2


class Odd(dict[str, int]):
    def values(self):
        raise RuntimeError("no")


def large(value):
    return [bytes(100_000) if value % 2 else {"a": [bytes(100_000)]}]


def test_large_results_are_handed_on_in_parts():
    def to_the_side(value, ctx):
        ctx.output(SIDE, large(value)[0])

    keying = Keying(lambda value: value % 7, "key_by")
    for operator in (
        node(MapOperator, "map", lambda value: large(value)[0]),
        node(MapOperator, "map", lambda value: large(value)[0], keying),
        node(FlatMapOperator, "flat_map", large),
        node(FlatMapOperator, "flat_map", lambda value: large(value) * 3),
        node(ProcessOperator, "process", lambda value, ctx: large(value)),
        node(KeyedProcessOperator, "process", lambda value, ctx: large(value), keying),
        node(ProcessOperator, "process", to_the_side),
    ):
        with Keyed(operator) as harness:
            harness.operator.context.output = runs = Runs()
            harness.operator.context.side_outputs = {"side": runs}
            of_records: tuple[list[int] | None, ...] = (None, list(range(1000)))
            for stamps in of_records:
                runs.sizes.clear()
                runs.stamps.clear()
                harness.push_all(range(1000), stamps)
                assert max(runs.sizes) <= 256, "25 MB"
                fan = sum(runs.sizes) // 1000
                assert sum(runs.sizes) == 1000 * fan
                assert runs.stamps == [
                    stamp for stamp in (repeat(None, 1000) if stamps is None else stamps) for _ in range(fan)
                ]
    for result in 1, ("a", [1, 2]), Odd(a=1):
        with Harness(node(MapOperator, "map", lambda value, result=result: result)) as alone:
            alone.operator.context.output = runs = Runs()
            for count in 0, 1, 63, 64, 65, 256, 10_000:
                alone.push_all(range(count))
            assert runs.sizes == [1, 63, 64, 65, 256, 10_000]


class Full(OperatorDiscard):
    def process_records(self, records):
        raise MemoryError("no room for a buffer")


@pytest.mark.parametrize("operator", FANS, ids=["flat_map", "process", "keyed process"])
def test_an_error_further_on_is_not_that_of_the_record_at_hand(operator):
    with Keyed(operator) as harness:
        harness.operator.context.output = Full()
        with pytest.raises(MemoryError, match=r"^no room for a buffer$"):
            harness.push(1)


def test_functions_as_objects_are_opened_and_closed():
    class Both(MapFunction):
        seen: list[str] = []

        def open(self, runtime_context):
            self.seen.append(f"open {runtime_context.get_index_of_this_subtask()}")
            self.seen.append(runtime_context.get_task_name_with_subtasks())

        def map(self, value):
            return value

        def close(self):
            self.seen.append("close")

    function = Both()
    with Harness(node(MapOperator, "m", function), subtask=2, parallelism=4) as harness:
        harness.push(1)
    assert function.seen == ["open 2", "m (3/4)", "close"]


# -- process, without key --


def test_process():
    class Split(ProcessFunction):
        def process_element(self, value, ctx):
            yield value, ctx.timestamp(), ctx.timer_service().current_watermark()
            yield SIDE, value
            ctx.output(SIDE, -value)

    with Harness(node(ProcessOperator, "process", Split()), processing_time=9) as harness:
        harness.push(1, 5)
        harness.push_watermark(7)
        harness.push(2)
        assert harness.get_records() == [((1, 5, MIN_TIMESTAMP), 5), ((2, None, 7), None)]
        assert harness.get_side_records(SIDE) == [(1, 5), (-1, 5), (2, None), (-2, None)]


def test_an_unused_side_output_is_dropped():
    with Harness(node(ProcessOperator, "process", lambda value, ctx: [(SIDE, value), value])) as harness:
        harness.operator.context.side_outputs = {}
        harness.push(1)
        assert harness.get_output() == [1]


def test_clocks_without_key():
    seen = []

    class Clocks(ProcessFunction):
        def process_element(self, value, ctx):
            seen.append(ctx.timer_service().current_processing_time())

    with Harness(node(ProcessOperator, "p", Clocks()), processing_time=42) as harness:
        harness.push(1)
    assert seen == [42]


@pytest.mark.parametrize("method", ["register_event_time", "delete_event_time", "register_processing_time"])
def test_timers_on_a_stream_without_key_are_refused(method):
    def process(value, ctx):
        getattr(ctx.timer_service(), f"{method}_timer")(5)

    with pytest.raises(ProgramError, match=r"'p' sets a timer on a stream without keys: call key_by"):
        run(node(ProcessOperator, "p", process), [1])


def test_keyed_state_on_a_stream_without_key_is_refused():
    class Greedy(ProcessFunction):
        def open(self, runtime_context):
            runtime_context.get_state(ValueStateDescriptor("s"))

        def process_element(self, value, ctx):
            pass

    with pytest.raises(ProgramError, match=r"'p' uses the keyed state 's' on a stream without keys"):
        run(node(ProcessOperator, "p", Greedy()), [1])


# -- errors --


class _Fails:
    def __call__(self, *values):
        if "guilty" in values[:2]:
            raise KeyError("nope")
        return [values[0]]


KINDS = ["map", "filter", "flat_map", "process", "keyed process", "reduce"]


@pytest.mark.parametrize(
    "operator",
    [
        node(MapOperator, "op", _Fails()),
        node(FilterOperator, "op", _Fails()),
        node(FlatMapOperator, "op", _Fails()),
        node(ProcessOperator, "op", _Fails()),
        node(KeyedProcessOperator, "op", _Fails(), Keying(lambda value: 0, "key_by")),
        node(ReduceOperator, "op", _Fails(), Keying(lambda value: 0, "key_by")),
    ],
    ids=KINDS,
)
def test_errors_name_operator_and_record(operator):
    with Keyed(operator) as harness, pytest.raises(OperatorError) as caught:
        harness.push_all(["innocent", "guilty", "also innocent"])
    assert str(caught.value).startswith("operator 'op' failed at the record 'guilty': KeyError: 'nope'\n")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    "operator",
    [
        node(FlatMapOperator, "fan", lambda value: [value] * RUN_LIMIT),
        node(ProcessOperator, "fan", lambda value, ctx: [value] * RUN_LIMIT),
        node(KeyedProcessOperator, "fan", lambda value, ctx: [value] * RUN_LIMIT, Keying(lambda value: 0, "key_by")),
    ],
    ids=KINDS[2:5],
)
def test_an_error_further_down_keeps_its_name_and_cause(operator):
    with Keyed(operator) as harness:
        context = harness.operator.context
        context.output = MapOperator(replace(context, name="down", output=OperatorDiscard()), _Fails())
        with pytest.raises(OperatorError, match="operator 'down' failed at the record 'guilty'") as caught:
            harness.push("guilty")
    assert isinstance(caught.value.__cause__, KeyError)


def test_errors_in_open_and_close_are_named():
    class Bad(FilterFunction):
        def __init__(self, where):
            self.where = where

        def open(self, runtime_context):
            if self.where == "open":
                raise OSError("no")

        def filter(self, value):
            return True

        def close(self):
            if self.where == "close":
                raise OSError("no")

    for where in ("open", "close"):
        with (
            pytest.raises(OperatorError, match=rf"'f' failed in {where}\(\): OSError: no"),
            Harness(node(FilterOperator, "f", Bad(where))),
        ):
            pass


def test_a_broken_repr_does_not_hide_the_error():
    class Shy:
        def __repr__(self):
            raise RuntimeError

    def fail(value):
        raise ValueError("real")

    with pytest.raises(OperatorError, match="<Shy whose repr raised RuntimeError>: ValueError: real"):
        run(node(MapOperator, "m", fail), [Shy()])


def test_results_that_are_no_iterable():
    with pytest.raises(OperatorError, match="'f' failed at the record 1: TypeError"):
        run(node(FlatMapOperator, "f", lambda value: 5), [1])


# -- the rest --


def test_fanout_gives_everybody_everything():
    first, second = Runs(), Runs()
    fanout = OperatorFanout([first, second], Copier("op"), 1)
    fanout.process_records(Records([1, 2]))
    fanout.process_watermark(5)
    fanout.process_status(True)
    assert first.sizes == second.sizes == [2]


def test_print(capsys):
    for subtask, parallelism, identifier in ((0, 1, ""), (0, 1, "id"), (1, 2, ""), (1, 2, "id")):
        with Harness(node(PrintOperator, "print", identifier), subtask=subtask, parallelism=parallelism) as harness:
            harness.push("x")
    assert capsys.readouterr().out == "x\nid> x\n2> x\nid:2> x\n"


def test_output_tags():
    assert OutputTag("a") == OutputTag("a") != OutputTag("b")
    assert {OutputTag("a"): 1}[OutputTag("a")] == 1
    with pytest.raises(ProgramError):
        OutputTag("")


def test_flat_map_and_reduce_functions_as_objects():
    class Twice(FlatMapFunction):
        def flat_map(self, value):
            yield value
            yield value

    class Max(ReduceFunction):
        def reduce(self, value1, value2):
            return max(value1, value2)

    assert [record.value for record in run(node(FlatMapOperator, "f", Twice()), [Row.of(a=1)])] == [(1,), (1,)]
    with harness_for(Max(), key_by=lambda value: 0) as harness:
        harness.push_all([2, 1, 3])
        assert harness.get_output() == [2, 2, 3]
