"""The operator: it receives records, watermarks and status changes, and sends them to an output of the same interface.

Operators of a chain call each other directly, with *runs* of records. The user's function is the only call per record
in each operator. A factory creates an operator where it runs; the operator belongs to the mailbox thread.
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
from pillarbox._time.watermark_generators import WatermarkReceiver
from pillarbox._types.schema import column_names
from pillarbox._types.type_information import TypeInformation
from pillarbox.mailbox import MailboxExecutor


class RecordInput(Protocol):
    """Receives the records of one stream."""

    def process_records(self, records: Records) -> None: ...


class Input(RecordInput, WatermarkReceiver, Protocol):
    """The receiver of an operator's output."""


class Discard:
    """The output of an operator without consumers."""

    def process_records(self, records: Records) -> None: ...

    def process_watermark(self, timestamp: int) -> None: ...

    def process_status(self, idle: bool) -> None: ...


class Fanout:
    """Sends every element to several consumers.

    Args:
        owners: how many of the first consumers receive copies. The others share the original records.
    """

    def __init__(self, inputs: Sequence[Input], copier: Copier, owners: int) -> None:
        self._inputs = tuple(inputs)
        self._copied = copier.copied
        self._owners, self._sharers = self._inputs[:owners], self._inputs[owners:]

    def process_records(self, records: Records) -> None:
        for consumer in self._owners:
            consumer.process_records(records.copied(self._copied))
        for consumer in self._sharers:
            consumer.process_records(records)

    def process_watermark(self, timestamp: int) -> None:
        for consumer in self._inputs:
            consumer.process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        for consumer in self._inputs:
            consumer.process_status(idle)


class MicroBatch(NamedTuple):
    """An epoch's micro-batch, for operators that follow Spark's time.

    Attributes:
        number: its batch id, or None in a batch query.
        time: epoch milliseconds.
        watermark: Spark's watermark (epoch ms), or -1.
    """

    number: int | None
    time: int
    watermark: int


@dataclass(frozen=True)
class SparkTime:
    """Settings of Spark's operator that contains an operator with Spark's time.

    Attributes:
        time_mode: ``None``, ``ProcessingTime`` or ``EventTime``.
        event_time_column: the event-time column of results, or "".
    """

    output_mode: str
    time_mode: str
    event_time_column: str = ""


@dataclass(frozen=True)
class KeyedContext:
    """Keyed state and timers of a keyed task. Only for its first operator."""

    backend: KeyedStateBackend
    timers: InternalTimeServiceManager


@dataclass
class OperatorContext:
    """An operator's access to its task.

    Attributes:
        uid: identifies its stored state.
        subtask: index of the parallel instance. In a source's task, it may differ from epoch to epoch.
        parallelism: number of instances, or 0 before the first shuffle, where Spark decides it.
        processing_time_service: clock and timers. Callbacks run as mails.
        side_outputs: outputs of connected side outputs, by tag.
        keyed: keyed state and timers, for a keyed :class:`OperatorFactory`.
        job_parallelism: number of instances of an operator after the shuffle.
        micro_batch: the current or last micro-batch, or None if unknown, as in a replay.
        operator_state: declares operator state. None before the first shuffle.
        epoch_time: returns the epoch's processing time (epoch ms), which is equal in all tasks and when the epoch is
            repeated. None before the first shuffle.
        shared: resources that the vertex's tasks in this process share.
        read_elsewhere: tags that are missing in ``side_outputs`` because another query may read them.
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

    An operator is created after its downstream operators. Its task calls ``open`` (which opens the user's function) and
    ``restore_state``, then processes records. At the end of bounded input, it calls ``end_input`` and ``finish``.
    ``close`` is last, and only called after ``open``. At the end of each epoch, the task calls
    ``prepare_snapshot_pre_barrier``, then ``snapshot_state``.

    Attributes:
        by_key: whether batch mode processes a keyed operator key by key. False if it stores the state of all keys
            together.
        hot_key: the key whose records waited in the epoch's longest queue, as text, or None.
    """

    by_key: bool = True
    hot_key: str | None = None
    _inputs: Sequence[RecordInput] = ()

    def __init__(self, context: OperatorContext) -> None:
        self.context = context

    @property
    def name(self) -> str:
        return self.context.name

    @property
    def uid(self) -> str:
        return self.context.uid

    @property
    def output(self) -> Input:
        return self.context.output

    @property
    def side_outputs(self) -> Mapping[str, Input]:
        return self.context.side_outputs

    @property
    def inputs(self) -> Sequence[RecordInput]:
        """The operator's inputs, one per stream.

        The operator itself receives the minimum of their watermarks and statuses.
        """
        return self._inputs or (self,)

    def open(self) -> None: ...

    def begin_epoch(self) -> None:
        """Begin an epoch of a source, whose records may be from another partition than before."""

    def end_key(self) -> None:
        """End a key in batch mode: fire its timers. Its state is dropped afterwards."""

    def end_input(self) -> None:
        """Wait for pending requests at the end of bounded input. Timers still fire. Flink's ``endInput``."""

    def finish(self) -> None:
        """Emit the last records. Afterwards, no timer fires and no mail runs."""

    def close(self) -> None:
        """Release all resources. Called once, also after a failure."""

    def process_records(self, records: Records) -> None:
        raise NotImplementedError

    def process_key_by_key(self, run: KeyedRun) -> None:
        """Process a run in batch mode: each key's records, then its end, when its state is dropped."""
        process = self.inputs[run.input_index].process_records
        if not run.ends:
            process(run.records)
            return
        assert self.context.keyed is not None
        drop_keys = self.context.keyed.backend.drop_keys
        records = Records(run.records.values, run.records.timestamps)
        for _, start, end, ended in run.stretches():
            if start < end:
                process(records.slice(start, end))
            if ended:
                self.end_key()
                drop_keys()

    def process_watermark(self, timestamp: int) -> None:
        self.output.process_watermark(timestamp)
        for side in self.side_outputs.values():
            side.process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        self.output.process_status(idle)
        for side in self.side_outputs.values():
            side.process_status(idle)

    @property
    def has_close(self) -> bool:
        """Whether the user's function overrides ``close()`` and so may hold resources."""
        return False

    @property
    def next_wake_up(self) -> int | None:
        """When the operator must run even without input (epoch ms), or None. Keyed timers are not included."""
        return None

    def take_event_times(self) -> list[Any] | None:
        """Return the event times that were assigned since the last call, for a :class:`TaskReport`, or None."""
        return None

    @property
    def is_unfinished(self) -> bool:
        """Whether requests of any epoch are pending, so that the task must run again at once."""
        return False

    @property
    def is_satisfied(self) -> bool:
        """Whether the program needs no further output of this operator."""
        return False

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None: ...

    def snapshot_state(self, checkpoint_id: int) -> Any:
        """Return the operator's own state without keyed state, or None."""
        return None

    def resume_after_snapshot(self) -> None: ...

    def restore_state(self, state: Any) -> None:
        """Restore the result of ``snapshot_state``, or None at the first start. Refuses another operator's state."""
        if state is not None:
            raise CheckpointMismatchError(
                f"the checkpoint holds elements that operator {self.name!r} had not finished, and the program has"
                " another kind of operator there: run the program that wrote it until it has finished them, or start"
                " from a new checkpoint"
            )

    def snapshot_event_time(self) -> dict[str, Any] | None:
        """Return the operator's event time and idleness as plain data, or None. Timers are not included.

        A task after a shuffle writes it with the epoch, to continue its watermarks.
        """
        return None

    def restore_event_time(self, state: dict[str, Any] | None) -> None:
        """Restore the result of ``snapshot_event_time``, before ``restore_state``."""

    def initialize_function(self, *, is_restored: bool) -> None: ...

    def snapshot_function(self, checkpoint_id: int) -> None: ...

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None: ...


@dataclass(frozen=True)
class OperatorFactory:
    """Creates an operator, and describes it before it exists (Flink's ``StreamOperatorFactory``).

    Attributes:
        make: creates the operator from its context: a ``Captured`` operator class or ``partial``.
        wakes_up: whether the operator may act in an epoch without records.
        stateful: whether ``snapshot_state`` returns a state, which needs a shuffle before the operator.
        result_types: side output's tag (None for the main output) -> declared type or column names of results.
        asked_tags: tags of the side outputs that the program reads, connected or not.
        state_depends_on: conditions that its keyed state depends on, by subject (``_state/keys/state_note.py``).
        keeps_records: whether the operator emits its input records unchanged, so that their columns stay known.
        keeps_columns: whether columnar input stays columnar.
        sides_are_fixed: whether the operator stores records per input, so that inputs must not be swapped.
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
        result_type = declared if isinstance(declared, TypeInformation) else column_names(declared)
        return self if result_type is None else replace(self, result_types={**self.result_types, tag: result_type})

    def with_side_output(self, tag: str, declared: Any) -> OperatorFactory:
        return replace(self.with_result_type(tag, declared), asked_tags=tuple(sorted({*self.asked_tags, tag})))
