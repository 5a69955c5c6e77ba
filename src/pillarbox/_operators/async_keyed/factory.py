"""Chooses the operator of a keyed function: plain, or for ``async def``."""

from __future__ import annotations

from functools import partial
from typing import Any, TypedDict

from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.async_io.api.options import OnBarrier
from pillarbox._operators.async_keyed.operator import AsyncKeyedOperator
from pillarbox._operators.async_keyed.options import AsyncKeyedOptions, is_async
from pillarbox._operators.dead_letters.dead_letter import OnError
from pillarbox._operators.dead_letters.guarded import guarded
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._time.duration import DurationLike


class AsyncKeywords(TypedDict, total=False):
    """The keywords of ``process`` for functions with ``async def``. None stands for the default."""

    capacity: int | None
    timeout: DurationLike | None
    ordered: bool | None
    on_barrier: OnBarrier | None


def process_factory(
    function: Any, keying: Keying, on_error: OnError, keywords: AsyncKeywords, method: str = "process()"
) -> OperatorFactory:
    """Return the factory of ``process`` on a keyed stream.

    Args:
        method: the caller, for errors.

    Raises:
        ProgramError: an invalid option, or one for ``async def`` with a plain function.
    """
    options: Any = {name: value for name, value in keywords.items() if value is not None}
    if not is_async(function, "process_element", "on_timer"):
        if options:
            raise ProgramError(
                f"{method} got {', '.join(options)} with {shorten(function)}, which has no async def: these options are"
                " for functions that await something"
            )
        make = partial(KeyedProcessOperator, function=function, keying=keying)
        return guarded(OperatorFactory(make, keyed=True), on_error, method)
    async_options = AsyncKeyedOptions(method, on_error=on_error, **options)
    make_async = partial(AsyncKeyedOperator, function=function, keying=keying, options=async_options)
    return OperatorFactory(make_async, keyed=True, wakes_up=True, stateful=async_options.carries)
