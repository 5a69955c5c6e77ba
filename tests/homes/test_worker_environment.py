from __future__ import annotations

import atexit
import io
import os
import pickle
import random
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark import accumulators as spark_accumulators
from pyspark import cloudpickle
from pyspark.core.broadcast import Broadcast, _broadcastRegistry, _from_id

from pillarbox import KeyedProcessFunction, OperatorError
from pillarbox._runtime.spark.homes import worker_environment
from pillarbox._runtime.spark.homes.broadcasts import keep_pickled_values
from pillarbox._runtime.spark.homes.settings import MODE, MOST
from tests.homes.conftest import Executor, wait_until
from tests.runtime.spark_of_dicts import Query, keyed_query

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes in /proc"),
]


def keyed(function: Any, parallelism: int = 1, **settings: str) -> Query:
    return keyed_query(function, parallelism, settings=settings)


class _Changes(KeyedProcessFunction):
    def open(self, runtime_context):
        os.environ.update(IN_OPEN="1", OF_BOTH="function")
        sys.path.append("/plugins")
        os.chdir("/")

    def process_element(self, value, ctx):
        yield {name: os.environ.get(name) for name in ("IN_OPEN", "OF_BOTH", "OF_WORKER")}, [*sys.path], os.getcwd()


def test_changes_of_functions_stay_and_later_changes_of_the_worker_arrive(
    executor: Executor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OF_BOTH", "worker")
    query = keyed(_Changes())
    environment, path, directory = query.run_batch([1])[0]
    assert (environment, directory) == ({"IN_OPEN": "1", "OF_BOTH": "function", "OF_WORKER": None}, "/")
    assert path == [*sys.path, "/plugins"]
    # As where Spark ships a file in the middle of a query.
    monkeypatch.setattr(sys, "path", [sys.path[0], "/shipped", *sys.path[1:-1]])
    monkeypatch.setenv("OF_WORKER", "1")
    monkeypatch.setenv("OF_BOTH", "worker, later")
    monkeypatch.chdir(tmp_path)
    environment, path, directory = query.run_batch([1])[0]
    assert (environment, directory) == ({"IN_OPEN": "1", "OF_BOTH": "function", "OF_WORKER": "1"}, "/")
    assert path == [*sys.path, "/plugins"]
    monkeypatch.delenv("OF_WORKER")
    assert query.run_batch([1])[0][0]["OF_WORKER"] is None


def test_the_process_is_sent_if_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = worker_environment.here(None).process
    assert sent is not None and worker_environment.here(sent).process is None
    monkeypatch.setenv("NEW", "\udcff")  # as bytes that are no text are read
    assert worker_environment.here(sent).process not in (None, sent)


def test_the_worker_sends_plain_data_before_the_users_modules_can_be_found(
    executor: Executor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "user_module.py").write_text("class Text(str): pass\nclass Anything: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from user_module import Anything, Text  # type: ignore[import-not-found]

    monkeypatch.setattr(sys, "path", [Text(entry) for entry in sys.path])
    broadcast: Any = object.__new__(Broadcast)
    broadcast._value = Anything()
    monkeypatch.setitem(_broadcastRegistry, 5, broadcast)
    [(name, process)] = keyed(_ReadsBroadcast()).run_batch([1])
    assert name == "Anything" and process in executor.homes


def test_a_value_that_spark_sends_through_a_socket_is_kept_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broadcast, "__init__", Broadcast.__init__)  # which is replaced, and put back
    keep_pickled_values()
    sent = pickle.dumps([bytes(200_000), {"a": 1}], 2)  # not as this process would pickle it
    file: Any = io.BufferedReader(io.BytesIO(sent + b"next"))
    broadcast: Any = Broadcast(sock_file=file)
    monkeypatch.setitem(_broadcastRegistry, 6, broadcast)
    assert worker_environment.value(6) == sent and worker_environment.here(None).broadcasts[6] is None
    assert broadcast.value == pickle.loads(sent) and file.read() == b"next"


class _ReadsBroadcast(KeyedProcessFunction):
    def open(self, runtime_context):
        self.table = _from_id(5)

    def process_element(self, value, ctx):
        yield type(self.table.value).__name__, os.getpid()


class _Adds(KeyedProcessFunction):
    """Adds to an accumulator that unpickling creates, as for functions that the driver sends."""

    def __init__(self, total: Any, term: Any) -> None:
        self.total, self.term = total, term

    def process_element(self, value, ctx):
        self.total.add(self.term)
        if value < 0:
            raise ValueError("negative")
        yield value


class _Unpickles:
    """An object that becomes an accumulator when it is unpickled."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return spark_accumulators._deserialize_accumulator, self.parts


def _vectors() -> Any:
    class Vectors(spark_accumulators.AccumulatorParam[Any]):
        def zero(self, value):
            return np.zeros_like(value)

        def addInPlace(self, value, other):
            value += other
            return value

    return Vectors()


def _sets() -> Any:
    main = types.ModuleType("not importable elsewhere")

    class Sets(spark_accumulators.AccumulatorParam[Any]):
        def zero(self, value):
            return set()

        def addInPlace(self, value, other):
            return value | other

    Sets.__module__ = main.__name__
    return Sets()


@pytest.fixture
def registry() -> Iterator[dict[int, Any]]:
    result: dict[int, Any] = spark_accumulators._accumulatorRegistry
    before = dict(result)
    result.clear()
    yield result
    result.clear()
    result.update(before)


@pytest.mark.parametrize(
    "settings", [{MODE: "off"}, {MODE: "fork"}, {MODE: "fork", MOST: "1"}], ids=["off", "on", "shared"]
)
@pytest.mark.parametrize(
    ("zero", "parameter", "term", "total"),
    [
        (0, spark_accumulators.INT_ACCUMULATOR_PARAM, 2, 8),
        (np.zeros(2), _vectors(), np.ones(2), np.array([4.0, 4.0])),
        (set(), _sets(), {7}, {7}),
    ],
    ids=["int", "array", "set"],
)
def test_accumulators_of_any_class(
    executor: Executor,
    registry: dict[int, Any],
    settings: dict[str, str],
    zero: Any,
    parameter: Any,
    term: Any,
    total: Any,
) -> None:
    query = keyed(_Adds(_Unpickles(7, zero, parameter), term), parallelism=2, **settings)
    for _ in range(3):
        registry.clear()  # as Spark does when a task begins
        query.run_batch([1, 2, 3, 4])
        assert np.array_equal(registry[7]._value, total), "also in later epochs, in which nothing is unpickled"


def test_a_failed_epoch_adds_nothing_to_the_next_one(executor: Executor, registry: dict[int, Any]) -> None:
    query = keyed(_Adds(_Unpickles(7, 0, spark_accumulators.INT_ACCUMULATOR_PARAM), 1))
    with pytest.raises(OperatorError, match="negative"):
        query.run_batch([1, -1])
    registry.clear()
    query.run_batch([1])
    assert registry[7]._value == 1


def _failing(where: str) -> Any:
    home = os.getpid()

    class Fails(spark_accumulators.AccumulatorParam[Any]):
        def zero(self, value):
            return value

        def addInPlace(self, value, other):
            if (os.getpid() == home) == (where == "worker"):
                raise ValueError("no such sum")
            return value + other

    return Fails()


@pytest.mark.parametrize("where", ["home", "worker"])
def test_an_error_of_an_accumulator_is_the_users(executor: Executor, registry: dict[int, Any], where: str) -> None:
    query = keyed(_Adds(_Unpickles(7, 0, _failing(where)), 1), parallelism=2, **{MOST: "1"})
    with pytest.raises(OperatorError, match="ValueError: no such sum") as raised:
        query.run_batch([*range(20)])
    assert "has ended" not in str(raised.value) and "in addInPlace" in str(raised.value)


def test_a_value_that_only_cloudpickle_can_pickle_reaches_the_driver(registry: dict[int, Any]) -> None:
    class Local:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise ValueError("not to be compared")

    worker_environment.add(cloudpickle.dumps([(7, _vectors(), Local())]))
    sent = spark_accumulators.pickleSer.dumps((7, registry[7]._value))
    assert type(spark_accumulators.pickleSer.loads(sent)[1]).__name__ == "Local"


class _Draws(KeyedProcessFunction):
    def open(self, runtime_context):
        self.drawn = random.random(), float(np.random.random())
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writing, str(float(np.random.random())).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(writing)
        with open(reading) as file:
            self.is_inherited = float(file.read()) == float(np.random.random())

    def process_element(self, value, ctx):
        yield os.getpid(), *self.drawn, self.is_inherited


def test_homes_draw_random_numbers_of_their_own(executor: Executor) -> None:
    rows = keyed(_Draws(), parallelism=4).run_batch([*range(20)])
    homes, of_python, of_numpy, inherited = ({row[index] for row in rows} for index in range(4))
    assert len(homes) == len(of_python) == len(of_numpy) == 4
    assert inherited == {True}, "processes that a function forks are as in any program of Python's"


class _AtExit(KeyedProcessFunction):
    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def note(self, what: str) -> None:
        with self.notes.open("a") as file:
            file.write(f"{what} {os.getpid()}\n")

    def open(self, runtime_context):
        atexit.register(self.note, "exit")

    def process_element(self, value, ctx):
        yield os.getpid()

    def close(self):
        self.note("close")


def test_exit_handlers_run_once_after_the_functions_are_closed(executor: Executor, tmp_path: Path) -> None:
    homes = {*keyed(_AtExit(tmp_path / "notes"), parallelism=2).run_batch([*range(20)])}
    assert executor.keeper.ask("end", run="run", secrets=[], within=30.0) == {"ended": 2}
    wait_until(lambda: not executor.homes)
    noted = (tmp_path / "notes").read_text().splitlines()
    for home in homes:
        assert [line.split()[0] for line in noted if line.split()[1] == str(home)] == ["close", "exit"]
