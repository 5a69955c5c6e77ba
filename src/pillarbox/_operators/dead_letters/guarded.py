"""``GuardedOperator``, which emits dead letters for another operator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any

from pillarbox._elements.records import Records
from pillarbox._errors import OperatorError, ProgramError
from pillarbox._operators.dead_letters.dead_letter import DeadLetters, OnError, cause_of, check_on_error
from pillarbox._operators.frame.collector import RUN_LIMIT
from pillarbox._operators.frame.function_operator import FunctionOperator
from pillarbox._operators.frame.inputs import OperatorInput
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import Input, OperatorContext, OperatorFactory, RecordInput, StreamOperator
from pillarbox._operators.functions.checkpointed import CheckpointedFunction, no_undo
from pillarbox._operators.functions.contexts import TimeDomain
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.undo import Undo
from pillarbox._time.internal_timer_service import Triggerable

# Methods that do not concern records, timers or output.
_DELEGATED = (
    "open",
    "begin_epoch",
    "close",
    "process_watermark",
    "process_status",
    "snapshot_state",
    "restore_state",
    "snapshot_event_time",
    "restore_event_time",
    "notify_checkpoint_complete",
)


def guarded(
    factory: OperatorFactory,
    on_error: OnError,
    method: str,
    *,
    keying: Keying | None = None,
    unchanged: Collection[str] = (),
) -> OperatorFactory:
    """Return the factory or, if the program requests dead letters, a factory of a :class:`GuardedOperator`.

    Arguments are as in that class. To guard an operator, ``factory`` must create a :class:`FunctionOperator`.
    """
    check_on_error(on_error, method)
    if not isinstance(on_error, OutputTag):
        return factory
    make = partial(GuardedOperator, make=factory.make, tag=on_error, keying=keying, unchanged=unchanged)
    return replace(factory, make=make)


class GuardedOperator(StreamOperator):
    """Wraps an operator that calls one user function. If the function raises, emits a dead letter.

    The wrapped operator has the same context, but its output is held back until the function has returned.

    Args:
        keying: computes the keys of records if the wrapped operator does not.
        unchanged: names of states that need no undoing, because the function cannot change them.

    Raises:
        ProgramError: the function has operator state, whose changes cannot be undone.
    """

    def __init__(
        self,
        context: OperatorContext,
        make: Callable[[OperatorContext], StreamOperator],
        tag: OutputTag[Any],
        *,
        keying: Keying | None = None,
        unchanged: Collection[str] = (),
        has_key: bool = True,
    ) -> None:
        super().__init__(context)
        self._sides = _HeldOutputs(context.side_outputs)
        self._main = _Held(context.output)
        context.output = self._main
        context.side_outputs = self._sides
        self._letters = DeadLetters(context, tag, self._sides, has_key=has_key)
        self._backend: KeyedStateBackend | None = None
        self._undo: Undo | None = None
        if context.keyed is not None:
            self._backend = context.keyed.backend
            self._undo = self._backend.allow_undo(unchanged)
        operator = make(context)
        assert isinstance(operator, FunctionOperator), "only operators with a function are guarded"
        if isinstance(operator.function, CheckpointedFunction):
            raise ProgramError(no_undo(context.name))
        self._guarded: FunctionOperator = operator
        self.by_key: bool = operator.by_key
        if context.keyed is not None:
            for service in context.keyed.timers.services():
                service.triggerable = _GuardedTimers(self, service.triggerable)
        self._inputs = [self._guarded_input(guarded_input, keying) for guarded_input in operator.inputs]
        for name in _DELEGATED:
            setattr(self, name, getattr(operator, name))

    def _guarded_input(self, guarded: RecordInput, keying: Keying | None) -> OperatorInput:
        keying = getattr(guarded, "keying", None) or keying
        return OperatorInput(partial(self.process_run, keying=keying, process=guarded.process_records), keying)

    def process_records(self, records: Records) -> None:
        (only,) = self._inputs
        only.process_records(records)

    def process_run(self, records: Records, keying: Keying | None, process: Callable[[Records], None]) -> None:
        values = records.values
        # An error of the key function fails the task.
        keys: Iterable[Any] = repeat(None) if keying is None else keying.keys_of(records)
        stamps: Iterable[int | None] = repeat(None) if records.timestamps is None else records.timestamps
        undo, copied = self._undo, self.context.copier.copied
        for value, key, stamp in zip(values, keys, stamps):
            if undo is not None:
                undo.begin()
            record = copied(value)
            marks = self._marks()
            try:
                process(Records([value], None if stamp is None else [stamp]))
            except OperatorError as error:
                cause = cause_of(error)
                self._undo_call(marks)
                self._letters.write(cause, record, key, stamp)
            if len(self._main) >= RUN_LIMIT:
                self.emit()
        if undo is not None:
            undo.end()
        self.emit()

    def fire(self, call: Callable[[int, Any], None], timestamp: int, namespace: Any, timer: TimeDomain) -> None:
        """Call a timer's handler for the current key. The timer is removed even if the handler raises."""
        assert self._backend is not None
        key = self._backend.key
        if self._undo is not None:
            self._undo.begin()
        marks = self._marks()
        try:
            call(timestamp, namespace)
            self._guarded.flush()
        except OperatorError as error:
            cause = cause_of(error)
            self._undo_call(marks)
            self._letters.write(cause, None, key, timestamp, timer)
        if self._undo is not None:
            self._undo.end()
        self.emit_timers()

    def emit_timers(self) -> None:
        """Emit timers' results if there are many. Others are emitted after the last timer."""
        if len(self._main) >= RUN_LIMIT:
            self.emit()

    def _marks(self) -> list[tuple[_Held, int]]:
        return [(held, len(held)) for held in (self._main, *self._sides.held)]

    def _undo_call(self, marks: list[tuple[_Held, int]], mark: int = 0) -> None:
        self._guarded.flush()
        lengths = dict(marks)
        for held in (self._main, *self._sides.held):
            held.cut(lengths.get(held, 0))
        if self._undo is not None:
            self._undo.restore(mark)

    def emit(self) -> None:
        self._main.release()
        for held in self._sides.held:
            held.release()

    def end_key(self) -> None:
        self._guarded.end_key()
        self.emit()

    def end_input(self) -> None:
        self._guarded.end_input()
        self.emit()

    def finish(self) -> None:
        self._guarded.finish()
        self.emit()

    @property
    def has_close(self) -> bool:
        return self._guarded.has_close

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        self._guarded.prepare_snapshot_pre_barrier(checkpoint_id)
        self.emit()


class _GuardedTimers:
    def __init__(self, guard: GuardedOperator, triggerable: Triggerable) -> None:
        self._guard = guard
        self._triggerable = triggerable

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        self._guard.fire(self._triggerable.on_event_time, timestamp, namespace, TimeDomain.EVENT_TIME)

    def on_processing_time(self, timestamp: int, namespace: Any) -> None:
        self._guard.fire(self._triggerable.on_processing_time, timestamp, namespace, TimeDomain.PROCESSING_TIME)

    def flush(self) -> None:
        self._guard.emit()


class _Held:
    """An output that holds records back until :meth:`release`. ``len()`` counts them."""

    def __init__(self, output: Input) -> None:
        self._output = output
        self._values: list[Any] = []
        self._stamps: list[int | None] = []

    def __len__(self) -> int:
        return len(self._values)

    def process_records(self, records: Records) -> None:
        self._values += records.values
        self._stamps += [None] * len(records) if records.timestamps is None else records.timestamps

    def cut(self, length: int) -> None:
        del self._values[length:], self._stamps[length:]

    def release(self) -> None:
        if self._values:
            values, stamps = self._values, self._stamps
            self._values, self._stamps = [], []
            self._output.process_records(Records(values, stamps if any(map(_is_given, stamps)) else None))

    def process_watermark(self, timestamp: int) -> None:
        self.release()
        self._output.process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        self.release()
        self._output.process_status(idle)


def _is_given(stamp: int | None) -> bool:
    return stamp is not None


class _HeldOutputs(Mapping[str, Input]):
    def __init__(self, outputs: Mapping[str, Input]) -> None:
        self._outputs = outputs
        self._used: dict[str, _Held] = {}

    @property
    def held(self) -> Iterable[_Held]:
        return self._used.values()

    def __contains__(self, tag_id: object) -> bool:
        return tag_id in self._outputs

    def __getitem__(self, tag_id: str) -> _Held:
        held = self._used.get(tag_id)
        if held is None:
            held = self._used[tag_id] = _Held(self._outputs[tag_id])
        return held

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)
