"""The options of keyed functions with ``async def``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

from pillarbox._operators.async_io.api.options import AsyncOperatorOptions, OnBarrier
from pillarbox._operators.budgets.budget import Budget
from pillarbox._operators.calls.replayed import ReplayedCalls
from pillarbox._operators.dead_letters.dead_letter import OnError, check_on_error
from pillarbox._operators.functions.basic import Function
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._time.duration import DurationLike, positive_millis

# Maximum number of a subtask's elements that wait in memory for their key or for a call slot.
WAITING = 1_000


@dataclass(frozen=True)
class AsyncKeyedOptions(AsyncOperatorOptions):
    """Options of a keyed function with ``async def``.

    Attributes:
        timeout: the maximum total time of an element (record or timer), or None.
        journal: the folder for recorded service calls, or None.
    """

    method: str
    capacity: int = 100
    timeout: DurationLike | None = None
    ordered: bool = False
    on_error: OnError = "fail"
    on_barrier: OnBarrier = "drain"
    budgets: Sequence[Budget] = ()
    journal: str | None = None
    replayed: ReplayedCalls | None = None

    def __post_init__(self) -> None:
        self.check()
        check_on_error(self.on_error, self.method)
        if self.journal is not None and not (isinstance(self.journal, str) and self.journal):
            self.refuse("journal", "a folder, such as 's3://bucket/prefix'")
        _ = self.timeout_seconds  # raises if it is invalid

    @property
    def caller(self) -> str:
        return self.method

    @property
    def most_elements(self) -> int:
        return self.capacity + WAITING

    @property
    def undoes(self) -> bool:
        return self.carries or isinstance(self.on_error, OutputTag)

    @property
    def keeps_records(self) -> bool:
        return self.carries or self.journal is not None

    @property
    def timeout_seconds(self) -> float | None:
        return None if self.timeout is None else positive_millis(self.timeout, f"{self.method}: timeout=") / 1000


def is_async(function: Any, *methods: str) -> bool:
    if isinstance(function, Function):
        return any(_is_async(getattr(function, method, None)) for method in (*methods, "open", "close"))
    return _is_async(function)


def _is_async(call: Any) -> bool:
    while isinstance(call, partial):
        call = call.func
    return any(
        inspect.iscoroutinefunction(part) or inspect.isasyncgenfunction(part)
        for part in (call, getattr(type(call), "__call__", None))  # noqa: B004
    )


class KeyedAsyncKeywords(TypedDict, total=False):
    """The options of ``process`` for functions with ``async def``, for type checkers."""

    capacity: int
    timeout: DurationLike | None
    ordered: bool
    on_barrier: OnBarrier
    budgets: Sequence[Budget]
    journal: str | None
