"""Replays a recording in this process, by default without calling external services."""

from __future__ import annotations

import bdb
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pillarbox._elements.records import Records
from pillarbox._errors import causes_of, shorten
from pillarbox._reports.failure import FailedAttempt, Failure
from pillarbox._runtime.failures import located
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._task.stream_task import StreamTask
from pillarbox._time.clock_log import ClockLog
from pillarbox_tools.recording.recording import Recording
from pillarbox_tools.replay.debugger import Debugger, look_back
from pillarbox_tools.replay.nondeterminism import fixed_inputs, nondeterministic_calls
from pillarbox_tools.replay.rerun import Rerun, run_once
from pillarbox_tools.replay.states import StateDifference, compare_logs
from pillarbox_tools.replay.values import without_addresses


@dataclass
class Replay:
    """The result of a replay.

    Attributes:
        records: number of input records up to the end or the failure.
        state: differences between the final state and the checkpoint's state, or None if they were not compared.
        stopped: whether the replay stopped at the requested record or in the debugger.
        unanswered: the error message if the replay stopped at a service call that has no recorded answer, or None.
        uncompared: why the outcome could not be compared, or None.
    """

    records: int = 0
    sent: int = 0
    failure: Failure | None = None
    error: str | None = None
    differs: list[str] = field(default_factory=list)
    state: list[StateDifference] | None = None
    reasons: list[str] = field(default_factory=list)
    stopped: bool = False
    unanswered: str | None = None
    uncompared: str | None = None

    @property
    def is_same(self) -> bool:
        return not self.differs and not self.state and self.uncompared is None


class _StopError(Exception): ...


def replay(
    recording: Recording,
    *,
    at: int | None = None,
    debug: bool = False,
    diff: bool = False,
    allow_calls: bool = False,
    seed: int | None = None,
    clock: int | None = None,
) -> Replay:
    """Run a recorded task up to its failure or its end.

    Args:
        at: position (from 1) of the input record to stop before.
        debug: whether to open Python's debugger at that record, or where the task fails.
        diff: whether to compare the outcome (final state or failure) with the recorded outcome.
        allow_calls: whether to run async operators, and functions that open sockets or start programs.
        clock: constant time for the task's clock and user code (Unix time in ms). By default, the task's clock repeats
            the recorded readings, and user code gets the current time.
    """
    noted = recording.facts.failure
    stop = at if at is not None else noted.number if debug and noted is not None else None
    with fixed_inputs(seed, clock):
        result = _run(recording, clock, stop, allow_calls=allow_calls, debug=debug, diff=diff)
    if result.differs or result.state:
        with fixed_inputs(seed, clock), nondeterministic_calls() as calls:
            _run(recording, clock, None, allow_calls=allow_calls)
        result.reasons += [f"it calls {call}" for call in calls]
        result.reasons += _reasons(recording, clock)
    return result


def _run(
    recording: Recording,
    clock: int | None,
    stop: int | None,
    *,
    allow_calls: bool,
    debug: bool = False,
    diff: bool = False,
) -> Replay:
    result, facts = Replay(), recording.facts

    def run(rerun: Rerun) -> None:
        if stop is not None:
            _stop_at(rerun.task, stop, debug=debug)
        for buffers in rerun.run():
            result.sent += sum(len(records) for _, records in rerun.outputs(buffers))

    def on_error(error: Exception) -> None:
        if any(isinstance(cause, (_StopError, bdb.BdbQuit)) for cause in causes_of(error)):
            result.stopped = True
            return
        failure = located(error, facts.name, facts.subtask)
        result.error = str(failure)
        if debug and stop is None:
            look_back(failure)
        if any(isinstance(cause, ModuleNotFoundError) for cause in causes_of(error)):
            result.reasons.append("a module is missing: add its folder to PYTHONPATH")
        result.failure = Failure.of(failure, facts.subtask, FailedAttempt(facts.number, facts.epoch, None))

    make = partial(Rerun, recording, clock=clock, allow_calls=allow_calls)
    outcome = run_once(recording, make, run, allow_calls=allow_calls, on_error=on_error)
    result.unanswered = outcome.unanswered
    result.records = 0 if outcome.rerun is None else outcome.rerun.task.metrics.records_in
    if diff:
        result.uncompared = _why_uncompared(recording, result)
        if result.uncompared is None and outcome.rerun is not None:
            _compare(recording, result, outcome.rerun.store)
    return result


def _why_uncompared(recording: Recording, result: Replay) -> str | None:
    facts = recording.facts
    if result.unanswered is not None:
        return "it stopped at a service call, so nothing can be compared"
    if result.stopped:
        return "it stopped as requested, so nothing can be compared"
    if facts.level and recording.after is None and facts.failure is None and result.failure is None:
        return (
            "the recording has no state after the epoch (the file state-after), because the epoch was not committed,"
            " or the file was removed: nothing can be compared"
        )
    return None


def _stop_at(task: StreamTask, number: int, *, debug: bool) -> None:
    def stopping(process: Callable[[Records], None], records: Records) -> None:
        # The task has already counted these records.
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
        task.metrics.run = len(rest)
        Debugger(task).runcall(process, rest)

    for input_ in task.chain.head.inputs:
        input_.process_records = partial(stopping, input_.process_records)  # type: ignore[method-assign]


def _compare(recording: Recording, result: Replay, store: MemoryChunkStore) -> None:
    noted = recording.facts.failure
    if noted is not None:
        failure = result.failure
        if failure is None:
            result.differs.append("the task failed in the epoch, but not in the replay")
            return
        for name in ("error", "cause", "uid", "key", "record", "number"):
            then, now = getattr(noted, name), getattr(failure, name)
            if _comparable(then) != _comparable(now):
                result.differs.append(f"{name} was {shorten(then)}, and is now {shorten(now)}")
        return
    if result.failure is not None:
        result.differs.append("the task failed in the replay, but not in the epoch")
    elif recording.facts.level and recording.after is not None:
        after = MemoryChunkStore()
        after.chunks = dict(recording.after)
        result.state = compare_logs(after, store, recording.facts.subtask)


def _comparable(value: Any) -> Any:
    return without_addresses(value) if isinstance(value, str) else value


def _reasons(recording: Recording, clock: int | None) -> list[str]:
    facts = recording.facts
    reasons = list(facts.doubts)
    seed = os.environ.get("PYTHONHASHSEED")
    if facts.hash_seed in (None, "random"):
        reasons.append("the order of a set may differ: the worker had no PYTHONHASHSEED")
    elif seed != facts.hash_seed:
        reasons.append(
            f"the order of a set may differ: PYTHONHASHSEED was {facts.hash_seed}, and is now {seed or 'not set'}"
        )
    if clock is not None:
        reasons.append("--clock stops the task's clock")
    elif facts.clock is None:
        reasons.append("the readings of the task's clock are unknown, so it stood still at the epoch's time")
    elif not ClockLog.of_text(facts.clock).is_whole:
        reasons.append("only the first 4,096 changes of the task's clock in the epoch are known; then it stood still")
    return reasons
