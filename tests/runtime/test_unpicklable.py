"""Functions that cannot be pickled. The error names the variable, and its advice works."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox import KeyedProcessFunction, ProgramError, StreamExecutionEnvironment
from pillarbox._operators.frame.captured import load
from pillarbox._runtime.shipping import main_classes


class Session:
    def __reduce__(self) -> Any:
        raise RuntimeError("[CONTEXT_ONLY_VALID_ON_DRIVER] SparkContext can only be used on the driver")


Session.__module__, Session.__name__ = "pyspark.sql.session", "SparkSession"


class ConnectSession:
    def __reduce__(self) -> Any:
        return _active_session, ()


ConnectSession.__module__, ConnectSession.__name__ = "pyspark.sql.connect.session", "SparkSession"


def _active_session() -> Any:
    raise RuntimeError("[NO_ACTIVE_SESSION] No active Spark session found")


class Client:
    def __init__(self) -> None:
        self.ready = threading.Lock()

    def ask(self, record: Any) -> Any:
        return record


def of_a_variable(held: Any) -> Callable[[Any], Any]:
    session = held
    return lambda record: session.table("t")


def of_a_helper(held: Any) -> Callable[[Any], Any]:
    inner = of_a_variable(held)
    return lambda record: [inner(record)]


def of_a_list(held: Any) -> Callable[[Any], Any]:
    tables = [1, {"a": held}]
    return lambda record: tables[1]


def of_a_partial(held: Any) -> Callable[[Any], Any]:
    def look_up(table: Any, record: Any) -> Any:
        return table

    settings = {"session": held}
    return functools.partial(look_up, lambda: settings)


def of_an_attribute(held: Any) -> Callable[[Any], Any]:
    class Look:
        def __init__(self) -> None:
            self.session = held

        def __call__(self, record: Any) -> Any:
            return record

    return Look()


def run(function: Callable[[Any], Any]) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1]).map(function).name("op").execute_and_collect()


@pytest.mark.parametrize(
    ("function_of", "name"),
    [
        (of_a_variable, "session"),
        (of_a_helper, "session"),
        (of_a_list, r"tables\['a'\]"),
        (of_a_partial, r"settings\['session'\]"),
        (of_an_attribute, r"self\.session"),
    ],
)
@pytest.mark.parametrize("session", [Session, ConnectSession])
def test_a_session_is_named(
    function_of: Callable[[Any], Callable[[Any], Any]], name: str, session: Callable[[], Any]
) -> None:
    with pytest.raises(
        ProgramError, match=rf"operator 'op' cannot be .*: it refers to {name}, a SparkSession, .*collect\(\)"
    ):
        run(function_of(session()))


def test_a_class_of_main_with_a_session_is_not_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker could load neither this class, nor any function that is pickled together with it."""
    session: Any = ConnectSession()

    class Report:
        def rows(self) -> Any:
            return session.table("t")

    Report.__module__, Report.__qualname__ = "__main__", "Report"
    monkeypatch.setattr(sys.modules["__main__"], "Report", Report, raising=False)
    assert "Report" not in load(main_classes().payload)


def test_a_connection_is_named_with_the_attribute_that_cannot_travel() -> None:
    client = Client()
    for function in (client.ask, lambda record: client):
        with pytest.raises(
            ProgramError, match=r"cannot pickle.*refers to (self|client)\.ready, a lock: create it in open\(\)"
        ):
            run(function)


def test_a_keyed_function_and_its_class_attributes() -> None:
    session: Any = Session()

    class Look(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield session.table("t")

    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(ProgramError, match="it refers to session, a SparkSession"):
        env.from_collection([1]).key_by(lambda value: value).process(Look()).execute_and_collect()


def test_a_key_function() -> None:
    session = Session()
    env = StreamExecutionEnvironment.get_execution_environment()
    keyed = env.from_collection([1]).key_by(lambda value: session)
    with pytest.raises(ProgramError, match=r"key function .*it refers to session, a SparkSession"):
        keyed.map(lambda value: value).execute_and_collect()


def test_the_advice_works() -> None:
    rows = [("a", 1)]  # as collect() returns them
    env = StreamExecutionEnvironment.get_execution_environment()
    assert list(env.from_collection(["a"]).map(lambda key: dict(rows)[key]).execute_and_collect()) == [1]
