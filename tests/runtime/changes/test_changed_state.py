from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from pillarbox import (
    AggregateFunction,
    CheckpointedFunction,
    CheckpointMismatchError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OperatorError,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox._state.log import large_collections
from pillarbox._state.savepoint.files import write_savepoint
from pillarbox.testing import ProgramTestHarness


@pytest.fixture
def model(monkeypatch):
    def define(source: str, name: str) -> Any:
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec("from dataclasses import dataclass\n" + source, vars(module))
        return module

    return define


def stores(snapshot):
    return b"".join(payload for store in snapshot.stores.values() for payload in store.chunks.values())


def run(build, values, snapshot=None, parallelism=2):
    with ProgramTestHarness(build, snapshot=snapshot, parallelism=parallelism) as harness:
        harness.push_all("values", values)
        return sorted(harness.run_epoch()["output"], key=repr), harness.snapshot()


class Totals(KeyedProcessFunction):
    def __init__(self, cls, name, former=(), deleted=(), first=True):
        self.cls, self.name, self.former, self.deleted, self.has_first = cls, name, former, deleted, first

    def open(self, runtime_context):
        for name in self.deleted:
            runtime_context.delete_if_exists(name)
        self.sum = runtime_context.get_state(ValueStateDescriptor(self.name, Types.LONG()).renamed_from(*self.former))
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))
        self.first = runtime_context.get_state(ValueStateDescriptor("first")) if self.has_first else None

    def process_element(self, value, ctx):
        before = self.last.value()
        self.sum.update((self.sum.value() or 0) + value)
        self.last.update(self.cls(value))
        if self.first is not None:
            self.first.update(value)
        yield ctx.get_current_key(), self.sum.value(), before


def test_a_new_version_renames_deletes_and_moves(model):
    old = model("@dataclass\nclass Seen:\n    n: int\n", "one").Seen

    def before(env, values):
        return values.key_by(lambda n: n % 5).process(Totals(old, "sum")).uid("totals")

    out, snapshot = run(before, range(5))
    assert out == [(n, n, None) for n in range(5)]
    assert b"/first" in stores(snapshot)
    sys.modules.pop("one")
    new = model("@dataclass\nclass Seen:\n    n: int\n    times: int = 1\n", "other").Seen

    def after(env, values):
        env.add_class_alias("one:Seen", new)
        return (
            values.key_by(lambda n: n % 5)
            .process(Totals(new, "total", ("sum",), ("first",), first=False))
            .uid("totals")
        )

    def later(env, values):
        return values.key_by(lambda n: n % 5).process(Totals(new, "total", first=False)).uid("totals")

    out, now = run(after, [5, 6], snapshot)
    assert out == [(0, 5, new(0, 1)), (1, 7, new(1, 1))]
    assert b"one" not in stores(now)
    out, again = run(later, [7, 8, 9], now)
    for name in (b"/first", b"/sum", b"one"):  # the log has deleted and renamed names while the program declares them
        assert name not in stores(again)
    assert out == [(2, 9, new(2)), (3, 11, new(3)), (4, 13, new(4))]
    with pytest.raises(CheckpointMismatchError, match=r"holds value 'total' of operator .*renamed_from\('total'\)"):
        run(before, [1], now)
    with pytest.raises(
        CheckpointMismatchError, match=r"one.Seen, which cannot be found .* env.add_class_alias\('one:Seen'"
    ):
        run(lambda env, values: after(StreamExecutionEnvironment(), values), [1], snapshot)


class Numbered(MapFunction, CheckpointedFunction):
    def __init__(self, name, former=(), deleted=()):
        self.name, self.former, self.deleted = name, former, deleted

    def initialize_state(self, context):
        store = context.get_operator_state_store()
        for name in self.deleted:
            store.delete_if_exists(name)
        if self.name is not None:
            self.seen = store.get_list_state(ListStateDescriptor(self.name).renamed_from(*self.former))

    def map(self, value):
        if self.name is None:
            return value
        self.seen.add(value)
        return list(self.seen)


@pytest.mark.parametrize("large", [False, True])
def test_lists_of_operators_are_renamed_and_deleted(large, monkeypatch):
    if large:
        monkeypatch.setattr(large_collections, "_LARGE", 20)

    def program(*arguments):
        return lambda env, values: values.rebalance().map(Numbered(*arguments)).uid("numbered")

    out, first = run(program("seen"), range(20), parallelism=1)
    assert sorted(map(len, out)) == [*range(1, 21)] and max(out, key=len) == [*range(20)]
    out, second = run(program("all", ("seen",)), [20], first, parallelism=1)
    assert out == [list(range(21))]
    for again, names in ((program("all"), False), (program("all", ("seen",)), True)):
        out, now = run(again, [21], second, parallelism=1)
        # The log has renamed names while the program declares them.
        assert out == [list(range(22))] and (b"numbered/seen" in stores(now)) is names
    with pytest.raises(CheckpointMismatchError, match=r"call delete_if_exists\(\) of the operator state store"):
        run(program(None), [22], second, parallelism=1)
    out, third = run(program(None, (), ("all",)), [22], second, parallelism=1)
    assert out == [22] and run(program(None), [23], third, parallelism=1)[0] == [23]
    with pytest.raises(Exception, match="deletes the state 'all' of the operator 'numbered' itself, and declares it"):
        run(lambda env, values: values.rebalance().map(Both()).uid("numbered"), [1], parallelism=1)


class Both(Numbered):
    def __init__(self):
        super().__init__("all")

    def initialize_state(self, context):
        super().initialize_state(context)
        context.get_operator_state_store().delete_if_exists("all")


class Folded(AggregateFunction):
    def __init__(self, cls):
        self.cls = cls

    def create_accumulator(self):
        return self.cls(0)

    def add(self, value, accumulator):
        accumulator.n += value[1]
        return accumulator

    def get_result(self, accumulator):
        return accumulator.n, getattr(accumulator, "times", None)


class WithState(ProcessWindowFunction):
    def __init__(self, name, former=()):
        self.descriptor = MapStateDescriptor(name).renamed_from(*former)

    def process(self, key, context, elements):
        fired = context.global_state().get_map_state(self.descriptor)
        fired[len(list(fired))] = context.window().start
        yield key, next(iter(elements)), dict(fired.items())


@pytest.mark.parametrize("function", [False, True])
def test_windows_resume_with_renamed_classes(model, function):
    def program(cls, name, former=(), alias=None):
        def build(env, values):
            if alias is not None:
                env.add_class_alias(alias, cls)
            times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: value[2])
            windowed = (
                values.assign_timestamps_and_watermarks(times)
                .key_by(lambda value: value[0])
                .window(TumblingEventTimeWindows.of(10))
            )
            return windowed.aggregate(Folded(cls), *([WithState(name, former)] if function else [])).uid("windows")

        return build

    old = model("@dataclass\nclass Acc:\n    n: int\n", "one").Acc
    out, snapshot = run(program(old, "fired"), [("a", 1, 1), ("b", 2, 2), ("a", 3, 12), ("b", 4, 13)])
    assert len(out) == 2
    sys.modules.pop("one")
    new = model("@dataclass\nclass Acc:\n    n: int\n    times: int = 7\n", "other").Acc
    values = [("a", 10, 14), ("b", 10, 25)]
    out, now = run(program(new, "firings", ("fired",), "one:Acc"), values, snapshot)
    folded = [("a", (13, 7)), ("b", (4, 7))]
    assert out == ([(*result, {0: 0, 1: 10}) for result in folded] if function else [result for _, result in folded])
    assert b"one" not in stores(now)
    out, _ = run(program(new, "firings", ("fired",)), [("a", 0, 45), ("b", 0, 45)], now)
    assert (("b", (10, 7), {0: 0, 1: 10, 2: 20}) if function else (10, 7)) in out


def test_wrong_uses_say_what_to_do():
    class Late(KeyedProcessFunction):
        def open(self, runtime_context):
            self.context = runtime_context

        def process_element(self, value, ctx):
            self.context.delete_if_exists("x")

    class Declared(KeyedProcessFunction):
        def open(self, runtime_context):
            runtime_context.get_state(ValueStateDescriptor("x"))
            runtime_context.delete_if_exists("x")

        def process_element(self, value, ctx):
            return None

    class NoKey(MapFunction):
        def open(self, runtime_context):
            runtime_context.delete_if_exists("x")

        def map(self, value):
            return value

    for build, says in (
        (lambda env, values: values.key_by(str).process(Late()), "deletes the state 'x' while records are processed"),
        (lambda env, values: values.key_by(str).process(Declared()), "deletes the state 'x' and declares it"),
        (lambda env, values: values.map(NoKey()), "uses the keyed state 'x' on a stream without keys"),
    ):
        with pytest.raises((OperatorError, Exception), match=says):
            run(build, [1])


def test_the_same_over_a_savepoint_with_keys_of_a_class_that_moved(model, tmp_path):
    source = "@dataclass(frozen=True)\nclass Key:\n    n: int\n@dataclass\nclass Seen:\n    n: int\n"
    old = model(source, "one")

    def before(env, values):
        return values.key_by(lambda n: old.Key(n % 5)).process(Totals(old.Seen, "sum")).uid("totals")

    _, snapshot = run(before, range(20))
    directory = str(tmp_path / "savepoint")
    write_savepoint(directory, snapshot.stores, epoch=1)
    sys.modules.pop("one")
    new = model(source.replace("n: int", "n: int\n    more: int = 0"), "other")

    def after(env, values):
        env.add_class_alias("one:Key", new.Key).add_class_alias("one:Seen", new.Seen).from_savepoint(directory)
        keyed = values.key_by(lambda n: new.Key(n % 5))
        return keyed.process(Totals(new.Seen, "total", ("sum",), ("first",), first=False)).uid("totals")

    out, now = run(after, range(20, 25), parallelism=3)
    assert out == [(new.Key(n), sum(range(n, 25, 5)), new.Seen(15 + n)) for n in range(5)]
    assert b"one" not in stores(now)
