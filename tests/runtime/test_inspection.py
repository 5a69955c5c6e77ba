"""What a change of a program would do to a checkpoint, told from both alone; without Spark."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox import CheckpointMismatchError, KeyedProcessFunction
from pillarbox._graph.description import describe_programs
from pillarbox._runtime.spark import inspection
from pillarbox._runtime.spark.inspection import changes_to
from pillarbox._state.log_view import LogView
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
    """A program with an operator that carries requests, chained behind another one."""
    return lambda env, rows: rows.key_by("card").process(Pass()).uid("pass").map_async(ask, on_barrier="carry").uid(uid)


@pytest.fixture
def beside(monkeypatch) -> Any:
    """The checkpoints that there are, by name: each has the state of a harness, and its program."""
    known: dict[str, ProgramTestHarness] = {}

    def description(spark: Any, name: str) -> Any:
        described = describe_programs([known[name]._program])
        return SimpleNamespace(binding=lambda: described, newest=lambda: described)

    def files(spark: Any, name: str) -> Any:
        stores = known[name].snapshot().stores
        views = {code: LogView(store, code) for code, store in enumerate(stores.values()) if store.get(0) is not None}
        return SimpleNamespace(stateful=[0], views=lambda operator: views)

    monkeypatch.setattr(inspection, "Description", description)
    monkeypatch.setattr(inspection, "CheckpointFiles", files)
    return known


def test_requests_of_an_operator_with_another_uid_are_refused(beside: Any) -> None:
    """As the tasks do; also where only one of them has any."""
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
        said = changes_to(no_spark, "then", "now")["refused"]
        same = changes_to(no_spark, "then", "then")
        snapshot = then.snapshot()
        ANSWERING.set()
    assert said == [
        "operator 'ask' has requests that are carried on, and the program does not have it in the chain of 'pass': set"
        " uid() to the one of before"
    ]
    assert same == {"refused": [], "doubtful": [], "carried_out": []}
    with (
        ProgramTestHarness(asking("other"), parallelism=3, snapshot=snapshot) as later,
        pytest.raises(CheckpointMismatchError, match="'ask' had not finished, which the program does not have in"),
    ):
        later.push("rows", row(card="c"))
        later.run_epoch()
