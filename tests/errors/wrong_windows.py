# mypy: ignore-errors
# As in wrong_uses.py, which has the form of the table.
"""Wrong uses of windows: program, time of the error, and expected words."""

from __future__ import annotations

from typing import Any, NamedTuple

from pillarbox import (
    AggregateFunction,
    AllWindowFunction,
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    CountWindow,
    CumulativeEventTimeWindows,
    DeltaEvictor,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    GlobalWindows,
    MergingWindowAssigner,
    NeverTrigger,
    OperatorError,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ProgramError,
    PurgingTrigger,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TimeEvictor,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
    WindowAssigner,
    WindowFunction,
)
from tests.errors.wrong_uses import RECORD, ZERO, Build, Run, exploding, rows, untimed

BY_ID = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: value.id)
TEN = TumblingEventTimeWindows.of(10)
WINDOW = "TimeWindow(start=0, end=10)"
FIRST = "Row(id=0, key='k')"


def keyed(stream: Any) -> Any:
    return stream.assign_timestamps_and_watermarks(BY_ID).key_by("key")


def windows(env: StreamExecutionEnvironment, assigner: Any = TEN) -> Any:
    return keyed(rows(env)).window(assigner)


class Applies(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Any) -> Any:
        return [len(inputs)]


class AppliesAll(AllWindowFunction):
    def apply(self, window: Any, inputs: Any) -> Any:
        return [len(inputs)]


class Processes(ProcessWindowFunction):
    def __init__(self, does: Any = lambda context, elements: [len(elements)]) -> None:
        self.does = does

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return self.does(context, elements)


class ProcessesAll(ProcessAllWindowFunction):
    def process(self, context: Any, elements: Any) -> Any:
        return [len(elements)]


class Waits(Processes):
    async def process(self, key: Any, context: Any, elements: Any) -> Any:
        return []


class ClearsLater(EventTimeTrigger):
    async def clear(self, window: Any, ctx: Any) -> None: ...


class ClearsBadly(Processes):
    def clear(self, context: Any) -> None:
        raise LookupError("nothing there")


class Merges(MergingWindowAssigner):
    def assign_windows(self, element: Any, timestamp: int | None, context: Any) -> Any:
        yield TimeWindow(timestamp, timestamp + 5)

    def get_default_trigger(self) -> Any:
        return ClearsLater()

    def is_event_time(self) -> bool:
        return True

    def merge_windows(self, windows: Any, callback: Any) -> None: ...


class MergesLater(Merges):
    async def merge_windows(self, windows: Any, callback: Any) -> None: ...


class EvictsLater(CountEvictor):
    async def evict_after(self, elements: Any, size: int, window: Any, context: Any) -> None: ...


async def differing(value1: Any, value2: Any) -> float:
    return 0.0


async def gap(record: Any) -> int:
    return 5


class Counts(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


class CountsLater(Counts):
    async def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + 1


class Forgets(Counts):
    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator += 1


class ForgetsLater(Counts):
    def add(self, value: Any, accumulator: Any) -> Any:
        return None if value.id == 3 else accumulator + 1

    def merge(self, accumulator: Any, other: Any) -> Any:
        return accumulator + other


class Own(WindowAssigner):
    def __init__(self, does: Any, trigger: Any = None, kind: Any = TimeWindow) -> None:
        self.does = does
        self.trigger = trigger or EventTimeTrigger.create()
        self.window_type = kind

    def assign_windows(self, element: Any, timestamp: Any, context: Any) -> Any:
        return self.does(element)

    def get_default_trigger(self) -> Any:
        return self.trigger

    def is_event_time(self) -> bool:
        return True

    def __repr__(self) -> str:
        return "Own()"


class OwnMerging(Own, MergingWindowAssigner):
    def merge_windows(self, windows: Any, callback: Any) -> None:
        raise AssertionError("never asked")


class Bare(NamedTuple):
    number: int


class Fires(Trigger):
    def __init__(self, does: Any, at_end: Any = None) -> None:
        self.does = does
        self.at_end = at_end

    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> Any:
        ctx.register_event_time_timer(window.max_timestamp())
        return self.does(element, ctx)

    def on_event_time(self, time: Any, window: Any, ctx: Any) -> Any:
        return self.at_end(time)

    def clear(self, window: Any, ctx: Any) -> None:
        pass


class SaysSo(Fires):
    def can_merge(self) -> bool:
        return True


class Evicts(Evictor):
    def __init__(self, before: Any = None, after: Any = None) -> None:
        self.before = before
        self.after = after

    def evict_before(self, elements: Any, window: Any, ctx: Any) -> Any:
        return self.before and self.before(elements)

    def evict_after(self, elements: Any, window: Any, ctx: Any) -> Any:
        return self.after and self.after(elements)


def at_three(wrong: Any, right: Any) -> Any:
    return lambda value, *more: wrong if value.id == 3 else right


def _no_tag(env: StreamExecutionEnvironment) -> Any:
    return windows(env).process(Processes()).get_side_output("late")


# fmt: off
NO_DURATION = (-1, "-1 minute", 0, "soon", None, 1.5, True)

WINDOW_BUILDS = [
    # streams that have no such method
    Build("window without key", lambda env: rows(env).window(TEN), ("window() divides a stream by key: put key_by(...) before it, or use window_all(...)",)),
    Build("count_window without key", lambda env: rows(env).count_window(3), ("count_window() divides a stream by key: put key_by(...)", "count_window_all(...)")),
    Build("reduce without key", lambda env: rows(env).reduce(max), ("reduce() needs a keyed stream: put key_by(...) before it, or window_all(...)",)),
    Build("deduplicate without key", lambda env: rows(env).deduplicate("1 hour"), ("deduplicate() needs a keyed stream: put key_by(...) before it",)),
    *(Build(f"{method} without key", lambda env, method=method: getattr(rows(env), method)(None), (f"{method}() is a method of windows: put key_by(...).window(...), or window_all(...), before it",)) for method in ("apply", "aggregate", "trigger", "allowed_lateness")),
    *(Build(f"{method} without window", lambda env, method=method: getattr(keyed(rows(env)), method)(None), (f"{method}() is a method of windows: put window(...) before it",)) for method in ("apply", "aggregate", "evictor")),
    *(Build(f"{method} of windows", lambda env, method=method: getattr(windows(env), method)(), (f"windows have no {method}(), because they have no results yet: put reduce(...), aggregate(...), apply(...)",)) for method in ("map", "execute_and_collect", "to_dataframe", "uid", "get_side_output")),
    Build("map of windows of all", lambda env: rows(env).window_all(TEN).map(str), ("windows have no map()",)),
    # assigners
    Build("windows by '1 minute'", lambda env: windows(env, "1 minute"), ("TumblingEventTimeWindows.of('1 minute'), not '1 minute'",)),
    Build("windows by a class", lambda env: windows(env, GlobalWindows), ("pass an instance: GlobalWindows.create(...)",)),
    Build("windows by a class of sessions", lambda env: windows(env, EventTimeSessionWindows), ("pass an instance: EventTimeSessionWindows.with_gap(...)",)),
    Build("windows by a class of one's own", lambda env: windows(env, Own), ("pass an instance: Own(...)",)),
    Build("no windows", lambda env: windows(env, Own(None, kind=Bare)), ("Own(): window_type must be a NamedTuple class with a method max_timestamp(), not", "Bare")),
    Build("windows of a function", lambda env: windows(env, Own(None, kind=min)), ("Own(): window_type must be a NamedTuple class",)),
    Build("a default trigger 5", lambda env: windows(env, Own(None, trigger=5)), ("Own(): get_default_trigger() returned 5: return a Trigger",)),
    Build("global windows that never fire", lambda env: windows(env, GlobalWindows.create()).reduce(max), ("GlobalWindows() never end", "set a trigger(...)")),
    *(Build(f"size {value!r}", lambda env, value=value: TumblingEventTimeWindows.of(value), ("TumblingEventTimeWindows.of(): the size", repr(value))) for value in NO_DURATION),
    *(Build(f"slide {value!r}", lambda env, value=value: SlidingEventTimeWindows.of(10, value), ("SlidingEventTimeWindows.of(): the slide", repr(value))) for value in NO_DURATION),
    *(Build(f"step {value!r}", lambda env, value=value: CumulativeEventTimeWindows.of(10, value), ("CumulativeEventTimeWindows.of(): the step", repr(value))) for value in NO_DURATION),
    *(Build(f"gap {value!r}", lambda env, value=value: EventTimeSessionWindows.with_gap(value), ("EventTimeSessionWindows.with_gap(): the gap", repr(value))) for value in NO_DURATION),
    Build("a step of part of the size", lambda env: CumulativeEventTimeWindows.of(10, 3), ("CumulativeEventTimeWindows.of(): max_size must be a multiple of step, but 10 ms is"
" not a multiple of 3 ms",)),
    *(Build(f"offset {value!r}", lambda env, value=value: TumblingEventTimeWindows.of(10, value), ("TumblingEventTimeWindows.of(): the offset must be smaller than 10 ms", repr(value))) for value in (10, -10, "1 hour")),
    Build("offset of the slide", lambda env: SlidingEventTimeWindows.of(10, 5, 7), ("SlidingEventTimeWindows.of(): the offset must be smaller than 5 ms, not 7",)),
    Build("offset 'later'", lambda env: TumblingEventTimeWindows.of(10, "later"), ("TumblingEventTimeWindows.of(): the offset: 'later' is not a duration",)),
    *(Build(f"time zone {value!r}", lambda env, value=value: TumblingEventTimeWindows.of("1 day", time_zone=value), ("TumblingEventTimeWindows.of(): time_zone= must be a time zone name", repr(value))) for value in ("Mars/Base", "", 5)),
    Build("hours of a time zone", lambda env: SlidingEventTimeWindows.of("1 day", "1 hour", time_zone="Europe/Berlin"), ("with time_zone=, the slide must be a number of whole days, not 3600000 ms",)),
    Build("a gap function 5", lambda env: EventTimeSessionWindows.with_dynamic_gap(5), ("with_dynamic_gap() takes a function", "not 5")),
    *(Build(f"count_window {value!r}", lambda env, value=value: keyed(rows(env)).count_window(value), ("count_window(): the size must be an element count of at least 1", repr(value))) for value in (0, -1, 1.5, "x", None, True)),
    Build("count_window that stands still", lambda env: keyed(rows(env)).count_window(5, -1), ("count_window(): the slide must be an element count of at least 1, not -1",)),
    # lateness
    *(Build(f"lateness {value!r}", lambda env, value=value: windows(env).allowed_lateness(value), ("allowed_lateness()", repr(value))) for value in (-1, "soon", None)),
    Build("lateness in processing time", lambda env: windows(env, TumblingProcessingTimeWindows.of(10)).allowed_lateness(5), ("allowed_lateness() is for event-time windows", "TumblingProcessingTimeWindows(10 ms)")),
    Build("late data by name", lambda env: windows(env).side_output_late_data("late"), ("side_output_late_data() takes an OutputTag, not 'late'",)),
    Build("the late data by name", _no_tag, ("get_side_output() takes an OutputTag, not 'late'",)),
    # triggers and evictors
    *(Build(f"trigger {value!r}", lambda env, value=value: windows(env).trigger(value), ("trigger() takes a Trigger, such as CountTrigger.of(10)",)) for value in (None, "10", CountTrigger, max)),
    Build("sessions with a trigger that cannot merge", lambda env: windows(env, EventTimeSessionWindows.with_gap(5)).trigger(DeltaTrigger.of(1, max)), ("merges windows, but DeltaTrigger.of(1) cannot merge",)),
    Build("sessions that never fire", lambda env: windows(env, EventTimeSessionWindows.with_gap(5)).trigger(NeverTrigger()), ("merges windows, but NeverTrigger() cannot merge",)),
    *(Build(f"sessions with a trigger that does not {how}", lambda env, trigger=trigger: windows(env, EventTimeSessionWindows.with_gap(5)).trigger(trigger), ("merges windows, but", "cannot merge: define can_merge() and on_merge()")) for how, trigger in (("merge", SaysSo(None)), ("merge, purging", PurgingTrigger.of(SaysSo(None))))),
    Build("a default trigger that cannot merge", lambda env: windows(env, OwnMerging(None, Fires(None))).process(Processes()), ("Own() merges windows, but Fires() cannot merge",)),
    *(Build(f"CountTrigger.of({value!r})", lambda env, value=value: CountTrigger.of(value), ("CountTrigger.of() takes an element count of at least 1", repr(value))) for value in (0, -1, 1.5, None)),
    Build("ContinuousEventTimeTrigger.of(0)", lambda env: ContinuousEventTimeTrigger.of(0), ("ContinuousEventTimeTrigger.of(): the interval must be at least one millisecond",)),
    *(Build(f"PurgingTrigger.of({value!r})", lambda env, value=value: PurgingTrigger.of(value), ("PurgingTrigger.of() takes a trigger",)) for value in (None, NeverTrigger)),
    *(Build(f"{kind.__name__} without function", lambda env, kind=kind: kind.of(1, 5), (f"{kind.__name__}.of() takes a function of two elements, not 5",)) for kind in (DeltaTrigger, DeltaEvictor)),
    *(Build(f"{kind.__name__} of 'x'", lambda env, kind=kind: kind.of("x", max), (f"{kind.__name__}.of(): the threshold must be a number, not 'x'",)) for kind in (DeltaTrigger, DeltaEvictor)),
    *(Build(f"{kind.__name__} of NaN", lambda env, kind=kind: kind.of(float("nan"), max), (f"{kind.__name__}.of(): the threshold must be a number, not nan",)) for kind in (DeltaTrigger, DeltaEvictor)),
    *(Build(f"evictor {value!r}", lambda env, value=value: windows(env).evictor(value), ("evictor() takes an Evictor, such as CountEvictor.of(10)",)) for value in (None, 3, CountEvictor)),
    Build("CountEvictor.of(-1)", lambda env: CountEvictor.of(-1), ("CountEvictor.of() takes an element count of at least 0, not -1",)),
    Build("TimeEvictor.of(0)", lambda env: TimeEvictor.of(0), ("TimeEvictor.of(): the window size must be at least one millisecond",)),
    # window functions
    Build("apply of a lambda", lambda env: windows(env).apply(lambda key, window, inputs: []), ("apply() of WindowedStream takes a WindowFunction, not",)),
    Build("apply of a class", lambda env: windows(env).apply(Applies), ("apply() got the class Applies: pass an instance: Applies()",)),
    Build("apply of another kind", lambda env: windows(env).apply(Processes()), ("apply() of WindowedStream takes a WindowFunction, not Processes, which is a ProcessWindowFunction",)),
    Build("process of another kind", lambda env: windows(env).process(ProcessesAll()), ("process() of WindowedStream takes a ProcessWindowFunction, not ProcessesAll, which is a ProcessAllWindowFunction",)),
    Build("apply to all of a keyed kind", lambda env: rows(env).window_all(TEN).apply(Applies()), ("apply() of AllWindowedStream takes an AllWindowFunction, not Applies, which is a WindowFunction",)),
    Build("process all of another kind", lambda env: rows(env).window_all(TEN).process(AppliesAll()), ("takes a ProcessAllWindowFunction, not AppliesAll, which is an AllWindowFunction",)),
    Build("aggregate of a lambda", lambda env: windows(env).aggregate(lambda window, other: window), ("aggregate() got", "pass an AggregateFunction")),
    Build("aggregate with on_error", lambda env: windows(env).aggregate(Counts(), on_error=OutputTag("bad")), ("aggregate() has no on_error=: call window(...).side_output_errors(tag) before it",)),
    Build("aggregate of a class", lambda env: windows(env).aggregate(Counts), ("aggregate() got", "pass an instance: Counts()")),
    Build("aggregate with a lambda", lambda env: windows(env).aggregate(Counts(), max), ("aggregate(window_function=...) of WindowedStream takes a WindowFunction",)),
    Build("aggregate that cannot merge", lambda env: windows(env, EventTimeSessionWindows.with_gap(5)).aggregate(Counts()), ("merges windows, but Counts cannot merge accumulators: define merge()",)),
    Build("reduce by 'sum'", lambda env: windows(env).reduce("sum"), ("reduce() got 'sum': pass a function or ReduceFunction",)),
    Build("an aggregate function that waits", lambda env: windows(env).aggregate(CountsLater()), ("aggregate() got", "whose add is an async def, which")),
    Build("a trigger that waits", lambda env: windows(env).trigger(ClearsLater()), ("trigger() got", "whose clear is an async def, which")),
    Build("an assigner that waits", lambda env: windows(env, MergesLater()), ("window() got", "whose merge_windows is an async def, which")),
    Build("a default trigger that waits", lambda env: windows(env, Merges()), ("get_default_trigger() got", "whose clear is an async def, which")),
    Build("a purging trigger that waits", lambda env: windows(env).trigger(PurgingTrigger.of(ClearsLater())), ("trigger() got", "whose clear is an async def, which")),
    Build("an evictor that waits", lambda env: windows(env).evictor(EvictsLater(5)), ("evictor() got", "whose evict_after is an async def, which")),
    Build("a distance of an evictor that waits", lambda env: DeltaEvictor.of(5, differing), ("DeltaEvictor.of() got", "whose differing is an async def, which")),
    Build("a distance of a trigger that waits", lambda env: DeltaTrigger.of(5, differing), ("DeltaTrigger.of() got", "whose differing is an async def, which")),
    Build("a gap that waits", lambda env: EventTimeSessionWindows.with_dynamic_gap(gap), ("with_dynamic_gap() got", "whose gap is an async def, which")),
    Build("a window function that waits", lambda env: windows(env).process(Waits()), ("process() got", "whose process is an async def, which")),
]


def run(name: str, program: Any, *says: str, kind: Any = OperatorError, frame: str = "") -> Run:
    return Run(name, program, says, frame, kind)


def assigned(windows_of: Any) -> Any:
    return lambda stream: keyed(stream).window(Own(windows_of)).process(Processes())


def triggered(trigger: Any) -> Any:
    return lambda stream: keyed(stream).window(TEN).trigger(trigger).process(Processes())


def evicted(evictor: Any) -> Any:
    return lambda stream: keyed(stream).window(TEN).evictor(evictor).process(Processes())


def processed(does: Any) -> Any:
    return lambda stream: keyed(stream).window(TEN).process(Processes(does))


def gaps(gap: Any) -> Any:
    return lambda stream: keyed(stream).window(EventTimeSessionWindows.with_dynamic_gap(gap)).process(Processes())


AT_END = f"failed in the event time timer at 9 of {WINDOW} of key 'k'"

WINDOW_RUNS = [
    # the program's own windows
    *(
        run(f"windows {name}", assigned(at_three(value, [TimeWindow(0, 10)])), f"failed at the record {RECORD}", "TypeError: Own().assign_windows() returned", *says)
        for name, value, says in (
            ("None", None, ("returned None: return a list of windows",)),
            ("5", 5, ("returned 5: return a list of windows",)),
            ("that are one", TimeWindow(0, 10), (f"returned {WINDOW}: return a list of windows",)),
            ("that are tuples", [(0, 10)], ("returned (0, 10) as a window, but its window_type is TimeWindow",)),
            ("of another class", [CountWindow(1)], ("returned CountWindow(id=1) as a window", "its window_type is TimeWindow")),
        )
    ),
    run("windows of fractions", assigned(at_three([TimeWindow(0.5, 9.5)], [])), "a namespace is an int, text, or a tuple of such, not (0.5, 9.5)", RECORD, kind=ProgramError),
    run("an assigner that raises", assigned(lambda value: [TimeWindow(0, exploding(value) + 10)]), f"failed at the record {RECORD}: {ZERO}", frame="exploding"),
    *(
        run(f"a gap of {value!r}", gaps(at_three(value, 5)), "DynamicEventTimeSessionWindows(", "the gap that the function returned", repr(value), RECORD, "key 'k'", kind=ProgramError)
        for value in (None, 0, -1, "soon", 1.5)
    ),
    run("a gap that raises", gaps(lambda value: exploding(value) + 7), f"failed at the record {RECORD}: {ZERO}", frame="exploding"),
    *(
        run(f"windows of {name} without timestamps", lambda stream, assigner=assigner: untimed(stream).key_by("key").window(assigner).process(Processes()), f"{type(assigner).__name__} got an element without a timestamp: put assign_timestamps_and_watermarks(...)", FIRST, kind=ProgramError)
        for name, assigner in (("a size", TEN), ("a slide", SlidingEventTimeWindows.of(10, 5)), ("sessions", EventTimeSessionWindows.with_gap(5)), ("steps", CumulativeEventTimeWindows.of(10, 5)))
    ),
    run("folded windows without timestamps", lambda stream: untimed(stream).key_by("key").window(TEN).aggregate(Counts()), "got an element without a timestamp", FIRST, kind=ProgramError),
    run("windows of all without timestamps", lambda stream: untimed(stream).window_all(TEN).process(ProcessesAll()), "got an element without a timestamp", FIRST, kind=ProgramError),
    # triggers
    *(run(f"a trigger that says {value!r}", triggered(Fires(at_three(value, TriggerResult.CONTINUE))), f"failed at the record {RECORD}: TypeError: Fires() returned {value!r}: return a TriggerResult") for value in (None, True, "FIRE")),
    run("a trigger that says None in time", triggered(Fires(lambda value, ctx: TriggerResult.CONTINUE, lambda time: None)), AT_END, "TypeError: Fires() returned None: return a TriggerResult"),
    run("a purging trigger of one that says None", triggered(PurgingTrigger.of(Fires(at_three(None, TriggerResult.FIRE)))), f"failed at the record {RECORD}", "PurgingTrigger.of(Fires()) returned None: return a TriggerResult"),
    run("a trigger that raises", triggered(Fires(lambda value, ctx: exploding(value) and TriggerResult.CONTINUE)), f"failed at the record {RECORD}: {ZERO}", frame="exploding"),
    run("a trigger's state by name", triggered(Fires(lambda value, ctx: ctx.get_partitioned_state("seen"))), "pass a state descriptor, such as ValueStateDescriptor('n'), not 'seen'", FIRST, kind=ProgramError),
    run("a trigger's timer at 1.5", triggered(Fires(lambda value, ctx: ctx.register_event_time_timer(1.5))), "an event-time timer cannot be set or deleted at 1.5 (float)", FIRST, kind=ProgramError),
    # evictors
    run("an evictor that returns a list", evicted(Evicts(lambda elements: elements[1:])), AT_END, "TypeError: Evicts.evict_before() must remove elements from its list argument and return None, but it returned [TimestampedValue("),
    run("an evictor that puts in others", evicted(Evicts(None, lambda elements: elements.append("more"))), AT_END, "Evicts.evict_after() must remove elements", "left other objects in the list"),
    # window functions
    *(run(f"a window function that returns {value!r}", processed(lambda context, elements, value=value: value), AT_END, f"the function returned {value!r}, a single value instead of an iterable: yield it, or"
" return a list") for value in (5, "text", b"x")),
    run("a window function behind a fold that returns 1", lambda stream: keyed(stream).window(TEN).aggregate(Counts(), Processes(lambda context, elements: 1)), AT_END, "the function returned 1, a single value"),
    run("a window function that raises", processed(lambda context, elements: [exploding(element) for element in elements]), AT_END, ZERO, frame="exploding"),
    run("a window function that clears badly", lambda stream: keyed(stream).window(TEN).process(ClearsBadly()), AT_END, "LookupError: nothing there", frame="clear"),
    run("a window's state by name", processed(lambda context, elements: [context.window_state().get_state("x")]), "pass a state descriptor, such as ValueStateDescriptor('n'), not 'x'", "key 'k'", kind=ProgramError),
    run("a session's state", lambda stream: keyed(stream).window(EventTimeSessionWindows.with_gap(5)).process(Processes(lambda context, elements: [context.window_state()])), "window_state() is not available for merging windows", "use global_state()", kind=ProgramError),
    # folds
    run("an aggregate that forgets to return", lambda stream: keyed(stream).window(TEN).aggregate(Forgets()), "key 'k': the function that folds the state 'window-contents' returned None", "return the result", FIRST, kind=ProgramError),
    run("a reduce that forgets to return", lambda stream: keyed(stream).window(TEN).reduce(lambda value, other: None), "the function that folds the state 'window-contents' returned None", "Row(id=1, key='k')", kind=ProgramError),
    run("a session's aggregate that forgets to return", lambda stream: keyed(stream).window(EventTimeSessionWindows.with_gap(5)).aggregate(ForgetsLater()), "key 'k': the reduce or aggregate function of the windows returned None", RECORD, kind=ProgramError),
    run("a session's reduce that forgets to return", lambda stream: keyed(stream).window(EventTimeSessionWindows.with_gap(5)).reduce(lambda value, other: None), "the reduce or aggregate function of the windows returned None", "Row(id=1, key='k')", kind=ProgramError),
    run("panes of an aggregate that forgets to return", lambda stream: keyed(stream).window(SlidingEventTimeWindows.of(10, 5)).aggregate(ForgetsLater()), "returned None", "return the result", RECORD, kind=ProgramError),
    run("a reduce that raises", lambda stream: keyed(stream).window(TEN).reduce(lambda value, other: exploding(other) and other), f"failed at the record {RECORD}: {ZERO}", frame="exploding"),
]
