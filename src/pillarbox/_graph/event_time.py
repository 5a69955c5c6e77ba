"""Event time of a program, before it runs: records that have no timestamps, and streams without watermarks."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakSet

from pillarbox._errors import ProgramError
from pillarbox._graph.transformations import (
    DataFrameSource,
    EventTimeUse,
    OperatorTransformation,
    SourceTransformation,
    Transformation,
    UnionTransformation,
)
from pillarbox._time.watermark_strategy import WatermarkStrategy

_log = logging.getLogger("pillarbox")

# A program may be compiled several times, as for its plan: the user is warned once.
_warned: WeakSet[Transformation] = WeakSet()


@dataclass(frozen=True)
class _Known:
    """What is known of event time after a step.

    Attributes:
        unstamped: the sources whose records come without timestamps; empty if records have some, or may have.
        silent: the steps in which event time stands still until the input ends: sources, and strategies that emit no
            watermarks.
        advances: whether another part of the stream has watermarks.
    """

    unstamped: frozenset[str] = frozenset()
    silent: frozenset[Transformation] = frozenset()
    advances: bool = False


def check_event_time(steps: Iterable[Transformation], *, batch: bool) -> None:
    """Refuse operators whose records have no timestamps, and warn of those whose event time stands still.

    Args:
        steps: all steps of the program.
        batch: whether it runs in batch mode, where event time ends with each key.

    Raises:
        ProgramError: an operator needs timestamps, and its records have none.
    """
    known: dict[Transformation, _Known] = {}
    # A step is built after its inputs, so its number is higher.
    for step in sorted(steps, key=lambda each: each.number):
        before = [known[upstream] for upstream in step.inputs]
        if isinstance(step, OperatorTransformation):
            _check_timestamps(step, before)
            if step.event_time is not EventTimeUse.NONE and not batch:
                _warn_if_silent(step, before)
        known[step] = _after(step, before)


def _after(step: Transformation, before: list[_Known]) -> _Known:
    if isinstance(step, SourceTransformation):
        return _Known(frozenset({step.name}), frozenset({step}))
    unstamped = frozenset[str]().union(*(each.unstamped for each in before))
    if not isinstance(step, UnionTransformation) and not all(each.unstamped for each in before):
        unstamped = frozenset()  # which input a record comes from is not known
    silent = frozenset[Transformation]().union(*(each.silent for each in before))
    advances = any(each.advances for each in before)
    if isinstance(step, OperatorTransformation):
        strategy = step.strategy
        if step.may_stamp or (strategy is not None and strategy.timestamp_assigner is not None):
            unstamped = frozenset()
        if strategy is not None:
            advances = strategy.emits_watermarks
            stands_still = not advances and strategy.idle_timeout is None
            silent = frozenset({step}) if stands_still else frozenset()
    return _Known(unstamped, silent, advances)


def _check_timestamps(step: OperatorTransformation, before: list[_Known]) -> None:
    for each in before:
        if not each.unstamped or not _needs_timestamps(step):
            continue
        sources = " and ".join(map(repr, sorted(each.unstamped)))
        if step.strategy is not None:
            raise ProgramError(
                f"operator {step.name!r}: the records of {sources} have no timestamps, so there are no watermarks"
                " either: give the strategy with_timestamp_assigner(...) a column name or a function"
            )
        instead = ", or use windows of processing time" if step.kind.startswith("window.") else ""
        raise ProgramError(
            f"operator {step.name!r} goes by event time, and the records of {sources} have no timestamps: put"
            f" assign_timestamps_and_watermarks(...) before key_by(...) or the window{instead}"
        )


def _needs_timestamps(step: OperatorTransformation) -> bool:
    strategy: WatermarkStrategy | None = step.strategy
    if strategy is not None:
        return strategy.emits_watermarks and strategy.timestamp_assigner is None
    return step.event_time is EventTimeUse.TIMESTAMPS


def _warn_if_silent(step: OperatorTransformation, before: list[_Known]) -> None:
    """Warn of an operator whose event time stands still, although something advances it, or although it never ends."""
    silent = {each for known in before for each in known.silent}
    endless = any(isinstance(each, DataFrameSource) and each.dataframe.isStreaming for each in silent)
    if not silent or step in _warned or not (endless or any(known.advances for known in before)):
        return
    _warned.add(step)
    names = " and ".join(repr(each.name) for each in sorted(silent, key=lambda each: each.number))
    _log.warning(
        "operator %r: its event time is the minimum of its streams, and %s has no watermarks: timers and windows of"
        " event time fire only when all input has ended; assign it a strategy with watermarks, or, if its records have"
        " no time, WatermarkStrategy.no_watermarks().with_idleness('10 seconds')",
        step.name,
        names,
    )
