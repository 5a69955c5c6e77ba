"""The operator: an input for records, watermarks and status, with an output of the same shape.

Operators of a chain call each other directly (P6). A chain handles records in *runs*: an operator works off a
whole run and hands the outcome on as a run, so a record costs no call per operator beyond the user's function.
Within a run, an operator has therefore seen all records before the next operator sees the first.

A program holds factories: an operator is made where it runs, from its context. Everything of it belongs to the mailbox
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from functools import cached_property, partial
from typing import Any, Protocol

from pillarbox._copies import Copier
from pillarbox._elements import Records
from pillarbox._operators.budgets.budget import Limits
from pillarbox._operators.budgets.ledger import BudgetScope
from pillarbox._operators.frame.captured import Captured
from pillarbox._operators.frame.keyed_run import KeyedRun
from pillarbox._operators.frame.shared_resources import SharedResources
from pillarbox._operators.functions.checkpointed import OperatorStateStore
from pillarbox._operators.functions.metric_group import UserMetrics
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.keys.key_groups import DEFAULT_MAX_PARALLELISM
from pillarbox._time.clock import ProcessingTimeService
from pillarbox._time.internal_timer_service import InternalTimeServiceManager
from pillarbox._time.watermark_generators import WatermarkSink
from pillarbox._types.schema import column_names
from pillarbox._types.type_information import TypeInformation
from pillarbox.mailbox import MailboxExecutor


class RecordInput(Protocol):
    """Takes the records of one stream."""

    def process_records(self, records: Records) -> None: ...


class Input(RecordInput, WatermarkSink, Protocol):
    """Where an operator sends to: the next operator, several, or the record writer."""


class Discard:
    """The output of an operator whose results nobody takes."""

    def process_records(self, records: Records) -> None:
        """Drop it."""

    def process_watermark(self, timestamp: int) -> None:
        """Drop it."""

    def process_status(self, idle: bool) -> None:
        """Drop it."""


class Fanout:
    """Several consumers of one stream: each gets every element.

    Args:
        inputs: the consumers.
        owners: how many of them, from the first on, get records of their own. The others share the given ones.
    """

    def __init__(self, inputs: Sequence[Input], copier: Copier, owners: int) -> None:
        self._inputs = tuple(inputs)
        self._copied = copier.copied
        self._owners, self._sharers = self._inputs[:owners], self._inputs[owners:]

    def process_records(self, records: Records) -> None:
        """Hand on a run."""
        for consumer in self._owners:
            consumer.process_records(records.copied(self._copied))
        for consumer in self._sharers:
            consumer.process_records(records)

    def process_watermark(self, timestamp: int) -> None:
        """Hand on a watermark."""
        for consumer in self._inputs:
            consumer.process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        """Hand on a change between idle and active."""
        for consumer in self._inputs:
            consumer.process_status(idle)


@dataclass(frozen=True)
class KeyedContext:
    """The keyed state and timers that the operator at the head of a keyed task gets; others get none.

    Attributes:
        backend: keyed state.
        timers: the operator's timer services, by name.
    """

    backend: KeyedStateBackend
    timers: InternalTimeServiceManager


@dataclass
class OperatorContext:
    """The task, as an operator sees it.

    Attributes:
        name: the operator's name, for people.
        uid: what its state is stored under.
        subtask: index of the parallel instance. An operator of a source has another index in each epoch.
        parallelism: number of instances; 0 before the first shuffle, where only Spark knows.
        mailbox_executor: posts mails with the operator's priority.
        processing_time_service: clock and timers; callbacks arrive as mails.
        output: receives the records that the operator emits.
        side_outputs: the same by tag, for the side outputs that somebody takes.
        keyed: keyed state and timers, for an operator that says that it needs them (:class:`OperatorFactory`).
        job_parallelism: number of instances of an operator after a shuffle.
        counters: counts that are reported with the task's metrics.
        copier: copies the values that the operator's functions emit.
        max_parallelism: number of key groups.
        epoch: number of the epoch that runs, or ran last.
        operator_state: declares states of the operator itself; None: there is no place for them, before a shuffle.
        batch: whether it runs in batch mode.
        epoch_time: tells the processing time of the epoch (epoch ms), which is the same for all tasks, and when the
            epoch is run again; None: it is not known before a shuffle.
        budget_scope: where the task's budgets are kept.
        shared: what it shares with the other tasks of its vertex that live where it does.
        read_elsewhere: the tags of side outputs that are not in ``side_outputs``, as another query may read them.
        zone: the time zone of naive datetimes; None: they are no points in time.
    """

    name: str
    uid: str
    subtask: int
    parallelism: int
    mailbox_executor: MailboxExecutor
    processing_time_service: ProcessingTimeService
    output: Input = field(default_factory=Discard)
    side_outputs: Mapping[str, Input] = field(default_factory=dict)
    keyed: KeyedContext | None = None
    job_parallelism: int = 1
    counters: dict[str, int] = field(default_factory=dict)
    copier: Copier = field(default_factory=partial(Copier, ""))

    @cached_property
    def metrics(self) -> UserMetrics:
        """The metrics of the operator's functions."""
        return UserMetrics(self.name)

    max_parallelism: int = DEFAULT_MAX_PARALLELISM
    epoch: int = 0
    operator_state: OperatorStateStore | None = None
    batch: bool = False
    epoch_time: Callable[[], int] | None = None
    budget_scope: BudgetScope = field(default_factory=BudgetScope)
    shared: SharedResources = field(default_factory=SharedResources)
    read_elsewhere: Collection[str] = ()
    zone: tzinfo | None = None


class StreamOperator:
    """Base class of operators.

    An operator is made from its context, after the operators that it sends to, and declares its own states and timers
    at that time. Life: ``open`` (the user's function is opened, and declares its states), ``restore_state``,
    records..., ``end_input`` and ``finish`` at the end of bounded input, ``close``. For each epoch,
    ``prepare_snapshot_pre_barrier``, then ``snapshot_state``. An operator takes resources that it must release in
    ``open``: ``close`` is called only after it.

    Attributes:
        by_key: whether batch mode brings all records of one key before the records of the next one, if the operator has
            keyed state. It does not if the operator keeps the state of all keys together.
    """

    by_key: bool = True
    # Of operators that read several streams, or have another input before them.
    _inputs: Sequence[RecordInput] = ()

    def __init__(self, context: OperatorContext) -> None:
        self.context = context

    @property
    def name(self) -> str:
        """The operator's name, for people."""
        return self.context.name

    @property
    def uid(self) -> str:
        """The uid that the operator's state is stored under."""
        return self.context.uid

    @property
    def output(self) -> Input:
        """Receives the records that the operator emits."""
        return self.context.output

    @property
    def side_outputs(self) -> Mapping[str, Input]:
        """The receivers of side outputs, by tag."""
        return self.context.side_outputs

    @property
    def inputs(self) -> Sequence[RecordInput]:
        """The inputs for the records of each stream that the operator reads.

        Watermarks and changes between idle and active go to the operator itself: of several streams, the minimum.
        """
        return self._inputs or (self,)

    def open(self) -> None:
        """Get ready for the first record."""

    def begin_epoch(self) -> None:
        """Begin an epoch of a source: its records may come from another partition than before."""

    def end_key(self) -> None:
        """End the key whose records have come, in batch mode: its timers fire; its state is dropped afterwards."""

    def end_input(self) -> None:
        """Wait for requests under way: bounded input has ended. Timers still work. Flink's ``endInput``."""

    def finish(self) -> None:
        """Emit the last records. No timer fires any more, and no mail is left that could emit something afterwards."""

    def close(self) -> None:
        """Release everything; called once, also after a failure."""

    def process_records(self, records: Records) -> None:
        """Handle a run of records."""
        raise NotImplementedError

    def process_key_by_key(self, run: KeyedRun) -> None:
        """Handle a run in batch mode: the records of a key, then its end, where all that is kept of it is dropped."""
        process = self.inputs[run.way_in].process_records
        if not run.ends:
            process(run.records)
            return
        assert self.context.keyed is not None
        drop_keys = self.context.keyed.backend.drop_keys
        # (Of columns, rows are made once for all keys.)
        records = Records(run.records.values, run.records.timestamps)
        for _, start, end, ended in run.stretches():
            if start < end:
                process(records.slice(start, end))
            if ended:
                self.end_key()
                drop_keys()

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
    def has_close(self) -> bool:
        """Whether the user's function has a ``close()`` of its own, so that it holds what has to be released."""
        return False

    @property
    def next_wake_up(self) -> int | None:
        """When the operator has something to do even without input (epoch ms), or None. Keyed timers are not meant."""
        return None

    def take_event_times(self) -> list[Any] | None:
        """Return the event times that it has given to records since the last call, as a :class:`TaskReport` has them.

        None: it has given none.
        """
        return None

    @property
    def is_unfinished(self) -> bool:
        """Whether requests are under way, of this epoch's input or an earlier one's: the task runs again at once."""
        return False

    @property
    def is_satisfied(self) -> bool:
        """Whether the program is for this operator's output, and that has all that was asked for."""
        return False

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Emit what must go before the barrier."""

    def snapshot_state(self, checkpoint_id: int) -> Any:
        """Return the operator's own state to be written with the epoch, or None. Keyed state is not part of it."""
        return None

    def restore_state(self, state: Any) -> None:
        """Restore the state that ``snapshot_state`` returned; None at the first start."""

    def snapshot_event_time(self) -> dict[str, Any] | None:
        """Return what the operator knows of event time and of silence, except for timers: plain data, or None.

        A task after a shuffle writes it with the epoch, so a task that is created again says what the earlier task
        would have said. Unlike the result of ``snapshot_state``, it is dropped if the program no longer has the
        operator.
        """
        return None

    def restore_event_time(self, state: dict[str, Any] | None) -> None:
        """Take back what ``snapshot_event_time`` returned, before ``restore_state``; None: nothing is known."""

    def initialize_function(self, *, is_restored: bool) -> None:
        """Let the function take its states of the operator itself, after ``restore_state``.

        Args:
            is_restored: whether there is a checkpoint.
        """

    def snapshot_function(self, checkpoint_id: int) -> None:
        """Let the function bring its states of the operator itself up to date, before ``snapshot_state``."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Note that an epoch has been committed."""


@dataclass(frozen=True)
class OperatorFactory:
    """Makes an operator, and describes it before it exists.

    It is part of the program: it is pickled, with the user's function in it. (Flink's ``StreamOperatorFactory``.)

    Attributes:
        make: makes the operator from its context: the class, or a ``partial`` of it, captured.
        keyed: whether it has keyed state or timers: its context has a :class:`KeyedContext`.
        wakes_up: whether something may happen in it while no record comes, before the epoch's end.
        stateful: whether ``snapshot_state`` returns something, which can be kept only after a shuffle.
        result_types: the types of ``Types`` that results are declared to have, or else the names of their columns, by
            the tag of the side output; None as the tag stands for the main output.
        asked_tags: the tags of the side outputs that the program asks for, whether an output takes them or not.
        state_depends_on: what its keyed state depends on, so that the state is of no use if any of it changes:
            phrases, each under the name of its subject. They are noted with the state (``_state/keys/state_note.py``).
        keeps_records: whether all records that it emits are ones that came, as they came: what is known of their
            columns holds after it, too.
        keeps_columns: whether rows that come as columns leave it so, too.
        budgets: what its requests need before they begin.
        sides_are_fixed: whether it keeps records of each of its inputs, so that these may not change places.
    """

    make: Callable[[OperatorContext], StreamOperator]
    keyed: bool = False
    wakes_up: bool = False
    stateful: bool = False
    result_types: Mapping[str | None, TypeInformation[Any] | tuple[str, ...]] = field(default_factory=dict)
    asked_tags: tuple[str, ...] = ()
    state_depends_on: Mapping[str, str] = field(default_factory=dict)
    keeps_records: bool = False
    keeps_columns: bool = False
    sides_are_fixed: bool = False
    budgets: tuple[Limits, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.make, Captured):
            object.__setattr__(self, "make", Captured(self.make))

    def with_result_type(self, tag: str | None, declared: Any) -> OperatorFactory:
        """Return the factory whose results have a declared type, or declared columns; itself, where it is neither."""
        known = declared if isinstance(declared, TypeInformation) else column_names(declared)
        return self if known is None else replace(self, result_types={**self.result_types, tag: known})

    def with_side_output(self, tag: str, declared: Any) -> OperatorFactory:
        """Return the factory for a program that asks for a side output, whose results may have a declared type."""
        return replace(self.with_result_type(tag, declared), asked_tags=tuple(sorted({*self.asked_tags, tag})))
