"""Finds missing timestamps and watermarks when a program is compiled."""

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

# Warn once, even if a program is compiled several times.
_warned: WeakSet[Transformation] = WeakSet()


@dataclass(frozen=True)
class _TimeState:
    """Event time after a step.

    Attributes:
        unstamped: the upstream sources if no record can have a timestamp, otherwise empty.
        silent: upstream sources and strategies without watermarks, which stop event time until the input ends.
    """

    unstamped: frozenset[str] = frozenset()
    silent: frozenset[Transformation] = frozenset()
    advances: bool = False


def check_event_time(steps: Iterable[Transformation], *, batch: bool) -> None:
    """Raise if an operator's records lack timestamps. Warn if event time cannot advance."""
    states: dict[Transformation, _TimeState] = {}
    for step in sorted(steps, key=lambda step: step.number):
        before = [states[upstream] for upstream in step.inputs]
        if isinstance(step, OperatorTransformation):
            _check_timestamps(step, before)
            if step.event_time is not EventTimeUse.NONE and not batch:
                _warn_if_silent(step, before)
        states[step] = _after(step, before)


def _after(step: Transformation, before: list[_TimeState]) -> _TimeState:
    if isinstance(step, SourceTransformation):
        return _TimeState(frozenset({step.name}), frozenset({step}))
    unstamped = frozenset[str]().union(*(state.unstamped for state in before))
    if not isinstance(step, UnionTransformation) and not all(state.unstamped for state in before):
        unstamped = frozenset()  # from either input
    silent = frozenset[Transformation]().union(*(state.silent for state in before))
    advances = any(state.advances for state in before)
    if isinstance(step, OperatorTransformation):
        strategy = step.strategy
        if step.may_stamp or (strategy is not None and strategy.timestamp_assigner is not None):
            unstamped = frozenset()
        if strategy is not None:
            advances = strategy.emits_watermarks
            stands_still = not advances and strategy.idle_timeout is None
            silent = frozenset({step}) if stands_still else frozenset()
    return _TimeState(unstamped, silent, advances)


def _check_timestamps(step: OperatorTransformation, before: list[_TimeState]) -> None:
    for state in before:
        if not state.unstamped or not _needs_timestamps(step):
            continue
        sources = " and ".join(map(repr, sorted(state.unstamped)))
        if step.strategy is not None:
            raise ProgramError(
                f"operator {step.name!r}: the records of {sources} have no timestamps, so there are no watermarks:"
                " call with_timestamp_assigner(...) on the strategy, with a column name or a function"
            )
        instead = ", or use processing-time windows" if step.kind.startswith("window.") else ""
        raise ProgramError(
            f"operator {step.name!r} uses event time, but the records of {sources} have no timestamps: put"
            f" assign_timestamps_and_watermarks(...) before key_by(...) or the window{instead}"
        )


def _needs_timestamps(step: OperatorTransformation) -> bool:
    strategy: WatermarkStrategy | None = step.strategy
    if strategy is not None:
        return strategy.emits_watermarks and strategy.timestamp_assigner is None
    return step.event_time is EventTimeUse.TIMESTAMPS


def _warn_if_silent(step: OperatorTransformation, before: list[_TimeState]) -> None:
    silent = {source for state in before for source in state.silent}
    endless = any(isinstance(source, DataFrameSource) and source.dataframe.isStreaming for source in silent)
    if not silent or step in _warned or not (endless or any(state.advances for state in before)):
        return
    _warned.add(step)
    names = " and ".join(repr(source.name) for source in sorted(silent, key=lambda source: source.number))
    _log.warning(
        "operator %r: its event time is the minimum of its input streams, but %s has no watermarks, so"
        " event-time timers and windows fire only at the end of all input. Assign that stream a strategy with"
        " watermarks, or, if its records have no timestamps,"
        " WatermarkStrategy.no_watermarks().with_idleness('10 seconds')",
        step.name,
        names,
    )


def parts_with_timeouts(
    assigners: set[OperatorTransformation], others: set[OperatorTransformation]
) -> list[OperatorTransformation]:
    """Return the watermark assigners that differ between two parts of a source, or [] if no timeout applies.

    The receiver of an edge detects that no records arrive, so each such part needs its own edge.
    """
    if not assigners or not others:
        return []
    differing = sorted(assigners ^ others, key=lambda step: step.number)
    strategies = [step.strategy for step in differing if step.strategy is not None]
    is_idle = any(strategy.idle_timeout is not None for strategy in strategies)
    advances = bool(strategies) and all(strategy.progress_timeout is not None for strategy in strategies)
    return differing if is_idle or advances else []
