"""A state's declared type is enforced wherever the function runs, with or without a key type."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Row,
    TypeMismatchError,
    Types,
    ValueStateDescriptor,
)
from pillarbox._elements.records import Records
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.types.plain_types import plain_type
from pillarbox.testing import ProgramTestHarness, harness_for
from tests.support.nodes import node
from tests.task.tasks import run_shuffled, shuffled_task


@dataclasses.dataclass
class Cart:
    total: float


class Keep(KeyedProcessFunction):
    def __init__(self, declared: Any) -> None:
        self.declared = declared

    def open(self, runtime_context: Any) -> None:
        declared = self.declared
        self.states = {
            "value": runtime_context.get_state(ValueStateDescriptor("value", declared)),
            "list": runtime_context.get_list_state(ListStateDescriptor("list", declared)),
            "map": runtime_context.get_map_state(MapStateDescriptor("map", Types.STRING(), declared)),
            "any": runtime_context.get_state(ValueStateDescriptor("any")),
        }

    def process_element(self, record: Any, ctx: Any) -> Any:
        kind, value = record
        state = self.states[kind]
        if kind == "map":
            state.put("k", value)
        else:
            (state.add if kind == "list" else state.update)(value)
        yield kind


def key_of(record: Any) -> int:
    return 1


def in_harness(function: Keep, record: Any, **options: Any) -> None:
    with harness_for(function, key_by=key_of, **options) as harness:
        harness.push(record)


def in_program(function: Keep, record: Any, *, key_type: Any = None, **options: Any) -> None:
    def build(env: Any, records: Any) -> Any:
        keyed = records.key_by(key_of) if key_type is None else records.key_by(key_of, key_type=key_type)
        return keyed.process(function)

    with ProgramTestHarness(build, **options) as harness:
        harness.push("records", record)
        if options.get("batch"):
            harness.end_input()
        else:
            harness.run_epoch()


def in_task(function: Keep, record: Any, store: MemoryChunkStore | None) -> None:
    task = shuffled_task(node(KeyedProcessOperator, "keep", function=function, keying=Keying(key_of, "keep")))
    run_shuffled(task, store, Records([record]))


PLACES: dict[str, Callable[[Keep, Any], None]] = {
    "harness": in_harness,
    "harness with a type of the key": partial(in_harness, key_type=Types.LONG()),
    "program": in_program,
    "program with a type of the key": partial(in_program, key_type=Types.LONG()),
    "batch mode": partial(in_program, batch=True),
    "batch mode with a type of the key": partial(in_program, batch=True, key_type=Types.LONG()),
    "task with a checkpoint": lambda function, record: in_task(function, record, MemoryChunkStore()),
    "task without": lambda function, record: in_task(function, record, None),
}
ROW = Types.ROW_NAMED(["card", "n"], [Types.STRING(), Types.LONG()])
DECLARED: list[Any] = [float, int, str, dt.datetime, Types.LONG(), Types.INT(), Types.BOOLEAN(), ROW, Cart]
VALUES: list[Any] = [1.5, 1, 2**40, 2**70, True, "x", b"x", dt.datetime(2020, 1, 1), ("a", 1), ("a", "b")]
VALUES += [Row.of(card="a", n=1), Row.of(card=1, n=1), Cart(1.5), Cart("x")]  # type: ignore[arg-type]


@pytest.mark.slow("each example runs in eight places")
@given(st.sampled_from(DECLARED), st.sampled_from(VALUES), st.sampled_from(["value", "list", "map", "any"]))
def test_a_declared_type_holds_everywhere(declared: Any, value: Any, kind: str) -> None:
    fits = kind == "any" or plain_type(declared).fits([value])
    for where, run in PLACES.items():
        message = None
        try:
            run(Keep(declared), (kind, value))
        except TypeMismatchError as error:
            message = str(error)
        assert (message is None) == fits, (where, message)
        if message is not None:
            assert f"the {kind} state '{kind}' of key 1 does not fit its declared type: " in message, where


def test_a_float_is_refused_where_it_is_text() -> None:
    for run in PLACES.values():
        with pytest.raises(TypeMismatchError, match=r"'x' \(str\) is not of type DOUBLE; give such a value"):
            run(Keep(float), ("value", "x"))


def test_a_type_that_is_not_plain_is_not_checked() -> None:
    for run in PLACES.values():
        run(Keep(Types.PICKLED_BYTE_ARRAY()), ("value", {1, "x"}))


@given(st.sampled_from(DECLARED), st.sampled_from([None, *VALUES]))
def test_one_value_is_checked_as_many_are(declared: Any, value: Any) -> None:
    result = plain_type(declared)
    assert result.takes(value) == result.fits([value]) == result.fits([value, value, None])


def test_many_keys_in_a_harness() -> None:
    with harness_for(Keep(float), key_by=lambda record: record[1]) as harness:
        harness.push_all([("value", float(number)) for number in range(150)])
        with pytest.raises(TypeMismatchError, match="of key 'x' does not fit its declared type"):
            harness.push(("value", "x"))
        with pytest.raises(TypeMismatchError, match="of key 'x' does not fit its declared type"):
            harness.snapshot()
