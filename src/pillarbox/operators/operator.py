"""What every operator is: an input for records, watermarks and status, with an output of the same shape.

Operators of a chain call each other directly (P6). A chain handles records in *runs*: an operator works off a
whole run and hands the outcome on as a run, so a record costs no call per operator beyond the user's function.
Within a run, an operator has therefore seen all records before the next operator sees the first.
Everything here belongs to the mailbox thread.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import length_hint
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from pillarbox.elements import Records
from pillarbox.errors import ProgramError, raise_from_user_code, shorten, shorten_record
from pillarbox.mailbox import MailboxExecutor
from pillarbox.operators.functions import Function, OutputTag, RuntimeContext
from pillarbox.state import KeyedStateBackend
from pillarbox.time import ProcessingTimeService

if TYPE_CHECKING:
    from pillarbox.operators.keys import Keying
    from pillarbox.time.internal_timer_service import InternalTimeServiceManager

__all__ = [
    "Collector",
    "Discard",
    "Fanout",
    "FunctionOperator",
    "Input",
    "OperatorContext",
    "RecordInput",
    "StreamOperator",
]

# A collector hands on what it holds at this size, so that one run's fan-out never gathers in memory.
RUN_LIMIT = 8192


class RecordInput(Protocol):
    """Takes the records of one stream."""

    def process_records(self, records: Records) -> None: ...


class Input(RecordInput, Protocol):
    """Where an operator sends to: the next operator, several, or the record writer."""

    def process_watermark(self, timestamp: int) -> None: ...

    def process_status(self, idle: bool) -> None: ...


class Discard:
    """The output of an operator whose results nobody takes."""

    def process_records(self, records: Records) -> None:
        """Drop it."""

    def process_watermark(self, timestamp: int) -> None:
        """Drop it."""

    def process_status(self, idle: bool) -> None:
        """Drop it."""


class Fanout:
    """Several consumers of one stream: each gets every element."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._inputs = tuple(inputs)

    def process_records(self, records: Records) -> None:
        """Hand on a run."""
        for consumer in self._inputs:
            consumer.process_records(records)

    def process_watermark(self, timestamp: int) -> None:
        """Hand on a watermark."""
        for consumer in self._inputs:
            consumer.process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        """Hand on a change between idle and active."""
        for consumer in self._inputs:
            consumer.process_status(idle)


@dataclass
class OperatorContext:
    """What the task gives an operator.

    Attributes:
        name: the operator's name, for people.
        uid: what its state is stored under.
        subtask: index of the parallel instance.
        parallelism: number of instances; 0 before the first shuffle, where only Spark knows.
        mailbox_executor: posts mails with the operator's priority.
        processing_time_service: clock and timers; callbacks arrive as mails.
        backend: keyed state, at the head of a keyed vertex.
        time_services: timers, at the head of a keyed vertex.
        counters: counts that are reported with the task's metrics.
    """

    name: str
    uid: str
    subtask: int
    parallelism: int
    mailbox_executor: MailboxExecutor
    processing_time_service: ProcessingTimeService
    backend: KeyedStateBackend | None = None
    time_services: InternalTimeServiceManager | None = None
    counters: dict[str, int] = field(default_factory=dict)


class StreamOperator:
    """Base class of operators.

    Life: ``setup``, ``open`` (states are declared here), state restored, records..., ``end_input`` and
    ``finish`` at the end of bounded input, ``close``.
    ``prepare_snapshot_pre_barrier``, then ``snapshot_state``, for each epoch.

    Attributes:
        wakes_up: whether something may happen in it while no record comes, before the epoch's end.
        stateful: whether ``snapshot_state`` gives something, which is kept behind a shuffle only.
    """

    wakes_up = False
    stateful = False

    def __init__(self, name: str, uid: str = "") -> None:
        self.name = name
        self.uid = uid
        self.output: Input = Discard()
        self.side_outputs: dict[str, Input] = {}
        self.context: OperatorContext

    @property
    def inputs(self) -> Sequence[RecordInput]:
        """What takes the records of each stream that the operator reads. Watermarks and changes between idle and active
        are the operator's own: of several streams, the least watermark."""
        return (self,)

    def setup(self, context: OperatorContext, output: Input, side_outputs: dict[str, Input]) -> None:
        """Take the context and the consumers."""
        self.context = context
        self.output = output
        self.side_outputs = side_outputs

    def open(self) -> None:
        """Get ready for the first record."""

    def begin_epoch(self) -> None:
        """Begin an epoch of a source: its records may come from another partition than before."""

    def end_input(self) -> None:
        """Wait for what is under way: bounded input has ended. Timers are still at work. (Flink's ``endInput``.)"""

    def finish(self) -> None:
        """Emit what is left. No timer fires any more, and no mail is left that could emit something afterwards."""

    def close(self) -> None:
        """Release everything; called once, also after a failure."""

    def process_records(self, records: Records) -> None:
        """Handle a run of records."""
        raise NotImplementedError

    def process_watermark(self, timestamp: int) -> None:
        """Advance the operator's event time, then hand the watermark on."""
        self.output.process_watermark(timestamp)
        for side in self.side_outputs.values():
            side.process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        """Hand on a change between idle and active."""
        self.output.process_status(idle)
        for side in self.side_outputs.values():
            side.process_status(idle)

    @property
    def next_wake_up(self) -> int | None:
        """When the operator has something to do even without input (epoch ms), or None. Keyed timers are not meant."""
        return None

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Emit what must go before the barrier."""

    def snapshot_state(self, checkpoint_id: int) -> Any:
        """Return the operator's own state to be written with the epoch, or None. Keyed state is not part of it."""
        return None

    def restore_state(self, state: Any) -> None:
        """Take back what ``snapshot_state`` gave; None at the first start."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """An epoch has been committed."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """An epoch has failed."""

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        """A committed epoch is no longer what a restart goes back to."""


class FunctionOperator(StreamOperator):
    """An operator around one user function: a :class:`Function`, or any callable.

    Args:
        keying: the keys under which the function is called; None: it has none, and no keyed state.

    Attributes:
        keyed: whether it calls the function under the key of the record.
    """

    def __init__(self, name: str, function: Any, method: str, uid: str = "", keying: Keying | None = None) -> None:
        super().__init__(name, uid)
        self.function = function
        self.keying = keying
        self.keyed: bool = keying is not None
        self._method = method

    def open(self) -> None:
        """Open the user's function."""
        if isinstance(self.function, Function):
            context = RuntimeContext(self.context, keyed=self.keyed)
            opening = with_context(self, "open()", self.function.open, context)
            if inspect.iscoroutine(opening):
                opening.close()
                raise ProgramError(
                    f"operator {self.name!r}: open() is an async def, which only functions of map_async() and"
                    " AsyncDataStream may have"
                )

    def close(self) -> None:
        """Close the user's function."""
        if isinstance(self.function, Function):
            with_context(self, "close()", self.function.close)

    @property
    def call(self) -> Callable[..., Any]:
        """The callable that handles a record."""
        # By its type, not by what it has: a class or callable of another kind may well have a method of this name.
        call: Any = self.function
        if isinstance(call, Function):
            call = getattr(call, self._method, call)
        return call  # type: ignore[no-any-return]

    def under_keys(self, records: Records, pending: Iterator[Any]) -> Iterator[Any]:
        """Return ``pending``, an iterator over a run's values; taking one makes its key the current one.

        A function that declared no state does without: it cannot tell.
        """
        backend = self.context.backend
        if self.keying is None or backend is None or not backend.is_declared:
            return pending
        return _under_keys(backend, self.keying.keys_of(records), pending)

    def failed(self, values: Sequence[Any], pending: Iterator[Any], error: BaseException) -> NoReturn:
        """Raise the error that names operator, key and record, when user code raised in a pass over ``values``.

        Args:
            pending: the iterator over ``values``, at which the pass stopped.
        """
        place: dict[str, Any] = {"operator": self.name, "subtask": self.context.subtask}
        if self.keyed and self.context.backend is not None:
            place["key"] = self.context.backend.key
        raise_at_record(error, f"operator {self.name!r}", values, pending, **place)


def raise_at_record(
    error: BaseException, where: str, values: Sequence[Any], pending: Iterator[Any], **place: Any
) -> NoReturn:
    """Raise the error that names ``where`` and the record, when user code raised in a pass over ``values``."""
    position = len(values) - length_hint(pending) - 1
    at = where + " failed"
    if 0 <= position < len(values):
        place["record"] = values[position]
        at += f" at the record {shorten_record(values[position])}"
    raise_from_user_code(error, at, **place)


def with_context(operator: StreamOperator, what: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call user code; an exception comes out as an error that names the operator and ``what`` was done."""
    try:
        return function(*args)
    except BaseException as error:
        raise_from_user_code(
            error,
            f"operator {operator.name!r} failed in {what}",
            operator=operator.name,
            subtask=operator.context.subtask,
        )


def _under_keys(backend: KeyedStateBackend, keys: Iterable[Any], pending: Iterator[Any]) -> Iterator[Any]:
    set_current_key = backend.set_current_key
    for value, key in zip(pending, keys):
        set_current_key(key)
        yield value


# Values of these types stay as they are: what most functions emit, and the quickest to tell.
IMMUTABLE = frozenset({int, float, str, bool, bytes, type(None)})
_CONTAINERS = frozenset({list, dict, set, bytearray})


def settled(value: Any) -> Any:
    """Return a value that stays as it is when the function goes on changing what it has emitted.

    Records are handled in runs: what is emitted now is looked at later. So lists, dictionaries and sets, also as fields
    of a tuple, are copied. Objects of other kinds belong to the stream once they are emitted.

    Only what has no hash can be of that kind, and asking for the hash of a tuple is many times quicker than looking
    into it: the hot loops do that in line, and come here only for the rest.
    """
    kind = type(value)
    if kind is list and IMMUTABLE.issuperset(map(type, value)):
        return value.copy()
    if kind is dict and IMMUTABLE.issuperset(map(type, value.values())):
        return value.copy()
    return copy.deepcopy(value) if _may_change(value) else value


def _may_change(value: Any) -> bool:
    return type(value) in _CONTAINERS or (isinstance(value, tuple) and any(map(_may_change, value)))


# What functions that emit any number of values return, nearly all of them.
USUAL_RESULTS = frozenset({GeneratorType, list, tuple})


def check_results(results: Any) -> None:
    """Refuse what is one value and not the values to emit.

    Raises:
        TypeError: it is a string, bytes, a mapping, a row, a coroutine, or nothing that can be iterated over.
    """
    if inspect.iscoroutine(results):
        results.close()  # it would complain that nobody waited for it
        raise TypeError(
            f"the function returned {shorten(results)}: nobody would wait for it; use map_async() or AsyncDataStream"
            " for what has to wait"
        )
    kind = type(results)
    if isinstance(results, (str, bytes, bytearray, Mapping)) or hasattr(kind, "_fields") or not _can_be_iterated(kind):
        raise TypeError(
            f"the function returned {shorten(results)}, which is one value, not the values to emit: yield it, or return"
            " a list of values"
        )


def _can_be_iterated(kind: type) -> bool:
    return hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")


class Collector:
    """Gathers what a process function emits into runs, for the main output and the side outputs."""

    __slots__ = ("_operator", "_side", "timestamps", "values")

    def __init__(self, operator: StreamOperator) -> None:
        self._operator = operator
        self.values: list[Any] = []
        self.timestamps: list[int | None] = []
        self._side: dict[str, tuple[list[Any], list[int | None]]] = {}

    def collect(self, results: Iterable[Any], timestamp: int | None) -> None:
        """Take the results of one call, all with one timestamp; ``(OutputTag, value)`` goes to a side output.

        Raises:
            TypeError: it is one value, such as a string, and not the values to emit: see :func:`check_results`.
        """
        values = self.values
        timestamps = self.timestamps
        if type(results) not in USUAL_RESULTS:
            check_results(results)
        for result in results:
            if type(result) is tuple and len(result) == 2 and type(result[0]) is OutputTag:
                self.collect_side(result[0], result[1], timestamp)
            else:
                if type(result) not in IMMUTABLE:
                    try:
                        hash(result)
                    except Exception:
                        result = settled(result)  # noqa: PLW2901
                values.append(result)
                timestamps.append(timestamp)
        if len(values) >= RUN_LIMIT:
            self.flush()

    def collect_side(self, tag: OutputTag, value: Any, timestamp: int | None) -> None:
        """Take one value for a side output; without consumers it is dropped.

        Raises:
            ProgramError: the tag is none.
        """
        if type(tag) is not OutputTag and not isinstance(tag, OutputTag):
            raise ProgramError(
                f"operator {self._operator.name!r}: a side output is named by an OutputTag, not by {shorten(tag)}:"
                " make one, tag = OutputTag('...'), and use it in ctx.output(tag, value) and get_side_output(tag)"
            )
        if tag.tag_id not in self._operator.side_outputs:
            return
        values, timestamps = self._side.setdefault(tag.tag_id, ([], []))
        values.append(settled(value))
        timestamps.append(timestamp)
        if len(values) >= RUN_LIMIT:
            del self._side[tag.tag_id]
            self._operator.side_outputs[tag.tag_id].process_records(Records(values, timestamps))

    def flush(self) -> None:
        """Hand everything on."""
        if self.values:
            values, timestamps = self.values, self.timestamps
            self.values, self.timestamps = [], []
            self._operator.output.process_records(Records(values, timestamps))
        if self._side:
            side, self._side = self._side, {}
            for tag_id, (values, timestamps) in side.items():
                self._operator.side_outputs[tag_id].process_records(Records(values, timestamps))
