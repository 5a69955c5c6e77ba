"""Chooses a keyed function's operator, depending on whether the function has ``async def``."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.async_keyed.operator import AsyncKeyedOperator
from pillarbox._operators.async_keyed.options import AsyncKeyedOptions, KeyedAsyncKeywords, is_async
from pillarbox._operators.async_keyed.two_inputs import AsyncKeyedBroadcastOperator, AsyncKeyedCoProcessOperator
from pillarbox._operators.connected.broadcast import KeyedBroadcastProcessOperator
from pillarbox._operators.connected.two_inputs import KeyedCoProcessOperator
from pillarbox._operators.dead_letters.dead_letter import OnError
from pillarbox._operators.dead_letters.guarded import guarded
from pillarbox._operators.frame.captured import uncaptured
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.keyed.process import KeyedProcessOperator


def refuse_keywords(keywords: KeyedAsyncKeywords, function: Any, method: str) -> None:
    _check_names(keywords, method)
    if keywords:
        raise ProgramError(
            f"{method} got {', '.join(keywords)} with {shorten(function)}, which has no async def: these options are"
            " only for keyed functions with an async def"
        )


def _check_names(keywords: KeyedAsyncKeywords, method: str) -> None:
    names = KeyedAsyncKeywords.__annotations__
    for name in keywords:
        if name not in names:
            raise TypeError(f"{method} got an unexpected keyword argument {name!r}; its options are {', '.join(names)}")


class KeyedOperatorFactory(NamedTuple):
    """A kind of keyed function: its operators, without and with ``async def``, and its methods."""

    plain: Any
    waiting: Any
    calls: tuple[str, ...] = ("process_element", "on_timer")


ONE_INPUT = KeyedOperatorFactory(KeyedProcessOperator, AsyncKeyedOperator)
TWO_INPUTS = KeyedOperatorFactory(
    KeyedCoProcessOperator, AsyncKeyedCoProcessOperator, ("process_element1", "process_element2", "on_timer")
)
BROADCAST = KeyedOperatorFactory(
    KeyedBroadcastProcessOperator, AsyncKeyedBroadcastOperator, (*ONE_INPUT.calls, "process_broadcast_element")
)


def keyed_process(
    kind: KeyedOperatorFactory,
    function: Any,
    on_error: OnError,
    keywords: KeyedAsyncKeywords,
    method: str,
    **arguments: Any,
) -> OperatorFactory:
    if not is_async(function, *kind.calls):
        refuse_keywords(keywords, function, method)
        make = partial(kind.plain, function=function, **arguments)
        return guarded(OperatorFactory(make, keyed=True), on_error, method)
    _check_names(keywords, method)
    options = AsyncKeyedOptions(method, on_error=on_error, **keywords)
    make = partial(kind.waiting, function=function, options=options, **arguments)
    budgets = tuple(budget.limits for budget in options.budgets)
    return OperatorFactory(make, keyed=True, wakes_up=True, stateful=options.carries, budgets=budgets)


def async_options(factory: OperatorFactory) -> AsyncKeyedOptions | None:
    options = getattr(uncaptured(factory.make), "keywords", {}).get("options")
    return options if isinstance(options, AsyncKeyedOptions) else None
