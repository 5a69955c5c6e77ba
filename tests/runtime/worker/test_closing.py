from __future__ import annotations

import gc
import signal
import threading
import weakref
from typing import Any

import pytest

from pillarbox import MapFunction, StreamExecutionEnvironment
from pillarbox._runtime.spark.homes.settings import MODE
from pillarbox._runtime.spark.homes.starter_connection import SIGNAL
from pillarbox._runtime.spark.tasks import residency
from pillarbox._runtime.spark.tasks.residency import Residency
from pillarbox._runtime.spark.worker import closing
from tests.runtime.spark_of_dicts import Query

MODELS: weakref.WeakSet[Any] = weakref.WeakSet()


class Model:
    def __init__(self) -> None:
        self.itself = self


class Scores(MapFunction):
    """A function without ``close()``."""

    def open(self, runtime_context):
        self.model = Model()
        MODELS.add(self.model)

    def map(self, row):
        return len(MODELS)


class Starter:
    """A fake starter of home processes, which answers only after the worker's epoch."""

    is_asked = False

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.requests: list[tuple[str, Any]] = []
        self.has_asked = threading.Event()

    def prepare(self) -> None:
        pass

    def ask(self, request: str, *, starts: bool = True, **arguments: Any) -> dict[str, Any]:
        if request == "holds":
            self.answers.wait()
        self.requests.append((request, arguments.get("run", arguments.get("runs"))))
        self.has_asked.set()
        return {"over": arguments.get("runs")}


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Residency:
    MODELS.clear()
    residents = Residency()
    monkeypatch.setattr(residency, "here", residents)
    return residents


@pytest.fixture
def starter(monkeypatch: pytest.MonkeyPatch) -> Any:
    fake = Starter()
    monkeypatch.setattr(closing, "of_this_worker", lambda: fake)
    before = signal.getsignal(SIGNAL)
    yield fake
    fake.answers.set()
    signal.signal(SIGNAL, before)


def scoring(run: str, mode: str = "fork") -> Query:
    env = StreamExecutionEnvironment().set_parallelism(1)
    settings = {"spark.jobGroup.id": run, "sql.streaming.queryId": "query", MODE: mode}
    return Query(env, env.from_collection([]).map(Scores()), **settings)


def test_functions_without_close_are_let_go_when_their_query_has_ended(worker: Residency, starter: Starter) -> None:
    query = scoring("run")
    assert query.run_batch([1]) == [1] and starter.requests == [], "no epoch waits for the starter"
    starter.answers.set()
    assert starter.has_asked.wait(60)
    assert query.run_batch([1]) == [1]
    assert starter.requests == [("holds", "run")], "one request for all epochs"
    signal.raise_signal(SIGNAL)  # as the starter does
    assert starter.requests[1:] == [("over", ["run"]), ("closed", "run")]
    assert len(worker) == 0


def test_the_next_run_of_a_query_lets_go_of_the_functions_of_the_run_before(worker: Residency) -> None:
    assert [scoring(run, "off").run_batch([1]) for run in "abc"] == [[1], [1], [1]]
    gc.collect()
    assert len(MODELS) == len(worker) == 1
