"""Compares a recorded program with another program, on the recorded input and state.

Both programs first run normally. If the results differ, they run again, and output and state are compared after each
record.
"""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, NamedTuple

from pillarbox._elements.buffers import Buffer, decode, encode
from pillarbox._elements.records import Records
from pillarbox._errors import causes_of, describe, shorten, shorten_record
from pillarbox._runtime.failures import located
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox_tools.recording.recording import Recording, pickles_in
from pillarbox_tools.replay.nondeterminism import fixed_inputs
from pillarbox_tools.replay.rerun import Rerun, RerunOutcome, run_once
from pillarbox_tools.replay.states import compare_logs, different_entries
from pillarbox_tools.replay.values import MISSING, difference_text, digest, first_difference, tree_of, without_addresses
from pillarbox_tools.replay.versions import check_installed, recorded_modules

_SHOWN = 300


@dataclass(frozen=True)
class ComparisonStep:
    """One program's result for a record, as text: the output, the key's final state, and the error, if any."""

    output: list[str]
    state: dict[str, str]
    error: str | None = None


@dataclass(frozen=True)
class FirstDifference:
    """The first record after which two programs differ.

    Attributes:
        number: the record's position in the input, from 1, or 0 if the programs differ before the first record.
        before: the key's states before the record in the recorded program, by state name.
    """

    number: int
    record: str | None
    key: str | None
    before: dict[str, str]
    then: ComparisonStep
    now: ComparisonStep
    parts: list[str] = field(default_factory=list)


@dataclass
class Comparison:
    """The result of a comparison of two programs.

    Attributes:
        sent: numbers of emitted records, as (recorded program, other program).
        only_end: differences caused by timers, requests or the end of the epoch, not by a record.
        unanswered: the error message if a program stopped at a service call that has no recorded answer, or None.
    """

    records: int = 0
    sent: tuple[int, int] = (0, 0)
    keys: int = 0
    first: FirstDifference | None = None
    only_end: list[str] = field(default_factory=list)
    unanswered: str | None = None

    @property
    def is_same(self) -> bool:
        return self.first is None and not self.only_end and self.unanswered is None


class _Event(NamedTuple):
    """An output record, or the error that ended a program, as a tree and as text."""

    tree: Any
    text: str


_NO_ERROR = _Event(None, "")


class _FullRun(NamedTuple):
    outputs: Counter[bytes]
    texts: dict[bytes, str]
    outcome: RerunOutcome
    error: _Event


def compare_programs(
    recording: Recording,
    other: ShippedVertex,
    broadcasts: Mapping[int, bytes] = MappingProxyType({}),
    *,
    seed: int | None = None,
    clock: int | None = None,
    allow_calls: bool = False,
) -> Comparison:
    """Run the recorded program and another program on the recorded input, and compare the results.

    The recorded program uses the recorded modules, the other program uses this process's modules.

    ``clock`` and ``allow_calls`` (see :class:`Rerun`) apply to both programs, ``broadcasts`` to the other program.
    """

    def recorded() -> Rerun:
        rerun = Rerun(recording, clock=clock, allow_calls=allow_calls)
        check_installed(recording, rerun.vertex)
        return rerun

    changed = partial(Rerun, recording, other, clock, allow_calls=allow_calls, broadcasts=broadcasts)
    first = _ComparedProgram(recording, recorded, partial(recorded_modules, recording), allow_calls)
    second = _ComparedProgram(recording, changed, nullcontext, allow_calls)
    with fixed_inputs(seed, clock):
        return _compare(first, second)


def _compare(first: _ComparedProgram, second: _ComparedProgram) -> Comparison:
    then, now = first.full_run(), second.full_run()
    comparison = Comparison(sent=(then.outputs.total(), now.outputs.total()))
    comparison.unanswered = then.outcome.unanswered or now.outcome.unanswered
    states = []
    task, other_task, facts = then.outcome.rerun, now.outcome.rerun, first.recording.facts
    if task is not None:
        comparison.records = task.task.metrics.records_in
    if task and other_task and facts.level and then.error == now.error == _NO_ERROR:
        states = compare_logs(task.store, other_task.store, facts.subtask)
        comparison.keys = len({state.owner for state in states})
    if then.outputs == now.outputs and then.error.tree == now.error.tree and not states:
        return comparison
    comparison.first = _first_difference(first, second)
    if comparison.first is None:
        gone, new = then.outputs - now.outputs, now.outputs - then.outputs
        comparison.only_end = [
            *(f"state {state.state} of {state.owner} is {state.now}, and was {state.then}" for state in states[:5]),
            *(f"it no longer sends {then.texts[key]}" for key in list(gone)[:5]),
            *(f"it sends {now.texts[key]}" for key in list(new)[:5]),
        ]
    return comparison


def _message(error: BaseException) -> str:
    try:
        return without_addresses(str(error))
    except Exception:  # a user's __str__ may raise
        return describe(error)


def _outputs(rerun: Rerun, buffers: list[Buffer]) -> Iterator[_Event]:
    for output, records in rerun.outputs(buffers):
        stamps = records.timestamps or [None] * len(records)
        for value, stamp in zip(records.values, stamps):
            at = "" if stamp is None else f" at {stamp}"
            text = f"{shorten_record(value)}{at}{f' by its output {output}' if output else ''}"
            yield _Event((output, stamp, tree_of(value)), text)


def _first_difference(recorded: _ComparedProgram, other: _ComparedProgram) -> FirstDifference | None:
    difference: FirstDifference | None = None
    with tempfile.TemporaryFile() as file:
        recorded.step(lambda trace: pickle.dump(trace, file, pickle.HIGHEST_PROTOCOL))
        file.seek(0)
        traces = enumerate(pickles_in(file))

        def compare(now: _StepTrace) -> None:
            nonlocal difference
            number, then = (0, None) if difference is not None else next(traces, (0, None))
            if then is not None and ((parts := then.parts_that_differ(now)) or then.error != now.error):
                difference = FirstDifference(number, then.record, then.key, then.before, then.step, now.step, parts)

        other.step(compare)
    return difference


class _StepTrace(NamedTuple):
    record: str | None
    key: str | None
    before: dict[str, str]
    step: ComparisonStep
    sent: list[Any]
    states: dict[bytes, tuple[str, Any]]
    error: Any

    def parts_that_differ(self, other: _StepTrace) -> list[str]:
        """Describe differing parts, ignoring the order of output."""
        parts = []
        trees = _only_in(self.sent, other.sent), _only_in(other.sent, self.sent)
        values = (tuple(MISSING if tree is None else tree[2] for tree in pair) for pair in zip_longest(*trees))
        for then, now in values:
            parts.append(("output", first_difference(then, now) or ("", then, now)))
        for state, other_state, difference in different_entries(self.states, other.states, lambda state: state[1]):
            label, _ = state or other_state or ("", None)
            parts.append((f"state {label}", difference))
        return [difference_text(name, part, "the recorded program", "the other") for name, part in parts[:10]]


def _only_in(values: list[Any], other: list[Any]) -> list[Any]:
    names = list(map(digest, values))
    trees = dict(zip(names, values))
    return [trees[name] for name in (Counter(names) - Counter(map(digest, other))).elements()]


class _ComparedProgram(NamedTuple):
    """One of the compared programs. It can run repeatedly, in the calling thread."""

    recording: Recording
    make: Callable[[], Rerun]
    modules: Callable[[], AbstractContextManager[None]]
    allow_calls: bool

    def _run(self, run: Callable[[Rerun], None]) -> tuple[RerunOutcome, _Event]:
        outcome = run_once(self.recording, self.make, run, allow_calls=self.allow_calls)
        if outcome.unanswered is not None:
            return outcome, _Event("call", outcome.unanswered)
        if outcome.error is None:
            return outcome, _NO_ERROR
        causes = tuple((type(cause).__qualname__, _message(cause)) for cause in causes_of(outcome.error))
        facts = self.recording.facts
        return outcome, _Event(causes, describe(located(outcome.error, facts.name, facts.subtask)).split("\n", 1)[0])

    def full_run(self) -> _FullRun:
        outputs: Counter[bytes] = Counter()
        texts: dict[bytes, str] = {}

        def run(rerun: Rerun) -> None:
            for buffers in rerun.run():
                for output in _outputs(rerun, buffers):
                    name = digest(output.tree)
                    outputs[name] += 1
                    texts.setdefault(name, output.text)

        with self.modules():
            return _FullRun(outputs, texts, *self._run(run))

    def step(self, take: Callable[[_StepTrace], None]) -> None:
        """Run the program record by record. Call ``take`` at the start, after each record, and at the end."""
        steps: list[_StepRun] = []

        def run(rerun: Rerun) -> None:
            steps.append(_StepRun(rerun, take))
            steps[0].run()

        with self.modules():
            _, error = self._run(run)
            if error.tree is not None and steps:
                steps[0].report(error)


class _StepRun:
    """A run that processes one record at a time. A record is finished when the task requests more input."""

    def __init__(self, rerun: Rerun, take: Callable[[_StepTrace], None]) -> None:
        self._rerun = rerun
        self._take = take
        self._record: str | None = None
        self._key: list[Any] = []
        self._before: dict[str, str] = {}
        self._sent: list[Buffer] = []

    def run(self) -> None:
        for buffers in self._rerun.run(self._single_records()):
            self._sent += buffers
        self.report()

    def report(self, error: _Event = _NO_ERROR) -> None:
        sent, self._sent = self._sent, []
        outputs = list(_outputs(self._rerun, sent))
        states = dict(self._states())
        shown = {label: shorten(value, _SHOWN) for label, value in states.values()}
        step = ComparisonStep(sorted(output.text for output in outputs), shown, error.text or None)
        trees = {name: (label, tree_of(value)) for name, (label, value) in states.items()}
        key = shorten(self._key[0], _SHOWN) if self._key else None
        sent_trees = [output.tree for output in outputs]
        self._take(_StepTrace(self._record, key, self._before, step, sent_trees, trees, error.tree))

    def _single_records(self) -> Iterator[Any]:
        numbers: defaultdict[tuple[int, int], int] = defaultdict(int)
        for portion in self._rerun.input():
            buffers: list[Any] = [None] if isinstance(portion, Records) else portion
            for buffer in buffers:
                records = portion if buffer is None else decode(buffer.payload)
                if not isinstance(records, Records):
                    yield [_numbered(buffer, buffer.payload, numbers)]
                    continue
                for index in range(len(records)):
                    record = records.slice(index, index + 1)
                    self._end_step()
                    self._begin_step(record, None if buffer is None else buffer.channel)
                    yield record if buffer is None else [_numbered(buffer, encode(record), numbers)]
        self._end_step()
        self._record, self._key, self._before = None, [], {}

    def _begin_step(self, record: Records, channel: int | None) -> None:
        self._record = shorten_record(record.values[0])
        task = self._rerun.task
        self._key = []
        if isinstance(task, MultipleInputStreamTask) and channel is not None:
            with suppress(Exception):
                self._key = task.keys_of(channel, record)
        self._before = {label: shorten(value, _SHOWN) for _, (label, value) in self._states()}

    def _end_step(self) -> None:
        writer = self._rerun.task.writer
        writer.flush()
        self._sent += writer.take()
        self.report()

    def _states(self) -> Iterator[tuple[bytes, tuple[str, Any]]]:
        task = self._rerun.task
        if not self._key or not isinstance(task, MultipleInputStreamTask):
            return
        backend, (key,) = task.backend, self._key
        for namespace in (None, *backend.namespaces.namespaces_of(key)):
            of = "" if namespace is None else f" of {shorten(namespace, 60)}"
            where = tree_of(namespace)
            for name, value in backend.contents(key, namespace).items():
                yield digest(("state", name, where)), (f"{name}{of}", value)
            for name, times in backend.timestamps(key, namespace).items():
                yield digest(("timers", name, where)), (f"timers {name}{of}", times)


def _numbered(buffer: Buffer, payload: bytes, numbers: defaultdict[tuple[int, int], int]) -> Buffer:
    edge = buffer.channel, buffer.target
    numbers[edge] += 1
    return buffer._replace(seq=numbers[edge] - 1, payload=payload)
