"""Running a recording again, in this process: no Spark, no Java, and no calls unless they are asked for."""

from __future__ import annotations

import pdb
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pillarbox._elements import ArrowRecords, Buffer, Records, decode
from pillarbox._errors import ConfigurationError, shorten
from pillarbox._graph.layout import lay_out
from pillarbox._model.failure import Attempt, Failure
from pillarbox._operators.frame.rates import RateScope
from pillarbox._operators.frame.shared_resources import SharedResources
from pillarbox._runtime.failures import located
from pillarbox._runtime.recording.recording import Recording
from pillarbox._runtime.recording.states import Difference, compare_logs
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._task.source_stream_task import SourceStreamTask
from pillarbox._task.stream_task import StreamTask
from pillarbox._task.vertex import REPORT_TARGET, Vertex
from pillarbox._time.manual_clock import ManualProcessingTimeService


@dataclass
class Replay:
    """What a replay did.

    Attributes:
        records: how many records the task's input had, up to the end or the failure.
        sent: how many records it sent.
        failure: how it failed; None: it did not.
        error: the error that ended it.
        differs: in what it is not as it was recorded; empty: it is the same.
        state: differences between the state after it and the state in the checkpoint; None: they were not compared.
        stopped: whether it stopped before a record that was asked for.
    """

    records: int = 0
    sent: int = 0
    failure: Failure | None = None
    error: BaseException | None = None
    differs: list[str] = field(default_factory=list)
    state: list[Difference] | None = None
    stopped: bool = False


class _StopError(Exception):
    """The replay has reached the record before which it is to stop."""


def replay(
    recording: Recording, *, at: int | None = None, debug: bool = False, diff: bool = False, allow_calls: bool = False
) -> Replay:
    """Run a recorded task again, up to its failure or to its end.

    Args:
        at: stop before this record of the input, counted from 1.
        debug: open Python's debugger at that record, or at the record that failed.
        diff: compare the state after it with the state that the checkpoint had, or the failure with the noted one.
        allow_calls: make the calls of asynchronous operators; else a task that has some is refused.

    Raises:
        ConfigurationError: the task would make calls.
    """
    facts = recording.facts
    if facts.calls and not allow_calls:
        raise ConfigurationError(
            f"operator {facts.calls[0]!r} calls a service, and the recording has none of its answers: a replay would"
            " make the calls again; pass --allow-calls to make them"
        )
    vertex = recording.shipped.load()
    lay_out(vertex, recording.layout)
    vertex.rate_scope, vertex.shared = RateScope(), SharedResources()
    store = MemoryChunkStore()
    store.chunks = dict(recording.state)
    clock = ManualProcessingTimeService(facts.clock)
    found = Replay()
    task, run = _task(recording, vertex, store, clock)
    stop = at if at is not None else _failing(facts.noted_failure) if debug else None
    if stop is not None:
        _stop_at(task, stop, debug=debug)
    try:
        for buffers in run():
            for buffer in buffers:
                found.sent += _records_in(buffer)
    except BaseException as error:
        if isinstance(error, _StopError) or isinstance(error.__cause__, _StopError):
            found.stopped = True
        elif isinstance(error, Exception):
            found.error = located(error, facts.name, facts.subtask)
            found.failure = Failure.of(found.error, facts.subtask, Attempt(facts.epoch, None))
        else:
            raise
    finally:
        task.cancel()
    found.records = task.metrics.records_in
    if diff and not found.stopped:
        _compare(recording, found, store)
    return found


def _failing(failure: Failure | None) -> int | None:
    return None if failure is None else failure.number


def _task(
    recording: Recording, vertex: Vertex, store: MemoryChunkStore, clock: ManualProcessingTimeService
) -> tuple[StreamTask, Callable[[], Iterator[list[Buffer]]]]:
    """Return the task, ready to run, and what runs it."""
    facts = recording.facts
    if facts.level == 0:
        source = SourceStreamTask(vertex, facts.subtask, clock=clock)
        source.restore()
        records = (ArrowRecords(each) for portion in recording.portions() for each in _batches(portion))
        return source, lambda: source.run_epoch(
            records, subtask=facts.subtask, checkpoint_id=facts.epoch, bounded=facts.is_last
        )
    task = MultipleInputStreamTask(vertex, facts.subtask, clock=clock)
    task.restore(store)
    portions: Iterable[list[Buffer]] = ([Buffer(*each) for each in portion] for portion in recording.portions())
    return task, lambda: task.run_epoch(portions, store, facts.time, last=facts.is_last)


def _batches(portion: bytes) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(portion) as reader:
        return list(reader)


def _records_in(buffer: Buffer) -> int:
    if buffer.target == REPORT_TARGET:
        return 0
    element = decode(buffer.payload)
    return len(element) if isinstance(element, Records) else 0


def _stop_at(task: StreamTask, number: int, *, debug: bool) -> None:
    """Have a task stop before a record of its input, or enter the debugger there."""
    inputs = task.chain.head.inputs
    for place in inputs if isinstance(inputs, list) else list(inputs):
        _wrap(task, place, number, debug=debug)


def _wrap(task: StreamTask, place: Any, number: int, *, debug: bool) -> None:
    process = place.process_records

    def stopping(records: Records) -> None:
        # The task counts a run before it hands it on.
        first = task.metrics.records_in - len(records) + 1
        offset = number - first
        if not 0 <= offset < len(records):
            process(records)
            return
        if offset:
            process(records.slice(0, offset))
        if not debug:
            raise _StopError
        rest = records.slice(offset, len(records))
        debugger = pdb.Pdb()
        for function in _user_functions(task):
            code = function.__code__
            debugger.set_break(code.co_filename, code.co_firstlineno + 1)
        debugger.runcall(process, rest)

    place.process_records = stopping


def _user_functions(task: StreamTask) -> Iterator[Any]:
    """Yield the user's functions in a task, which have code that a debugger can stop in."""
    for operator in task.chain.operators:
        call = getattr(operator, "call", None)
        function = getattr(call, "__func__", call)
        if hasattr(function, "__code__"):
            yield function


def _compare(recording: Recording, found: Replay, store: MemoryChunkStore) -> None:
    noted = recording.facts.noted_failure
    if noted is not None:
        mine = found.failure
        if mine is None:
            found.differs.append("the task failed then, and has not failed now")
            return
        for name in ("error", "cause", "uid", "key", "record", "number"):
            then, now = getattr(noted, name), getattr(mine, name)
            if then != now:
                found.differs.append(f"{name} was {shorten(then)}, and is {shorten(now)}")
        return
    if found.failure is not None:
        found.differs.append("the task did not fail then, and has failed now")
    elif recording.facts.level and recording.after is not None:
        after = MemoryChunkStore()
        after.chunks = dict(recording.after)
        found.state = compare_logs(after, store, recording.facts.subtask)
