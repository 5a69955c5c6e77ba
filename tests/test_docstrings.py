"""Examples in docstrings are right. Examples with ``spark`` run in a session, in one test."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import (
    AllWindowedStream,
    AsyncDataStream,
    ConnectedStreams,
    DataStream,
    KeyedStream,
    StreamExecutionEnvironment,
    WindowedStream,
)
from pillarbox._datastream.streams.stream import Stream
from pillarbox.testing import harness_for, row

SOURCE = Path(pillarbox.__file__).parent
STREAMS = (
    AllWindowedStream,
    AsyncDataStream,
    ConnectedStreams,
    DataStream,
    KeyedStream,
    Stream,
    StreamExecutionEnvironment,
    WindowedStream,
)


def names(**more: Any) -> dict[str, Any]:
    public = {name: getattr(pillarbox, name) for name in pillarbox.__all__}
    return {
        **public,
        "__name__": "__main__",  # so functions and classes are pickled like a program's
        "asyncio": asyncio,
        "env": StreamExecutionEnvironment(),
        "harness_for": harness_for,
        "row": row,
        **more,
    }


def examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for path in sorted(SOURCE.rglob("*.py")):
        if ">>>" in path.read_text():
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
            for result in finder.find(module, globs={}):
                if result.examples:
                    yield result


def needs_spark(case: doctest.DocTest) -> bool:
    return any("spark" in example.source for example in case.examples)


def check(case: doctest.DocTest, **more: Any) -> None:
    output: list[str] = []
    case.globs = names(**more)
    results = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(case, out=output.append)
    assert results.failed == 0, "".join(output)


@pytest.mark.parametrize("case", [case for case in examples() if not needs_spark(case)], ids=lambda case: case.name)
def test_examples_do_what_they_say(case, monkeypatch):
    monkeypatch.setattr("pillarbox.testing._simulation.simulate._SHRINKING_RUNS", 200)  # enough for its example
    check(case)


def test_examples_on_spark_do_what_they_say(spark: SparkSession):
    on_spark = [example for example in examples() if needs_spark(example)]
    assert on_spark
    for result in on_spark:
        check(result, spark=spark)


def test_every_public_name_has_a_docstring():
    without = [name for name in pillarbox.__all__ if not inspect.getdoc(getattr(pillarbox, name))]
    assert without == []


def test_every_method_of_a_public_class_has_a_docstring():
    without = [
        f"{name}.{method}"
        for name in pillarbox.__all__
        if inspect.isclass(kind := getattr(pillarbox, name)) and not issubclass(kind, tuple)
        for method, member in inspect.getmembers(kind, inspect.isroutine)
        if not method.startswith("_") and not inspect.getdoc(member)
    ]
    assert without == []


def test_every_method_of_streams_has_an_example():
    without = [
        f"{kind.__name__}.{name}"
        for kind in STREAMS
        for name, member in vars(kind).items()
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, staticmethod))
        and ">>>" not in (member.__doc__ or "")
    ]
    assert without == []


def test_all_that_windows_are_made_of_has_an_example():
    members: dict[str, Any] = {}
    for name in pillarbox.__all__:
        kind = getattr(pillarbox, name)
        if not getattr(kind, "__module__", "").startswith("pillarbox._operators.windowing."):
            continue
        if inspect.isabstract(kind) and name not in ("KeyedStateStore", "MergeCallback"):
            members[name] = kind
        factories = {key: member for key, member in vars(kind).items() if isinstance(member, staticmethod)}
        members |= {f"{name}.{key}": member for key, member in factories.items() if not key.startswith("_")}
    assert len(members) > 25
    assert [name for name, member in members.items() if ">>>" not in (member.__doc__ or "")] == []
