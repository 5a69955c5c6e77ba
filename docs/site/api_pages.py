"""Which public name is on which page of the API; and the links of pages to files that are no pages."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Title, what the page is about, and the names in their order: names of `pillarbox`, or of the module before the dot.
PAGES: dict[str, tuple[str, str, list[str]]] = {
    "environment": (
        "Environment",
        "Where a program begins: sources, settings, and the program as a whole.",
        ["StreamExecutionEnvironment", "RuntimeExecutionMode", "Program", "LocalJob", "immutable"],
    ),
    "streams": (
        "Streams",
        "Streams of records, before they are divided by key.",
        ["DataStream", "BroadcastStream", "DataStreamSink", "OutputTag", "Partitioner"],
    ),
    "keyed-streams": (
        "Keyed streams",
        "Streams that are divided by key: functions have state and timers of the key.",
        ["KeyedStream", "KeySelector"],
    ),
    "windowed-streams": (
        "Windowed streams",
        "Streams whose records are collected in windows.",
        ["WindowedStream", "AllWindowedStream"],
    ),
    "two-inputs": (
        "Streams with two inputs",
        "Streams that are connected, joined or grouped with another one.",
        [
            "ConnectedStreams", "BroadcastConnectedStream", "JoinedStreams", "JoinedWindows", "CoGroupedStreams",
            "CoGroupedWindows", "IntervalJoin",
        ],
    ),
    "dataframes": (
        "DataFrame functions",
        "A DataFrame goes in, and a DataFrame comes out.",
        [
            "functions.window_aggregate", "functions.interval_join", "functions.async_map", "group_by", "GroupedData",
        ],
    ),
    "functions": (
        "Functions",
        "What you derive from, and the contexts that functions are given.",
        [
            "Function", "RuntimeContext", "MapFunction", "FilterFunction", "FlatMapFunction", "ProcessFunction",
            "KeyedProcessFunction", "ReduceFunction", "AggregateFunction", "ArrowAggregateFunction",
            "CheckpointedFunction", "FunctionInitializationContext", "FunctionSnapshotContext", "OperatorStateStore",
            "KeyedStateStore", "Row",
        ],
    ),
    "two-input-functions": (
        "Functions of two inputs",
        "What you derive from where two streams are connected, broadcast, joined or grouped.",
        [
            "CoMapFunction", "CoFlatMapFunction", "CoProcessFunction", "KeyedCoProcessFunction",
            "BroadcastProcessFunction", "KeyedBroadcastProcessFunction", "JoinFunction", "FlatJoinFunction",
            "CoGroupFunction", "ProcessJoinFunction",
        ],
    ),
    "state": (
        "State",
        "State of a key, its descriptors, its types and how long it lives.",
        [
            "ValueState", "ListState", "MapState", "ReducingState", "AggregatingState", "BroadcastState",
            "ReadOnlyBroadcastState", "StateDescriptor", "ValueStateDescriptor", "ListStateDescriptor",
            "MapStateDescriptor", "ReducingStateDescriptor", "AggregatingStateDescriptor", "StateTtlConfig", "Types",
            "TypeInformation",
        ],
    ),
    "time": (
        "Time",
        "Timers, timestamps and watermarks.",
        [
            "TimerService", "TimeDomain", "WatermarkStrategy", "WatermarkGenerator", "TimestampAssigner",
            "TimestampedValue", "Time", "Duration",
        ],
    ),
    "windows": (
        "Windows",
        "What assigns records to windows, and the windows.",
        [
            "TumblingEventTimeWindows", "SlidingEventTimeWindows", "CumulativeEventTimeWindows",
            "EventTimeSessionWindows", "DynamicEventTimeSessionWindows", "TumblingProcessingTimeWindows",
            "SlidingProcessingTimeWindows", "CumulativeProcessingTimeWindows", "ProcessingTimeSessionWindows",
            "DynamicProcessingTimeSessionWindows", "GlobalWindows", "CountTumblingWindowAssigner",
            "CountSlidingWindowAssigner", "WindowAssigner", "MergingWindowAssigner", "MergeCallback",
            "SessionWindowTimeGapExtractor", "Window", "TimeWindow", "CountWindow", "GlobalWindow",
        ],
    ),
    "triggers": (
        "Triggers and evictors",
        "When a window emits its result, and which of its records count.",
        [
            "Trigger", "TriggerResult", "EventTimeTrigger", "ProcessingTimeTrigger", "ContinuousEventTimeTrigger",
            "ContinuousProcessingTimeTrigger", "CountTrigger", "DeltaTrigger", "PurgingTrigger", "NeverTrigger",
            "Evictor", "CountEvictor", "DeltaEvictor", "TimeEvictor",
        ],
    ),
    "window-functions": (
        "Window functions",
        "What makes the result of a window, and aggregates of columns.",
        [
            "WindowFunction", "ProcessWindowFunction", "AllWindowFunction", "ProcessAllWindowFunction",
            "ColumnAggregate", "count_", "sum_", "avg_", "min_", "max_", "first_", "last_", "approx_count_distinct_",
        ],
    ),
    "async": (
        "Asking services",
        "Asynchronous functions, retries, caches, fallbacks and budgets.",
        [
            "AsyncDataStream", "AsyncFunction", "AsyncBatchFunction", "AsyncRetryStrategy", "AsyncRetryPredicate",
            "AsyncCache", "AsyncFallback", "AsyncFailure", "fallback", "async_retry_predicates.empty_result_predicate",
            "async_retry_predicates.exception_type_predicate", "async_retry_predicates.has_exception_predicate",
            "Budget", "CircuitBreaker", "CALL_AGAIN",
        ],
    ),
    "queries": (
        "Queries",
        "Start and end a query, and read or write its state.",
        [
            "local_session", "start", "run", "stop_with_savepoint", "savepoint", "rescale", "read_state", "key_history",
            "write_state", "adopt",
            "record",
        ],
    ),
    "metrics": (
        "Metrics and errors",
        "What tasks report, what functions can count, and the errors that pillarbox raises.",
        [
            "dashboard", "Dashboard", "serve_metrics", "MetricsServer", "QueryCollector", "export_otel", "metrics",
            "TaskReport", "OperatorReport", "MetricGroup", "Counter", "Meter", "Distribution", "DeadLetter",
            "PillarboxError", "ProgramError", "ConfigurationError", "CheckpointMismatchError", "SavepointError",
            "OperatorError", "ExchangeError", "KeyTypeError", "TypeMismatchError", "BudgetExceededError",
            "CircuitOpenError",
        ],
    ),
    "testing": (
        "Testing",
        "Harnesses, laws and simulated faults: without Spark, and with a clock that you set.",
        [
            f"testing.{name}"
            for name in (
                "harness_for", "row", "check_operator", "simulate", "SimulationError", "ProgramTestHarness",
                "ProgramSnapshot", "ProcessFunctionTestHarnesses", "OneInputStreamOperatorTestHarness",
                "TwoInputStreamOperatorTestHarness", "KeyedOneInputStreamOperatorTestHarness",
                "KeyedTwoInputStreamOperatorTestHarness", "OperatorSnapshot", "StreamRecord", "Watermark",
                "WatermarkStatus", "ManualProcessingTimeService", "ProcessingTime", "TwsTester",
                "FakeService", "FakeRequest", "TooManyRequestsError",
            )
        ],
    ),
    "mailbox": (
        "Mailbox",
        "The loop that drives a task, which may be used by itself.",
        [
            f"mailbox.{name}"
            for name in (
                "MailboxProcessor", "MailboxController", "MailboxDefaultAction", "MailboxExecutor", "MailOptions",
                "Mail", "TaskMailbox", "MailboxState", "State", "Suspension", "MailboxMetrics", "MailboxStatistics",
                "LatencyStatistics", "ProbeScheduler", "PeriodTimer", "MailboxClosedError",
                "RejectedExecutionError", "WrongThreadError", "MIN_PRIORITY", "MAX_PRIORITY",
            )
        ],
    ),
}  # fmt: skip


# Bases whose members are no part of the API.
_FOREIGN = "object, Exception, AssertionError, tuple, Generic, Protocol"


def write(folder: Path) -> None:
    """Write the pages of the API, and one that lists them."""
    folder.mkdir(exist_ok=True)
    lines = ["# API", "", "Made of the docstrings.", "", "```{toctree}", ":maxdepth: 1", "", *PAGES, "```", ""]
    _write(folder / "index.md", lines)
    listed = {_find(name): name for _, _, names in PAGES.values() for name in names}
    for page, (title, about, names) in PAGES.items():
        lines = [f"# {title}", "", about, ""]
        for name in names:
            member = _find(name)
            if inspect.isclass(member):
                kind, options = (
                    "exception" if issubclass(member, BaseException) else "class",
                    _class_body(member, listed),
                )
            else:
                kind, options = "function" if callable(member) else "data", []
            lines += ["```{eval-rst}", f".. auto{kind}:: pillarbox.{name}", *options, "```", ""]
        _write(folder / f"{page}.md", lines)


def _find(name: str) -> Any:
    module, _, short = f"pillarbox.{name}".rpartition(".")
    return getattr(importlib.import_module(module), short)


def _class_body(cls: type, listed: Mapping[Any, str]) -> list[str]:
    """Return the options of a class: its members and those of bases that are on no page, but not classes of others.

    Members of a base that is on a page are there; a sentence links to them.
    """
    bases = [base for base in cls.__mro__[1:] if base in listed]
    without = ", ".join([_FOREIGN, *sorted(base.__name__ for base in bases)])
    foreign = {
        name
        for base in cls.__mro__
        for name, member in vars(base).items()
        if isinstance(member, type) and member.__qualname__ != f"{cls.__qualname__}.{name}"
    }
    exclude = [f"   :exclude-members: {', '.join(sorted(foreign))}"] if foreign else []
    return ["   :members:", f"   :inherited-members: {without}", *exclude, *_inherited(cls, bases, foreign, listed)]


def _inherited(cls: type, bases: Sequence[type], foreign: Collection[str], listed: Mapping[Any, str]) -> Iterator[str]:
    """Yield a sentence for each base that is on a page, with the names that the class has of it."""
    seen: set[str] = set(foreign)
    for owner in cls.__mro__[:-1]:
        members = [name for name in vars(owner) if not name.startswith("_") and name not in seen]
        seen |= set(members)
        if owner in bases and members:
            path = f"pillarbox.{listed[owner]}"
            links = ", ".join(f":py:obj:`~{path}.{name}`" for name in members)
            yield from ("", f"   It inherits {links} from :py:class:`~{path}`.")


def _write(path: Path, lines: list[str]) -> None:
    text = "\n".join(lines)
    if not path.exists() or path.read_text() != text:  # Sphinx reads again what has changed
        path.write_text(text)


_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")


def absolute_links(text: str, folder: Path, root: Path, repository: str, pages: Collection[str]) -> str:
    """Return a page whose links to files that are no page lead to the repository.

    Args:
        text: the page's Markdown.
        folder: where it is.
        pages: the names of all pages.
    """
    docs = root / "docs"

    def mend(match: re.Match[str]) -> str:
        target = match[2]
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = (folder / target).resolve()
        inside = path.is_relative_to(docs) and (
            path.suffix != ".md" or str(path.relative_to(docs).with_suffix("")) in pages
        )
        # What is built belongs to the site: pictures of notebooks.
        if not path.exists() or (inside and path.is_file()) or path.is_relative_to(root / "build"):
            return match[0]
        return f"{match[1]}{repository}/{path.relative_to(root)}{match[3] or ''}{match[4]}"

    return _LINK.sub(mend, text)
