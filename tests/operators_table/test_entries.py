from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pillarbox
from pillarbox import AsyncDataStream, CheckpointMismatchError, StreamExecutionEnvironment, WatermarkStrategy
from pillarbox._datastream.connected.broadcast_stream import BroadcastConnectedStream
from pillarbox._datastream.connected.connected_streams import ConnectedStreams
from pillarbox._datastream.connected.joined_streams import (
    CoGroupedStreams,
    CoGroupedWindows,
    IntervalJoin,
    JoinedStreams,
    JoinedWindows,
)
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._datastream.streams.keyed_stream import KeyedStream
from pillarbox._datastream.windows.all_windowed_stream import AllWindowedStream
from pillarbox._datastream.windows.windowed_stream import WindowedStream
from pillarbox._operators.frame.operator import StreamOperator
from pillarbox.testing import ProgramTestHarness, StreamRecord
from tests.operators_table import page
from tests.operators_table.entry import ROW, Entry, Refused, Resumes, record
from tests.operators_table.table import ALIKE, BASES, NOT_ENTERED, OPERATORS, OTHERS, chaos_parts
from tests.operators_table.test_laws import SCRIPT
from tests.support.begun import Begun

STREAMS = (
    DataStream,
    KeyedStream,
    AllWindowedStream,
    WindowedStream,
    ConnectedStreams,
    BroadcastConnectedStream,
    IntervalJoin,
    JoinedStreams,
    CoGroupedStreams,
    JoinedWindows,
    CoGroupedWindows,
    AsyncDataStream,
)
AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


def all_operators() -> Iterator[type[StreamOperator]]:
    for module in pkgutil.walk_packages(pillarbox.__path__, "pillarbox."):
        importlib.import_module(module.name)
    pending = [StreamOperator]
    while pending:
        pending += (result := pending.pop()).__subclasses__()
        if result is not StreamOperator and result.__module__.startswith("pillarbox."):
            yield result


def methods() -> Iterator[str]:
    for stream in STREAMS:
        for name in vars(stream) if stream is KeyedStream else dir(stream):
            if not name.startswith("_"):
                yield f"{ALIKE.get(stream.__name__, stream.__name__)}.{name}"


# -- whether it is complete --


def test_every_operator_is_entered():
    missing = set(all_operators()) - {entry.operator for entry in OPERATORS} - OTHERS.keys()
    assert not missing, f"enter {missing} in tests/operators_table, or say in OTHERS why not"
    assert all(operator.__subclasses__() for operator in BASES), "what is said to be a base is none"


def test_every_method_is_entered():
    entered = {entry.method for entry in OPERATORS} | NOT_ENTERED.keys()
    assert not set(methods()) - entered, "enter them in tests/operators_table, or say in NOT_ENTERED why not"
    assert not entered - set(methods()), "there are no such methods"


def test_every_entry_is_complete():
    missing = [field for entry in OPERATORS for field in entry.missing()]
    assert not missing, "\n".join(missing)


def test_names_are_unique():
    names = Counter(name for part in chaos_parts() for name in part.rows)
    assert not [name for name, times in names.items() if times > 1]
    assert len({str(entry) for entry in OPERATORS}) == len(OPERATORS)


def test_the_page_is_up_to_date():
    assert page.PATH.read_text() == page.text(), "run python -m tests.operators_table.page"


# -- whether it is right --


def of_entries_with(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("entry", [entry for entry in OPERATORS if not entry.lacks(name)], ids=str)


def program(entry: Entry, strategy: WatermarkStrategy = AT) -> Callable[..., Any]:
    def build(env: Any, left: Any, right: Any) -> Any:
        timed = (stream.assign_timestamps_and_watermarks(strategy) for stream in (left, right)[: entry.inputs])
        return entry.build(*(stream.map(lambda value: value, ROW) for stream in timed)).uid("op")

    return build


def push(harness: ProgramTestHarness, entry: Entry, *records: tuple[int, StreamRecord]) -> None:
    for number, element in records:
        harness.push("left" if number == 0 or entry.inputs == 1 else "right", element.value)


def counted(harness: ProgramTestHarness, name: str) -> int:
    return sum(report.counters.get(f"{report.uid}.{name}", 0) for report in harness._job.reports)


def step_of(entry: Entry) -> Any:
    env = StreamExecutionEnvironment()
    return entry.build(*(env.from_collection([], ROW) for _ in range(entry.inputs)))._step


RECORDS = [step for step in SCRIPT if isinstance(step, tuple)]


@of_entries_with("state")
def test_its_state_is_stored_as_it_says(entry):
    with ProgramTestHarness(program(entry)) as harness:
        push(harness, entry, *RECORDS)
        harness.run_epoch()
        formats = {report.state_format for report in harness._job.reports if report.uid == "op"}
    if entry.state.format is None:
        assert formats <= {None}
    else:
        assert all(format_ is not None and format_.startswith(entry.state.format) for format_ in formats), formats


KEEPING = [entry for entry in OPERATORS if step_of(entry).factory.keeps_records]


@pytest.mark.parametrize("entry", KEEPING, ids=str)
def test_records_are_kept_as_its_factory_says(entry):
    with ProgramTestHarness(program(entry)) as harness:
        push(harness, entry, *RECORDS)
        outputs = Counter(harness.end_input()["output"])
    assert outputs and outputs <= Counter(record.value for _, record in RECORDS)


@of_entries_with("late")
def test_late_records_fare_as_it_says(entry):
    with ProgramTestHarness(program(entry)) as harness:
        push(harness, entry, *((side, record(key, 1, 1_000)) for key in "ab" for side in (0, 1)))
        harness.run_epoch()
        before = counted(harness, "late_records_dropped")
        push(harness, entry, (0, record("a", 2, 10)))
        harness.run_epoch()
        assert (counted(harness, "late_records_dropped") > before) == entry.late.dropped


@of_entries_with("batch")
def test_batch_mode_ends_with_the_same_records(entry):
    by_time = sorted(RECORDS, key=lambda record: record[1].value.at)
    no_watermarks = WatermarkStrategy.for_bounded_out_of_orderness(10**6).with_timestamp_assigner("at")
    results = []
    for batch in (False, True):
        with ProgramTestHarness(program(entry, no_watermarks), batch=batch) as harness:
            push(harness, entry, *by_time)
            results.append(Counter(map(repr, harness.end_input()["output"])))
    streaming, in_batch = results
    if entry.batch.same:
        assert in_batch == streaming
        return
    assert in_batch != streaming, "it is the same: say so"
    if entry.batch.expected is not None:
        assert in_batch == Counter(map(repr, entry.batch.expected([record.value for _, record in by_time])))


CHANGES = [(entry, change) for entry in OPERATORS if isinstance(entry.changes, list) for change in entry.changes]


@pytest.mark.parametrize(("entry", "change"), CHANGES, ids=lambda value: getattr(value, "change", None) or str(value))
def test_a_change_is_refused_or_resumes_as_it_says(entry, change, tmp_path):
    def make(build: Callable[..., Any]) -> Callable[..., Any]:
        def stream_of(left: Any, right: Any) -> Any:
            return build(*(stream.map(lambda value: value, ROW) for stream in (left, right)[: entry.inputs]))

        return stream_of

    if isinstance(change, Refused):
        begun = Begun(make(entry.build), tmp_path, left=[record("a", 1, 1).value, record("a", 2, 2).value])
        if change.by_tasks:
            with pytest.raises(CheckpointMismatchError, match=re.escape(change.words)):
                begun.resumes(make(change.build))
        else:
            begun.refuses(make(change.build), change.words)
        assert begun.compared(make(entry.build)).refused == []
    else:
        assert isinstance(change, Resumes)
        begun = Begun(make(entry.build), tmp_path, left=[record.value for record in change.begun])
        assert begun.compared(make(change.build)).refused == []
        more = ([record.value for record in epoch] for epoch in change.more)
        assert [tuple(resume) for resume in begun.resumes(make(change.build), *more)] == list(change.gives)
