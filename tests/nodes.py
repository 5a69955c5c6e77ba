"""Nodes of chains, for tests of operators and tasks."""

from __future__ import annotations

from typing import Any

from pillarbox.operators.async_io.operator import AsyncWaitOperator
from pillarbox.operators.keyed import KeyedOperator
from pillarbox.operators.operator import OperatorFactory, StreamOperator
from pillarbox.task import ChainNode


def node(kind: type[StreamOperator], name: str, *args: Any, **kwargs: Any) -> ChainNode:
    """The node of an operator ``kind(context, *args, **kwargs)``, whose uid is its name."""
    if kind is AsyncWaitOperator:
        factory = AsyncWaitOperator.factory(*args, **kwargs)
    else:
        keyed = issubclass(kind, KeyedOperator) or "keying" in kwargs
        factory = OperatorFactory(lambda context: kind(context, *args, **kwargs), keyed=keyed)
    return ChainNode(name, name, factory)
