"""Keyed functions that wait until a test lets them continue."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any

from pillarbox import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ValueStateDescriptor,
)
from pillarbox._operators.async_keyed.operator import AsyncKeyedOperator
from pillarbox.testing import KeyedOneInputStreamOperatorTestHarness as Harness
from pillarbox.testing import harness_for

BAD: OutputTag[Any] = OutputTag("bad")


class Gate:
    """Futures by name. ``await gate(name)`` returns when the test opens the gate for ``name``."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self._futures: dict[Any, asyncio.Future[Any]] = {}

    async def __call__(self, name: Hashable) -> Any:
        self.waiting.append(name)
        return await self._futures.setdefault(name, asyncio.get_running_loop().create_future())

    def open(self, harness: Harness, *names: Hashable) -> None:
        for name in names:
            self.release(name)
        settle(harness)

    def release(self, name: Hashable) -> None:
        self._futures.pop(name).set_result(None)

    def reset(self) -> None:
        self.waiting.clear()
        self._futures.clear()


class Stateful(KeyedProcessFunction[Any, Any, Any]):
    def open(self, runtime_context: Any) -> Any:
        self.value = runtime_context.get_state(ValueStateDescriptor("value"))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list"))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        raise NotImplementedError


def opened(function: KeyedProcessFunction[Any, Any, Any], **options: Any) -> Harness:
    harness: Harness = harness_for(function, lambda record: record[0], **options)
    return harness


def operator_of(harness: Harness) -> AsyncKeyedOperator:
    assert isinstance(harness.operator, AsyncKeyedOperator)
    return harness.operator


def settle(harness: Harness) -> None:
    harness.advance_processing_time(0)


def end(harness: Harness) -> None:
    operator_of(harness).drain()
    settle(harness)
