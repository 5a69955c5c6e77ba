"""Chooses the operator of a keyed function: plain, or for ``async def``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypedDict

from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.async_io.api.options import OnBarrier
from pillarbox._operators.async_keyed.operator import AsyncKeyedOperator
from pillarbox._operators.async_keyed.options import AsyncKeyedOptions, is_async
from pillarbox._operators.async_keyed.two_inputs import AsyncKeyedBroadcastOperator, AsyncKeyedCoProcessOperator
from pillarbox._operators.connected.broadcast import KeyedBroadcastProcessOperator
from pillarbox._operators.connected.two_inputs import KeyedCoProcessOperator
from pillarbox._operators.dead_letters.dead_letter import OnError
from pillarbox._operators.dead_letters.guarded import guarded
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._state.descriptors import MapStateDescriptor
from pillarbox._time.duration import DurationLike


class KeyedAsyncKeywords(TypedDict, total=False):
    """The keywords of ``process`` for functions with ``async def``. None stands for the default."""

    capacity: int | None
    timeout: DurationLike | None
    ordered: bool | None
    on_barrier: OnBarrier | None


def given_keywords(**keywords: Any) -> KeyedAsyncKeywords:
    """Return the keywords that have a value."""
    passed: Any = {name: value for name, value in keywords.items() if value is not None}
    return passed  # type: ignore[no-any-return]


def refuse_keywords(keywords: KeyedAsyncKeywords, function: Any, method: str) -> None:
    """Refuse keywords for ``async def`` with another function.

    Raises:
        ProgramError: there is one.
    """
    if keywords:
        raise ProgramError(
            f"{method} got {', '.join(keywords)} with {shorten(function)}, which has no async def: these options are"
            " for keyed functions that await something"
        )


def keyed_process(
    function: Any, keying: Keying, on_error: OnError, keywords: KeyedAsyncKeywords, method: str = "process()"
) -> OperatorFactory:
    """Return the factory of ``process`` on a keyed stream.

    Args:
        method: the caller, for errors.

    Raises:
        ProgramError: an invalid option, or one for ``async def`` with a plain function.
    """
    plain, waiting = KeyedProcessOperator, AsyncKeyedOperator
    calls = ("process_element", "on_timer")
    return _chosen(function, calls, plain, waiting, {"keying": keying}, on_error, keywords, method)


def keyed_co_process(
    function: Any, keyings: tuple[Keying, Keying], on_error: OnError, keywords: KeyedAsyncKeywords, method: str
) -> OperatorFactory:
    """Return the factory of ``process`` on two connected keyed streams, as :func:`keyed_process`."""
    plain, waiting = KeyedCoProcessOperator, AsyncKeyedCoProcessOperator
    calls = ("process_element1", "process_element2", "on_timer")
    return _chosen(function, calls, plain, waiting, {"keyings": keyings}, on_error, keywords, method)


def keyed_broadcast_process(
    function: Any,
    keying: Keying,
    descriptors: Sequence[MapStateDescriptor],
    on_error: OnError,
    keywords: KeyedAsyncKeywords,
    method: str,
) -> OperatorFactory:
    """Return the factory of ``process`` on a keyed and a broadcast stream, as :func:`keyed_process`."""
    plain, waiting = KeyedBroadcastProcessOperator, AsyncKeyedBroadcastOperator
    calls = ("process_element", "process_broadcast_element", "on_timer")
    arguments = {"keying": keying, "descriptors": descriptors}
    return _chosen(function, calls, plain, waiting, arguments, on_error, keywords, method)


def _chosen(
    function: Any,
    calls: Sequence[str],
    plain: Any,
    waiting: Any,
    arguments: dict[str, Any],
    on_error: OnError,
    keywords: KeyedAsyncKeywords,
    method: str,
) -> OperatorFactory:
    if not is_async(function, *calls):
        refuse_keywords(keywords, function, method)
        make = partial(plain, function=function, **arguments)
        return guarded(OperatorFactory(make, keyed=True), on_error, method)
    options = AsyncKeyedOptions(method, on_error=on_error, **keywords)  # type: ignore[arg-type]
    make = partial(waiting, function=function, options=options, **arguments)
    return OperatorFactory(make, keyed=True, wakes_up=True, stateful=options.carries)
