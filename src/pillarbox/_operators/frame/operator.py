"""The base class of operators, which receive and emit records, watermarks and status changes.

Operators of a chain call each other directly with *runs* (batches of consecutive records), so that the user's function
is the only call per record. Mailbox thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from functools import partial
from typing import Any, Protocol

from pillarbox._copies import Copier
from pillarbox._elements.records import Records
from pillarbox._errors import CheckpointMismatchError
from pillarbox._operators.budgets.budget import BudgetLimits
from pillarbox._operators.budgets.ledger import LedgerScope
from pillarbox._operators.frame.captured import Captured
from pillarbox._operators.frame.keyed_run import KeyedRun
from pillarbox._operators.frame.shared_resources import SharedResources
from pillarbox._operators.frame.spark_time import SparkMicroBatch, SparkTime
from pillarbox._operators.functions.checkpointed import OperatorStateStore
from pillarbox._operators.functions.metric_group import UserMetricGroup
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.keys.key_groups import DEFAULT_MAX_PARALLELISM
from pillarbox._time.clock import ProcessingTimeService
from pillarbox._time.internal_timer_service import InternalTimeServiceManager
from pillarbox._time.watermark_generators import WatermarkReceiver
from pillarbox._types.schema import column_names
from pillarbox._types.type_information import TypeInformation
from pillarbox.mailbox import MailboxExecutor


class RecordInput(Protocol):
    """Receives a stream's records."""

    def process_records(self, records: Records) -> None: ...


class Input(RecordInput, WatermarkReceiver, Protocol):
    """Receives an operator's output: the next operator or a shuffle."""


class OperatorDiscard:
    """An output that drops everything, for operators without consumers."""

    def process_records(self, records: Records) -> None: ...

    def process_watermark(self, timestamp: int) -> None: ...

    def process_status(self, idle: bool) -> None: ...


class OperatorFanout:
    """Sends every element to several consumers.

    Args:
        owners: the first ``owners`` consumers receive copies, and the others receive the original records.
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


@dataclass(frozen=True)
class KeyedContext:
    """The keyed state and timers of a task. Only a task's first operator can be keyed."""

    backend: KeyedStateBackend
    timers: InternalTimeServiceManager


@dataclass
class OperatorContext:
    """An operator's view of its task.

    Attributes:
        subtask: the subtask's index. In a source, the index may differ from epoch to epoch.
        parallelism: number of subtasks, or 0 upstream of the first shuffle, because Spark chooses the number there.
        processing_time_service: clock and timers. Callbacks run as mails.
        side_outputs: maps the tag of each side output that the program uses to its receiver.
        micro_batch: the current or latest micro-batch, or None if unknown, as in a replay.
        operator_state: declares operator state. None before the first shuffle.
        epoch_time: returns the epoch's processing time (Unix time in ms), which is the same in all tasks and when the
            epoch is repeated. None before the first shuffle.
        read_elsewhere: tags of side outputs that another query reads. ``side_outputs`` lacks them.
        zone: the time zone of naive datetimes, or None to refuse them.
    """

    name: str
    uid: str
    subtask: int
    parallelism: int
    mailbox_executor: MailboxExecutor
    processing_time_service: ProcessingTimeService
    output: Input = field(default_factory=OperatorDiscard)
    side_outputs: Mapping[str, Input] = field(default_factory=dict)
    keyed: KeyedContext | None = None
    job_parallelism: int = 1
    counters: dict[str, int] = field(default_factory=dict)
    copier: Copier = field(default_factory=partial(Copier, ""))

    metrics: UserMetricGroup = field(init=False)
    max_parallelism: int = DEFAULT_MAX_PARALLELISM
    epoch: int = 0
    micro_batch: SparkMicroBatch | None = None
    operator_state: OperatorStateStore | None = None
    batch: bool = False
    epoch_time: Callable[[], int] | None = None
    budget_scope: LedgerScope = field(default_factory=LedgerScope)
    shared: SharedResources = field(default_factory=SharedResources)
    read_elsewhere: Collection[str] = ()
    zone: tzinfo | None = None

    def __post_init__(self) -> None:
        # Not a cached property: until Python 3.12 it has a lock, which a fork would inherit if another thread holds it.
        self.metrics = UserMetricGroup(self.name)


class StreamOperator:
    """Base class of operators.

    An operator is created after its downstream operators. Its task calls ``open`` (which opens the user's function) and
    ``restore_state``, and then passes it records. At the end of each epoch, the task calls
    ``prepare_snapshot_pre_barrier`` and ``snapshot_state``. At the end of bounded input, it calls ``end_input`` and
    ``finish``.

    Attributes:
        by_key: whether batch mode processes one key after another. False if the operator stores all keys' state
            together.
        hot_key: the key (as text) with the longest queue of waiting records in the epoch, or None.
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
        """The operator's inputs, one per stream. The operator receives their minimum watermark and combined status."""
        return self._inputs or (self,)

    def open(self) -> None: ...

    def begin_epoch(self) -> None:
        """Begin a source's epoch, which may read a different partition than the previous epoch."""

    def end_key(self) -> None:
        """Fire a key's remaining timers after its last record in batch mode. The caller then drops the key's state."""

    def end_input(self) -> None:
        """Wait for pending requests at the end of bounded input. Timers can still fire. Flink's ``endInput``."""

    def finish(self) -> None:
        """Emit the last records. No timer fires and no mail runs after this call."""

    def close(self) -> None:
        """Release all resources. Called once, even after a failure."""

    def process_records(self, records: Records) -> None:
        raise NotImplementedError

    def process_key_by_key(self, run: KeyedRun) -> None:
        """Process a batch of records key by key, in batch mode. After a key's last record, drop the key's state."""
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
        """When the operator next has work even without input (Unix time in ms), or None. Ignores keyed timers."""
        return None

    def take_event_times(self) -> list[Any] | None:
        """Return the event times assigned since the last call, for a :class:`TaskReport`, or None."""
        return None

    @property
    def is_unfinished(self) -> bool:
        """Whether requests are pending. The next epoch must then follow immediately."""
        return False

    @property
    def is_satisfied(self) -> bool:
        """Whether the program needs no more output from this operator."""
        return False

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None: ...

    def snapshot_state(self, checkpoint_id: int) -> Any:
        """Return the operator's non-keyed state, or None for a stateless operator."""
        return None

    def resume_after_snapshot(self) -> None: ...

    def restore_state(self, state: Any) -> None:
        """Restore the result of ``snapshot_state`` (None in a new query). Raises for another operator's state."""
        if state is not None:
            raise CheckpointMismatchError(
                f"the checkpoint contains in-flight records of operator {self.name!r}, which is now a different kind"
                " of operator: first run an epoch of the old program with on_barrier='drain', or use a new"
                " checkpoint directory"
            )

    def snapshot_event_time(self) -> dict[str, Any] | None:
        """Return event time and idleness (without timers) as plain data, or None if the operator tracks neither.

        A task after a shuffle stores this data with the epoch, to continue its watermarks after a restart.
        """
        return None

    def restore_event_time(self, state: dict[str, Any] | None) -> None:
        """Restore the result of ``snapshot_event_time``. Called before ``restore_state``."""

    def initialize_function(self, *, is_restored: bool) -> None: ...

    def snapshot_function(self, checkpoint_id: int) -> None: ...

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None: ...


@dataclass(frozen=True)
class OperatorFactory:
    """Creates an operator, and describes it in advance (Flink's ``StreamOperatorFactory``).

    Attributes:
        make: creates the operator from its context: an operator class, or a ``partial`` of it.
        wakes_up: whether the operator may have work in an epoch without records.
        stateful: whether ``snapshot_state`` returns a state. The operator then needs a shuffle before it.
        result_types: maps a side output's tag, or None for the main output, to the type or column names of its results.
        asked_tags: tags of all side outputs that the program reads.
        state_depends_on: maps subjects to settings that stored state requires (``_state/keys/state_note.py``).
        keeps_records: whether the operator emits its input records unchanged. The results then have known columns.
        keeps_columns: whether columnar input stays columnar.
        sides_are_fixed: whether the inputs must not be swapped, because the operator stores records by input.
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
    budgets: tuple[BudgetLimits, ...] = ()
    spark_time: SparkTime | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.make, Captured):
            object.__setattr__(self, "make", Captured(self.make))

    def with_result_type(self, tag: str | None, declared: Any) -> OperatorFactory:
        result_type = declared if isinstance(declared, TypeInformation) else column_names(declared)
        return self if result_type is None else replace(self, result_types={**self.result_types, tag: result_type})

    def with_side_output(self, tag: str, declared: Any) -> OperatorFactory:
        return replace(self.with_result_type(tag, declared), asked_tags=tuple(sorted({*self.asked_tags, tag})))
