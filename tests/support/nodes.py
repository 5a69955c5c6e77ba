"""Nodes of operator chains, for tests of operators and tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox._operators.frame.keyed_operator import KeyedOperator
from pillarbox._operators.frame.operator import OperatorFactory, StreamOperator
from pillarbox._task.vertex import ChainNode
from pillarbox.testing import OneInputStreamOperatorTestHarness, StreamRecord


def node(kind: type[StreamOperator], name: str, *args: Any, **kwargs: Any) -> ChainNode:
    if kind is AsyncWaitOperator:
        factory = AsyncWaitOperator.factory(*args, **kwargs)
    else:
        keyed = issubclass(kind, KeyedOperator) or "keying" in kwargs
        factory = OperatorFactory(lambda context: kind(context, *args, **kwargs), keyed=keyed)
    return ChainNode(name, name, factory)


def run(
    operator: ChainNode, values: Iterable[Any], timestamps: Iterable[int | None] | None = None
) -> list[StreamRecord]:
    with OneInputStreamOperatorTestHarness(operator) as harness:
        harness.push_all(values, timestamps)
        return harness.get_records()
