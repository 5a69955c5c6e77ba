"""``inspect --against`` lists the effects of a program change on a checkpoint."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox import CheckpointMismatchError, KeyedProcessFunction, Types, ValueStateDescriptor
from pillarbox._graph.description import describe_programs
from pillarbox._runtime.spark.reading import inspection
from pillarbox._runtime.spark.reading.inspection import changes_to
from pillarbox._state.inspect.view import LogView
from pillarbox.testing import ProgramTestHarness, row

# Until then no request is answered: all of them are carried to the next epoch.
ANSWERING = threading.Event()


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value.card


async def ask(value):
    while not ANSWERING.is_set():
        await asyncio.sleep(0.002)
    return value


def asking(uid: str) -> Any:
    return lambda env, rows: rows.key_by("card").process(Pass()).uid("pass").map_async(ask, on_barrier="carry").uid(uid)


@pytest.fixture
def beside(monkeypatch) -> Any:
    harnesses: dict[str, ProgramTestHarness] = {}

    def description(spark: Any, name: str) -> Any:
        described = describe_programs([harnesses[name]._program])
        return SimpleNamespace(binding=lambda: described, newest=lambda: described)

    def files(spark: Any, name: str) -> Any:
        stores = harnesses[name].snapshot().stores
        views = {code: LogView(store, code) for code, store in enumerate(stores.values()) if store.get(0) is not None}
        return SimpleNamespace(stateful=[0], views=lambda operator: views)

    monkeypatch.setattr(inspection, "Checkpoint", description)
    monkeypatch.setattr(inspection, "CheckpointState", files)
    return harnesses


def test_requests_of_an_operator_with_another_uid_are_refused(beside: Any) -> None:
    ANSWERING.clear()
    no_spark: Any = None
    with (
        ProgramTestHarness(asking("ask"), parallelism=3) as then,
        ProgramTestHarness(asking("other"), parallelism=3) as now,
    ):
        beside.update(then=then, now=now)
        for harness in (then, now):
            harness.push("rows", row(card="c"))
            harness.run_epoch()
        refusals = changes_to(no_spark, "then", "now")["refused"]
        same = changes_to(no_spark, "then", "then")
        snapshot = then.snapshot()
        ANSWERING.set()
    assert refusals == [
        "operator 'ask' has pending requests, but the program has no such operator in the chain of 'pass': set the"
        " operator's uid() as before"
    ]
    assert same == {"refused": [], "doubtful": [], "carried_out": []}
    with (
        ProgramTestHarness(asking("other"), parallelism=3, snapshot=snapshot) as later,
        pytest.raises(CheckpointMismatchError, match="unfinished work of operator 'ask', but the program"),
    ):
        later.push("rows", row(card="c"))
        later.run_epoch()


class Declares(KeyedProcessFunction):
    """Stores a value in a state with or without a declared type."""

    def __init__(self, *types: Any) -> None:
        self._types = types

    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", *self._types))

    def process_element(self, value, ctx):
        self.seen.update(1)
        yield value.card


@pytest.mark.parametrize(
    ("types", "key_type", "reason"),
    [
        ((int,), Types.STRING(), None),
        ((int,), None, "the type of its key is not known: key by columns of a DataFrame or an output_type, or"),
        ((), Types.STRING(), "a state has no declared type or a type that is not plain data, or an operator"),
    ],
)
def test_the_reason_why_state_is_pickled(types: Any, key_type: Any, reason: str | None) -> None:
    def build(env: Any, rows: Any) -> Any:
        return rows.key_by(lambda value: value.card, key_type=key_type).process(Declares(*types)).uid("seen")

    with ProgramTestHarness(build, parallelism=1) as harness:
        harness.push("rows", row(card="ann"))
        harness.run_epoch()
        (store,) = (store for store in harness.snapshot().stores.values() if store.get(0) is not None)
    (batch,) = inspection._summary(1, 0, store)
    facts = json.loads(batch.to_pylist()[0]["facts"])
    assert facts["is_plain"] is (reason is None)
    assert (facts["reason_for_pickles"] or "").startswith(reason or "")
    assert bool(facts["reason_for_pickles"]) is bool(reason)


def test_an_operator_that_keeps_records_has_its_reason() -> None:
    ANSWERING.clear()

    def build(env: Any, rows: Any) -> Any:
        keyed = rows.key_by(lambda value: value.card, key_type=Types.STRING()).process(Declares(int)).uid("seen")
        return keyed.map_async(ask, on_barrier="carry").uid("ask")

    with ProgramTestHarness(build, parallelism=1) as harness:
        harness.push("rows", row(card="ann"))
        harness.run_epoch()
        (store,) = (store for store in harness.snapshot().stores.values() if store.get(0) is not None)
        ANSWERING.set()
    (batch,) = inspection._summary(1, 0, store)
    facts = json.loads(batch.to_pylist()[0]["facts"])
    assert facts["summary"]["carried"] == {"ask": 1}
    assert facts["reason_for_pickles"].startswith("another operator of its chain stores records")
