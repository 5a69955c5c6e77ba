"""Windowed streams without a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pillarbox import AggregateFunction, ProcessWindowFunction, StreamExecutionEnvironment
from pillarbox._task.vertex import ChainNode
from pillarbox.testing import KeyedOneInputStreamOperatorTestHarness

__all__ = ["Contents", "Number", "NumberWithoutMerge", "key_of", "open_windows", "value_of"]


def key_of(record: tuple[Any, Any]) -> Any:
    return record[0]


def value_of(record: tuple[Any, Any]) -> Any:
    return record[1]


class Contents(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, tuple(context.window()), [value for _, value in elements]


class NumberWithoutMerge(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator


class Number(NumberWithoutMerge):
    def merge(self, accumulator, other):
        return accumulator + other


def open_windows(build: Callable[[Any], Any], **options: Any) -> KeyedOneInputStreamOperatorTestHarness:
    env = StreamExecutionEnvironment()
    step = build(env.from_collection([]).key_by(key_of))._step
    return KeyedOneInputStreamOperatorTestHarness(ChainNode(step.name, "windows", step.factory), **options)
