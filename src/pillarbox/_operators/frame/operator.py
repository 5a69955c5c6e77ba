"""The operator: an input for records, watermarks and status, with an output of the same shape.

Operators of a chain call each other directly (P6). A chain processes records in *runs*: an operator processes a whole
run and emits the results as a run, so a record costs no call per operator beyond the user's function. Within a run, an
operator has therefore seen all records before the next operator sees the first.

A program holds factories: an operator is made where it runs, from its context. It belongs to the mailbox thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

from pillarbox._copies import Copier
from pillarbox._elements import Records
from pillarbox._errors import CheckpointMismatchError
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
    """Receives the records of one stream."""

    def process_records(self, records: Records) -> None: ...


class Input(RecordInput, WatermarkSink, Protocol):
    """The receiver of an operator's output: the next operator, several, or the record writer."""


class Discard:
    """The output of an operator without consumers."""

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
        owners: the first so many consumers get copies. The others share the original records.
    """

    def __init__(self, inputs: Sequence[Input], copier: Copier, owners: int) -> None:
        self._inputs = tuple(inputs)
        self._copied = copier.copied
        self._owners, self._sharers = self._inputs[:owners], self._inputs[owners:]

    def process_records(self, records: Records) -> None:
        """Forward a run."""
        for consumer in self._owners:
            consumer.process_records(records.copied(self._copied))
        for consumer in self._sharers:
            consumer.process_records(records)

    def process_watermark(self, timestamp: int) -> None:
        """Forward a watermark."""
        for consumer in self._inputs:
            consumer.process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        """Forward a change between idle and active."""
        for consumer in self._inputs:
            consumer.process_status(idle)


class MicroBatch(NamedTuple):
    """The micro-batch that an epoch belongs to, for operators that follow Spark's time.

    Attributes:
        number: its id, or None in a batch query.
        time: its time (epoch ms).
        watermark: Spark's watermark (epoch ms), or -1.
    """

    number: int | None
    time: int
    watermark: int


@dataclass(frozen=True)
class SparkTime:
    """Arguments of the Spark operator around an operator that follows Spark's time.

    Attributes:
        output_mode: Spark's name of the output mode.
        time_mode: ``None``, ``ProcessingTime`` or ``EventTime``.
        event_time_column: the column that is the event time of the results, or "".
    """

    output_mode: str
    time_mode: str
    event_time_column: str = ""


@dataclass(frozen=True)
class KeyedContext:
    """Keyed state and timers. Only for the operator at the head of a keyed task.

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
        uid: the name of its stored state.
        subtask: index of the parallel instance. An operator of a source has another index in each epoch.
        parallelism: number of instances; 0 before the first shuffle, where only Spark knows.
        mailbox_executor: posts mails with the operator's priority.
        processing_time_service: clock and timers; callbacks arrive as mails.
        output: receives the records that the operator emits.
        side_outputs: the same by tag, for connected side outputs.
        keyed: keyed state and timers, for a keyed :class:`OperatorFactory`.
        job_parallelism: number of instances of an operator after a shuffle.
        counters: counts that are reported with the task's metrics.
        copier: copies the values that the operator's functions emit.
        max_parallelism: number of key groups.
        epoch: number of the epoch that runs, or ran last.
        micro_batch: Spark's micro-batch that runs, or ran last, or None if unknown, as in a replay.
        operator_state: declares states of the operator itself, or None before a shuffle, which cannot store them.
        batch: whether it runs in batch mode.
        epoch_time: returns the processing time of the epoch (epoch ms), which is the same for all tasks and
            repetitions; None if unknown, before a shuffle.
        budget_scope: where the task's budgets are kept.
        shared: resources shared with the other tasks of its vertex in the same place.
        read_elsewhere: the tags of side outputs that are not in ``side_outputs``, as another query may read them.
        zone: the time zone of naive datetimes, or None if they are not points in time.
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
    micro_batch: MicroBatch | None = None
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
    # Inputs of operators with several streams, or with a wrapper before them.
    _inputs: Sequence[RecordInput] = ()

    def __init__(self, context: OperatorContext) -> None:
        self.context = context

    @property
    def name(self) -> str:
        """The operator's display name."""
        return self.context.name

    @property
    def uid(self) -> str:
        """The uid that the operator's state is stored under."""
        return self.context.uid

    @property
    def output(self) -> Input:
        """Receives the emitted records."""
        return self.context.output

    @property
    def side_outputs(self) -> Mapping[str, Input]:
        """The receivers of side outputs, by tag."""
        return self.context.side_outputs

    @property
    def inputs(self) -> Sequence[RecordInput]:
        """One input for each stream that the operator reads.

        Watermarks and status changes go to the operator itself: with several streams, their minimum.
        """
        return self._inputs or (self,)

    def open(self) -> None:
        """Prepare for the first record."""

    def begin_epoch(self) -> None:
        """Begin an epoch of a source, whose records may be of another partition than before."""

    def end_key(self) -> None:
        """End a key in batch mode: fire its timers. Its state is dropped afterwards."""

    def end_input(self) -> None:
        """Await pending requests: bounded input has ended. Timers still work. Flink's ``endInput``."""

    def finish(self) -> None:
        """Emit the last records. No timer fires and no mail runs afterwards."""

    def close(self) -> None:
        """Release everything. Called once, also after a failure."""

    def process_records(self, records: Records) -> None:
        """Process a run of records."""
        raise NotImplementedError

    def process_key_by_key(self, run: KeyedRun) -> None:
        """Process a run in batch mode: a key's records, then its end, which drops its state."""
        process = self.inputs[run.way_in].process_records
        if not run.ends:
            process(run.records)
            return
        assert self.context.keyed is not None
        drop_keys = self.context.keyed.backend.drop_keys
        # Make rows of columns once, for all keys.
        records = Records(run.records.values, run.records.timestamps)
        for _, start, end, ended in run.stretches():
            if start < end:
                process(records.slice(start, end))
            if ended:
                self.end_key()
                drop_keys()

    def process_watermark(self, timestamp: int) -> None:
        """Advance the operator's event time, then emit the watermark."""
        self.output.process_watermark(timestamp)
        for side in self.side_outputs.values():
            side.process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        """Forward a change between idle and active."""
        self.output.process_status(idle)
        for side in self.side_outputs.values():
            side.process_status(idle)

    @property
    def has_close(self) -> bool:
        """Whether the user's function overrides ``close()`` and so may hold resources."""
        return False

    @property
    def next_wake_up(self) -> int | None:
        """When the operator must run even without input (epoch ms), or None. Does not include keyed timers."""
        return None

    def take_event_times(self) -> list[Any] | None:
        """Return the event times given to records since the last call, for a :class:`TaskReport`, or None."""
        return None

    @property
    def is_unfinished(self) -> bool:
        """Whether requests of any epoch are pending: the task then runs again at once."""
        return False

    @property
    def is_satisfied(self) -> bool:
        """Whether the program has all the output that it asked this operator for."""
        return False

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Emit records that belong before the barrier."""

    def snapshot_state(self, checkpoint_id: int) -> Any:
        """Return the operator's own state for the epoch, or None. Excludes keyed state."""
        return None

    def resume_after_snapshot(self) -> None:
        """Continue after the epoch's state has been written."""

    def restore_state(self, state: Any) -> None:
        """Restore the result of ``snapshot_state``; None at the first start.

        Raises:
            CheckpointMismatchError: the state belongs to another kind of operator.
        """
        if state is not None:
            raise CheckpointMismatchError(
                f"the checkpoint holds elements that operator {self.name!r} had not finished, and the program has"
                " another kind of operator there: run the program that wrote it until it has finished them, or start"
                " from a new checkpoint"
            )

    def snapshot_event_time(self) -> dict[str, Any] | None:
        """Return the operator's event time and idleness without timers, as plain data, or None.

        A task after a shuffle writes it with the epoch, so that a new task continues the earlier one's watermarks.
        Unlike the result of ``snapshot_state``, it is dropped if the program no longer has the operator.
        """
        return None

    def restore_event_time(self, state: dict[str, Any] | None) -> None:
        """Restore the result of ``snapshot_event_time``, before ``restore_state``."""

    def initialize_function(self, *, is_restored: bool) -> None:
        """Call the function's ``initialize_state``, after ``restore_state``.

        Args:
            is_restored: whether there is a checkpoint.
        """

    def snapshot_function(self, checkpoint_id: int) -> None:
        """Call the function's ``snapshot_state``, before the operator's."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """React to an epoch's commit."""


@dataclass(frozen=True)
class OperatorFactory:
    """Makes an operator, and describes it beforehand.

    Part of the program: pickled with the user's function. (Flink's ``StreamOperatorFactory``.)

    Attributes:
        make: makes the operator from its context: its class, or a ``partial`` of it, captured.
        keyed: whether it has keyed state or timers: its context then has a :class:`KeyedContext`.
        wakes_up: whether it may act during an epoch without a record.
        stateful: whether ``snapshot_state`` returns a state, which needs a shuffle before the operator.
        result_types: declared types of results, from ``Types``, or their column names, by side output's tag; the main
            output's tag is None.
        asked_tags: tags of the side outputs that the program reads, connected or not.
        state_depends_on: conditions of its keyed state, which is useless if one of them changes: phrases by subject.
            Stored with the state (``_state/keys/state_note.py``).
        keeps_records: whether it emits its input records unchanged, so that facts about their columns still hold.
        keeps_columns: whether columnar input stays columnar.
        budgets: the budgets that its requests are charged to.
        sides_are_fixed: whether it keeps records of each input, so that inputs must not change places.
        spark_time: arguments of Spark's operator around an operator that follows Spark's time; None for others.
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
    spark_time: SparkTime | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.make, Captured):
            object.__setattr__(self, "make", Captured(self.make))

    def with_result_type(self, tag: str | None, declared: Any) -> OperatorFactory:
        """Return a factory whose results have a declared type or declared columns; itself without either."""
        result_type = declared if isinstance(declared, TypeInformation) else column_names(declared)
        return self if result_type is None else replace(self, result_types={**self.result_types, tag: result_type})

    def with_side_output(self, tag: str, declared: Any) -> OperatorFactory:
        """Return a factory with a side output that the program reads, whose results may have a declared type."""
        return replace(self.with_result_type(tag, declared), asked_tags=tuple(sorted({*self.asked_tags, tag})))
