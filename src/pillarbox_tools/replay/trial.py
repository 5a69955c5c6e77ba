"""A dry run of other code on a recording: both programs get the same input and state, and are compared.

First both run as they are, which tells whether anything differs at all. If so, both run again with one record at a
time, up to the first record after which output or state differ.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pillarbox._elements import Buffer, Records, decode, encode
from pillarbox._errors import describe, shorten, shorten_record
from pillarbox._runtime.failures import located
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox_tools.recording.recording import Recording
from pillarbox_tools.replay.rerun import Rerun
from pillarbox_tools.replay.states import compare_logs

# How much is shown of a value.
_SHOWN = 300


@dataclass(frozen=True)
class Step:
    """What one program made of a record: its output, and the state of the record's key afterwards, as text.

    Attributes:
        error: the error that it ended with; None: there was none.
    """

    output: list[str]
    state: dict[str, str]
    error: str | None = None


@dataclass(frozen=True)
class FirstDifference:
    """The first record after which two programs differ.

    Attributes:
        number: which record of the input it is, from 1; 0: they differ before the first record.
        record: it, as text, and ``key``: its key; None: it has none.
        before: the state of its key before it, in the recorded program, by state.
        then: what the recorded program made of it, and ``now``: the other one.
    """

    number: int
    record: str | None
    key: str | None
    before: dict[str, str]
    then: Step
    now: Step


@dataclass
class Trial:
    """How two programs compare.

    Attributes:
        records: how many records the input has.
        sent: how many records each has sent, the recorded program first.
        keys: how many keys have another state after the epoch.
        first: the first difference; None: there is none.
        only_end: what differs, although no record shows it: what timers, the end of the epoch, or requests made.
    """

    records: int = 0
    sent: tuple[int, int] = (0, 0)
    keys: int = 0
    first: FirstDifference | None = None
    only_end: list[str] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Whether both did the same."""
        return self.first is None and not self.only_end


@dataclass
class _Whole:
    """A run at full speed."""

    outputs: Counter[str]
    error: str | None
    rerun: Rerun

    @property
    def sent(self) -> int:
        return self.outputs.total()


def compare_programs(
    recording: Recording, other: ShippedVertex, clock: int | None = None, *, allow_calls: bool = False
) -> Trial:
    """Run the recorded program and another one on the recorded input, and compare what they do.

    Args:
        other: the other program's vertex.
        clock: what both clocks show all the time (epoch ms); None: what the task's clock showed then.
        allow_calls: whether operators that call services do so; else both programs stop at the first call.
    """
    then, now = (
        _whole(Rerun(recording, shipped, clock, allow_calls=allow_calls), recording) for shipped in (None, other)
    )
    found = Trial(records=then.rerun.task.metrics.records_in, sent=(then.sent, now.sent))
    states = []
    if then.error is None and now.error is None and recording.facts.level:
        states = compare_logs(then.rerun.store, now.rerun.store, recording.facts.subtask)
        found.keys = len({each.owner for each in states})
    if then.outputs == now.outputs and then.error == now.error and not states:
        return found
    one, another = (
        _Stepped(recording, Rerun(recording, each, clock, allow_calls=allow_calls)) for each in (None, other)
    )
    found.first = _first(one, another)
    if found.first is None:
        found.only_end = [
            *(f"the state {each.state} of {each.owner} is {each.now}, and was {each.then}" for each in states[:5]),
            *(f"it does not send {each} any more" for each in list(then.outputs - now.outputs)[:5]),
            *(f"it sends {each}" for each in list(now.outputs - then.outputs)[:5]),
        ]
    return found


def _whole(rerun: Rerun, recording: Recording) -> _Whole:
    outputs: Counter[str] = Counter()
    error: str | None = None
    try:
        for buffers in rerun.run():
            outputs.update(_texts(rerun.outputs(buffers)))
    except Exception as raised:
        error = _told(raised, recording)
    finally:
        rerun.task.cancel()
    return _Whole(outputs, error, rerun)


def _told(error: Exception, recording: Recording) -> str:
    return describe(located(error, recording.facts.name, recording.facts.subtask)).split("\n", 1)[0]


def _texts(outputs: list[tuple[int, Records]]) -> Iterator[str]:
    for place, records in outputs:
        stamps = records.timestamps or [None] * len(records)
        for value, stamp in zip(records.values, stamps):
            at = "" if stamp is None else f" at {stamp}"
            yield f"{shorten_record(value)}{at}{f' by its output {place}' if place else ''}"


def _first(then: _Stepped, now: _Stepped) -> FirstDifference | None:
    """Run both programs in turn, a record at a time, up to the first difference."""
    try:
        for number, (one, another) in enumerate(zip(then, now)):
            if one.step != another.step:
                return FirstDifference(number, one.record, one.key, one.before, one.step, another.step)
    finally:
        then.end()
        now.end()
    return None


class _Look(NamedTuple):
    """What became of a record: as :class:`FirstDifference` has it."""

    record: str | None
    key: str | None
    before: dict[str, str]
    step: Step


class _EndedError(Exception):
    """Nobody wants to see more of the program."""


class _Stepped(threading.Thread):
    """A program that runs in a thread of its own, with one record at a time, and waits while nobody takes a look."""

    def __init__(self, recording: Recording, rerun: Rerun) -> None:
        super().__init__(name="pillarbox replay", daemon=True)
        self._recording = recording
        self._rerun = rerun
        # None: there are no more.
        self._looks: queue.Queue[_Look | None] = queue.Queue(1)
        self._has_ended = threading.Event()
        self._record: str | None = None
        self._key: list[Any] = []
        self._before: dict[str, str] = {}
        self._sent: list[Buffer] = []
        self.start()

    def __iter__(self) -> Iterator[_Look]:
        """Return what became of all before the first record, then of each record, then of what came after the last."""
        return iter(self._looks.get, None)

    def end(self) -> None:
        """End the program."""
        self._has_ended.set()
        while self.is_alive():
            try:
                self._looks.get(timeout=0.1)
            except queue.Empty:
                pass

    def run(self) -> None:
        """Run the epoch."""
        try:
            for buffers in self._rerun.run(self._single_records()):
                self._sent += buffers
            self._look()
        except Exception as error:
            if not self._has_ended.is_set():
                self._look(_told(error, self._recording))
        finally:
            self._rerun.task.cancel()
            self._looks.put(None)

    def _look(self, error: str | None = None) -> None:
        if self._has_ended.is_set():
            raise _EndedError
        sent, self._sent = self._sent, []
        step = Step(sorted(_texts(self._rerun.outputs(sent))), self._state(), error)
        key = shorten(self._key[0], _SHOWN) if self._key else None
        self._looks.put(_Look(self._record, key, self._before, step))

    def _single_records(self) -> Iterator[Any]:
        """Yield the input with one record in each portion.

        The task is done with a portion when it asks for the next one.
        """
        numbers: defaultdict[tuple[int, int], int] = defaultdict(int)
        for portion in self._rerun.input():
            if isinstance(portion, Records):
                yield from self._steps_of(portion, None)
                continue
            for buffer in portion:
                element = decode(buffer.payload)
                if not isinstance(element, Records):
                    yield [_numbered(buffer, buffer.payload, numbers)]
                    continue
                for one in self._steps_of(element, buffer.channel):
                    yield [_numbered(buffer, encode(one), numbers)]
        self._end_step()
        self._record, self._key, self._before = None, [], {}

    def _steps_of(self, records: Records, channel: int | None) -> Iterator[Records]:
        """Yield a run of records one by one."""
        for place in range(len(records)):
            one = records.slice(place, place + 1)
            self._end_step()
            self._begin_step(one, channel)
            yield one

    def _begin_step(self, one: Records, channel: int | None) -> None:
        self._record = shorten_record(one.values[0])
        task = self._rerun.task
        self._key = []
        if isinstance(task, MultipleInputStreamTask) and channel is not None:
            try:
                self._key = task.keys_of(channel, one)
            except Exception:
                pass  # the operator asks for the key as well, and raises the error
        self._before = self._state()

    def _end_step(self) -> None:
        writer = self._rerun.task.writer
        writer.flush()
        self._sent += writer.take()
        self._look()

    def _state(self) -> dict[str, str]:
        """Return the state of the current record's key, as text."""
        task = self._rerun.task
        if not self._key or not isinstance(task, MultipleInputStreamTask):
            return {}
        backend, (key,) = task.backend, self._key
        found: dict[str, str] = {}
        for namespace in (None, *backend.namespaces.namespaces_of(key)):
            of = "" if namespace is None else f" of {shorten(namespace, 60)}"
            for name, value in backend.contents(key, namespace).items():
                found[f"{name}{of}"] = shorten(value, _SHOWN)
            for name, times in backend.timestamps(key, namespace).items():
                found[f"timers {name}{of}"] = shorten(times, _SHOWN)
        return found


def _numbered(buffer: Buffer, payload: bytes, numbers: defaultdict[tuple[int, int], int]) -> Buffer:
    """Return a buffer with another payload, and the number that is its turn in its channel."""
    place = buffer.channel, buffer.target
    numbers[place] += 1
    return buffer._replace(seq=numbers[place] - 1, payload=payload)
