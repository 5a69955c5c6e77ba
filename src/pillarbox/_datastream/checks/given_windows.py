"""Checks the assigner, trigger and window function that a user passes."""

from __future__ import annotations

import inspect
from typing import Any

from pillarbox._datastream.checks.code_search import event_time_use
from pillarbox._datastream.checks.given_functions import check_parameters
from pillarbox._errors import ProgramError, shorten
from pillarbox._graph.transformations import EventTimeUse
from pillarbox._operators.functions.basic import check_interface_plain
from pillarbox._operators.windowing.api.assigner import (
    EventTimeAssigner,
    MergingWindowAssigner,
    WindowAssigner,
    check_assigner,
)
from pillarbox._operators.windowing.api.continuous_triggers import ContinuousEventTimeTrigger
from pillarbox._operators.windowing.api.count_windows import GlobalWindows
from pillarbox._operators.windowing.api.functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from pillarbox._operators.windowing.api.triggers import Trigger, asked_trigger

_FUNCTIONS = (WindowFunction, AllWindowFunction, ProcessWindowFunction, ProcessAllWindowFunction)


def default_trigger(assigner: WindowAssigner, env: Any) -> Trigger:
    if not isinstance(assigner, WindowAssigner):
        hint = "one"
        if isinstance(assigner, type):
            constructor = next((f".{name}" for name in ("of", "with_gap", "create") if hasattr(assigner, name)), "")
            hint = f"an instance: {assigner.__name__}{constructor}(...)"
        raise ProgramError(
            "a window needs a window assigner, such as TumblingEventTimeWindows.of('1 minute'), not"
            f" {shorten(assigner)}: pass {hint}"
        )
    check_assigner(assigner)
    merges = isinstance(assigner, MergingWindowAssigner)
    check_interface_plain(assigner, MergingWindowAssigner if merges else WindowAssigner, asked_by="window()")
    make: Any = assigner.get_default_trigger
    trigger = make(env) if inspect.signature(make).parameters else make()
    if not isinstance(trigger, Trigger):
        raise ProgramError(f"{assigner!r}: get_default_trigger() returned {shorten(trigger)}: return a Trigger")
    check_trigger(trigger, f"{assigner!r}: get_default_trigger()")
    return trigger


def check_trigger(trigger: Trigger, where: str) -> None:
    for checked in (trigger, asked_trigger(trigger)):
        check_parameters(checked, Trigger, where)


def check_merging(assigner: WindowAssigner, trigger: Trigger) -> None:
    cannot = not trigger.can_merge() or type(asked_trigger(trigger)).on_merge is Trigger.on_merge
    if isinstance(assigner, MergingWindowAssigner) and cannot:
        raise ProgramError(
            f"{assigner!r} merges windows, but {trigger!r} cannot merge: define can_merge() and on_merge()"
        )


def check_fires(assigner: WindowAssigner, *, has_trigger: bool) -> None:
    if isinstance(assigner, GlobalWindows) and not assigner.fires_at_end and not has_trigger:
        raise ProgramError(
            f"{assigner!r} never end, so they would emit nothing: set a trigger(...), such as"
            " PurgingTrigger.of(CountTrigger.of(100)), or use GlobalWindows.create_with_end_of_stream_trigger()"
        )


def event_time_of(assigner: WindowAssigner, trigger: Trigger) -> EventTimeUse:
    if isinstance(assigner, EventTimeAssigner):
        return EventTimeUse.TIMESTAMPS
    asked = asked_trigger(trigger)
    if assigner.is_event_time() or isinstance(asked, ContinuousEventTimeTrigger):
        return EventTimeUse.TIMERS
    return event_time_use(asked)


def check_window_function(func: Any, expected: tuple[type, ...], asked_by: str, stream: str) -> None:
    for kind in expected:
        if isinstance(func, kind):
            check_parameters(func, kind, asked_by)
            return
    if isinstance(func, type):
        raise ProgramError(f"{asked_by} got the class {func.__name__}: pass an instance: {func.__name__}()")
    kinds = [kind.__name__ for kind in _FUNCTIONS if isinstance(func, kind)]
    description = f"{type(func).__name__}, which is {_a(kinds[0])}" if kinds else shorten(func)
    raise ProgramError(f"{asked_by} of {stream} takes {_a(expected[0].__name__)}, not {description}")


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
