"""The harness for one operator, with real mailbox, state and timers, and a manual clock. Names are as in Flink."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

from pillarbox._copies import CannotCopyError, Copier, copied
from pillarbox._elements.elements import Watermark, WatermarkStatus
from pillarbox._elements.records import Records
from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.async_keyed.operator import AsyncKeyedOperator
from pillarbox._operators.budgets.ledger import LedgerScope, LocalLedger
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import Input, KeyedContext, OperatorContext, RecordInput, StreamOperator
from pillarbox._operators.frame.shared_resources import SharedResources
from pillarbox._operators.functions.checkpointed import OperatorStateStore
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.keys.key_groups import DEFAULT_MAX_PARALLELISM
from pillarbox._state.keys.key_note import note_of_inputs
from pillarbox._state.log.state_log import StateLog
from pillarbox._task.operator_chain import as_mail, quiesce
from pillarbox._task.vertex import ChainNode
from pillarbox._time.duration import DurationLike
from pillarbox._time.internal_timer_service import InternalTimeServiceManager
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox._time.operator_clock import ProcessingTimeServiceImpl
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP
from pillarbox._types.codecs import checked_time_zone
from pillarbox._types.codecs import time_zone as zone_of
from pillarbox.mailbox import MailboxController, MailboxProcessor
from pillarbox.testing._patience import Patience, run_ready, waits_for_time


class StreamRecord(NamedTuple):
    """An emitted record.

    Attributes:
        timestamp: the record's event time (Unix time in ms), or None.
    """

    value: Any
    timestamp: int | None


@dataclass(frozen=True)
class OperatorSnapshot:
    """An operator's state after a checkpoint. Another harness of the operator can start with it. Picklable.

    The format is the checkpoint format: plain data if the key and states have declared types, otherwise pickles.
    """

    chunks: dict[int, bytes]


StreamElement = StreamRecord | Watermark | WatermarkStatus


# Number of rows whose types each call checks. Snapshots and the end of input check all rows.
_CHECKED = 100


class _Recorder:
    def __init__(self) -> None:
        self.elements: list[StreamElement] = []
        self.error: Exception | None = None
        self.fails_at = 0

    def process_records(self, records: Records) -> None:
        if self.error is not None and len(self.records) + len(records) > self.fails_at:
            raise self.error
        stamps: Sequence[int | None] = records.timestamps or [None] * len(records)
        self.elements += map(StreamRecord, records.values, stamps)

    def process_watermark(self, timestamp: int) -> None:
        self.elements.append(Watermark(timestamp))

    def process_status(self, idle: bool) -> None:
        self.elements.append(WatermarkStatus(idle))

    @property
    def records(self) -> list[StreamRecord]:
        return [element for element in self.elements if isinstance(element, StreamRecord)]


class _SideOutputs(dict[str, Input]):
    def __contains__(self, tag_id: object) -> bool:
        return True

    def __missing__(self, tag_id: str) -> Input:
        recorder = self[tag_id] = _Recorder()
        return recorder


class OneInputStreamOperatorTestHarness:
    """Runs an operator on a non-keyed stream.

    The operator is opened immediately, and closed by :meth:`close` or at the end of a ``with`` block. Everything runs
    in the calling thread, so a method's effects are complete when it returns, except for requests of async functions,
    which :meth:`drain` awaits. Pushed records are copied if possible. If a function raises, the harness raises
    ``OperatorError``.

    Args:
        node: the operator's name, uid and factory.
        processing_time: the clock's initial time (Unix time in ms).
        snapshot: initial state, as returned by :meth:`snapshot`. Raises ``CheckpointMismatchError`` for the state of
            another operator.
        subtask: the subtask index that the function sees.
        limit: how long a method may wait for an async function's requests (seconds on the real clock).
        time_zone: the time zone of naive datetimes, such as ``"Europe/Berlin"``, or None to refuse them.

    Attributes:
        processing_time_service: the clock.
    """

    _keyed = False

    def __init__(
        self,
        node: ChainNode,
        *,
        processing_time: int = 0,
        snapshot: OperatorSnapshot | None = None,
        subtask: int = 0,
        parallelism: int = 1,
        limit: float = 10.0,
        time_zone: str | None = None,
    ) -> None:
        zone = None if time_zone is None else zone_of(checked_time_zone(time_zone, "the harness"))
        self.processing_time_service: ManualProcessingTimeService = ManualProcessingTimeService(processing_time)
        self._processor = MailboxProcessor(_nothing_to_do)
        self._output = _Recorder()
        self._side_outputs = _SideOutputs()
        self._current_watermark = MIN_TIMESTAMP
        self._checkpoints = 0
        self._closed = False
        executor = self._processor.get_mailbox_executor(0)
        clock = self._clock = ProcessingTimeServiceImpl(self.processing_time_service, as_mail(executor))
        self._backend = KeyedStateBackend(node.name, zone=zone)
        self._backend.now = processing_time
        self._time_services = InternalTimeServiceManager(self._backend, clock)
        context = OperatorContext(
            node.name,
            node.uid,
            subtask,
            parallelism,
            executor,
            clock,
            self._output,
            self._side_outputs,
            KeyedContext(self._backend, self._time_services) if self._keyed else None,
            parallelism,
            copier=Copier(node.name),
            operator_state=OperatorStateStore(self._backend, node.uid),
            epoch_time=self.get_processing_time,
            budget_scope=LedgerScope(LocalLedger(self.processing_time_service), clock=self.processing_time_service),
            shared=SharedResources(query="harness"),
            zone=zone,
        )
        self.operator: StreamOperator = node.factory.make(context)
        self._patience = Patience(self.processing_time_service, limit)
        self._patience.attach([self.operator])
        try:
            self.operator.open()
            self._restore(node, context, snapshot)
        except BaseException:
            self.close()
            raise

    def _restore(self, node: ChainNode, context: OperatorContext, snapshot: OperatorSnapshot | None) -> None:
        self._backend.seal()
        notes = [keying.note() for keying in map(keying_of, self.operator.inputs) if keying is not None]
        key = note_of_inputs(notes) if self._keyed else None
        identity = LogIdentity(
            node.uid or node.name, 0, 1, DEFAULT_MAX_PARALLELISM, key=key, depends_on=node.factory.state_depends_on
        )
        self._log = StateLog(identity, self._backend, own_state=node.factory.stateful)
        self._store = MemoryChunkStore()
        if snapshot is not None:
            self._store.chunks = dict(_chunks_of(snapshot))
        self._log.sync(self._store)
        self._current_watermark = self._log.task_state.get("watermark", MIN_TIMESTAMP)
        self._checkpoints = self._log.version
        context.epoch = self._checkpoints + 1
        for service in self._time_services.services():
            service.current_watermark = self._current_watermark
        self.operator.restore_event_time(self._log.task_state.get("event_time"))
        self.operator.restore_state(self._log.task_state.get("operator"))
        self.operator.initialize_function(is_restored=self._log.version > 0)
        self._backend.check_operator_lists()
        for service in self._time_services.services():
            service.schedule()
        self._settle()

    def push(self, value: Any, timestamp: int | None = None) -> None:
        """Push one record. ``timestamp`` is its event time (Unix time in ms), or None."""
        self._process(_one(value, timestamp))

    def push_all(self, values: Iterable[Any], timestamps: Iterable[int | None] | None = None) -> None:
        """Push records in one call, as a task does, optionally with a timestamp for each record."""
        run, stamps = list(values), None if timestamps is None else list(timestamps)
        if stamps is not None and len(stamps) != len(run):
            raise ValueError(f"{len(run)} values, but {len(stamps)} timestamps: pass one per value")
        self._process(Records(run, stamps))

    def push_records(self, records: Records, index: int = 0) -> None:
        """Push records, columnar or not, into the operator's input ``index`` in one call."""
        self._process(records, index)

    def _process(self, records: Records, index: int = 0) -> None:
        if self._closed:
            raise ProgramError("the harness and its function are closed: push records inside the with block")
        self._backend.now = self.get_processing_time()
        # A function may change its records, but not the test's.
        self.operator.inputs[index].process_records(records.copied(_own))
        self._settle()

    def push_watermark(self, timestamp: int) -> None:
        """Advance event time to ``timestamp`` (Unix time in ms) and fire due timers. Timestamps must not decrease."""
        if timestamp < self._current_watermark:
            raise ValueError(f"the watermark cannot go back from {self._current_watermark} to {timestamp}")
        self._current_watermark = timestamp
        self._backend.now = self.get_processing_time()
        self.operator.process_watermark(timestamp)
        self._settle()

    process_element = push
    process_watermark = push_watermark

    def set_processing_time(self, timestamp: int) -> None:
        """Set the clock (Unix time in ms) and fire due processing-time timers in order.

        For a keyed function with ``async def``, the clock stops at each timer of the function's event loop, too.
        """
        for stop in self._patience.stops_before(timestamp):
            self._set_clock(stop)
        self._set_clock(timestamp)

    def _set_clock(self, timestamp: int) -> None:
        self._backend.now = timestamp
        self.processing_time_service.set_current_time(timestamp)
        self._settle()

    def advance_processing_time(self, milliseconds: int) -> None:
        if milliseconds < 0:
            raise ValueError(
                f"the clock cannot advance by {milliseconds} ms: to turn it back, use set_processing_time()"
            )
        self.set_processing_time(self.get_processing_time() + milliseconds)

    def get_processing_time(self) -> int:
        """Return the clock's time (Unix time in ms)."""
        return self.processing_time_service.current_processing_time()

    def end_input(self, *, time_passes: DurationLike = 0) -> None:
        """End the input, so that event time advances to infinity and the operator emits its last records.

        As in a task, no processing-time timer fires afterwards.

        Args:
            time_passes: how far the clock may advance, timer by timer, during waits for an async function's requests,
                so that timeouts fire.

        Raises:
            TimeoutError: requests are still pending.
        """
        with self._patience.time_passes(time_passes):
            self.operator.end_input()
            quiesce(self.operator, self._clock)
            self.push_watermark(MAX_WATERMARK)
            self.operator.finish()
        self._settle()
        self._log.check_changes()

    def drain(self, seconds: float = 10.0) -> None:
        """Wait up to ``seconds`` of real time until an async operator has emitted all results."""
        end = time.monotonic() + seconds
        self._settle()
        while self.operator.is_unfinished:
            if time.monotonic() >= end:
                raise TimeoutError(f"operator {self.operator.name!r} has unfinished requests after {seconds} s")
            if waits_for_time(self.operator):
                raise TimeoutError(
                    f"operator {self.operator.name!r} is waiting for a later time, but the harness's clock stands still"
                    f" at {self.get_processing_time()}: call advance_processing_time(...)"
                )
            time.sleep(0.001)
            self._settle()

    def _settle(self) -> None:
        mailbox = self._processor.mailbox
        self._run_loop()
        while mailbox.size():
            while mailbox.size():
                mailbox.take().run()
            # A mail may have set a timer that is already due.
            self.processing_time_service.set_current_time(self.get_processing_time())
            self._run_loop()
        self._log.check_changes(_CHECKED)

    def _run_loop(self) -> None:
        if isinstance(self.operator, AsyncKeyedOperator):
            run_ready([self.operator])

    def get_output(self) -> list[Any]:
        """Return the values emitted to the main output since the start or the last :meth:`clear_output`."""
        return [record.value for record in self._output.records]

    def get_records(self) -> list[StreamRecord]:
        """Return the records emitted to the main output, with timestamps."""
        return self._output.records

    def get_elements(self) -> list[StreamElement]:
        """Return all elements emitted to the main output: records, watermarks, status changes."""
        return list(self._output.elements)

    def get_watermarks(self) -> list[int]:
        """Return the emitted watermarks (Unix time in ms)."""
        return [element.timestamp for element in self._output.elements if isinstance(element, Watermark)]

    def get_side_output(self, tag: OutputTag | str) -> list[Any]:
        """Return the values emitted to a side output."""
        return [record.value for record in self.get_side_records(tag)]

    def get_side_records(self, tag: OutputTag | str) -> list[StreamRecord]:
        recorder = self._side_outputs.get(tag.tag_id if isinstance(tag, OutputTag) else tag)
        return recorder.records if isinstance(recorder, _Recorder) else []

    def clear_output(self) -> None:
        """Discard the output so far, including side outputs."""
        for recorder in (self._output, *self._side_outputs.values()):
            if isinstance(recorder, _Recorder):
                recorder.elements = []

    def fail_output_at(self, number: int, error: Exception) -> None:
        """Make the main output raise ``error`` after ``number`` more records."""
        self._output.fails_at = len(self._output.records) + number
        self._output.error = error

    def snapshot(self, *, time_passes: DurationLike = 0) -> OperatorSnapshot:
        """Take a checkpoint and return its state. ``time_passes`` is as in :meth:`end_input`."""
        self._checkpoints += 1
        self._backend.now = self.get_processing_time()
        with self._patience.time_passes(time_passes):
            self.operator.prepare_snapshot_pre_barrier(self._checkpoints)
        self._settle()
        self.operator.snapshot_function(self._checkpoints)
        state = {
            "watermark": self._current_watermark,
            "operator": self.operator.snapshot_state(self._checkpoints),
            "event_time": self.operator.snapshot_event_time(),
        }
        self._log.commit(self._store, state)
        self.operator.resume_after_snapshot()
        self.operator.context.epoch = self._checkpoints + 1
        self._settle()
        return OperatorSnapshot(dict(self._store.chunks))

    def notify_of_completed_checkpoint(self, checkpoint_id: int) -> None:
        """Notify the operator that a checkpoint was committed. Ids count from 1."""
        self.operator.notify_checkpoint_complete(checkpoint_id)
        self._settle()

    def close(self) -> None:
        """Close the operator. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.operator.context.processing_time_service.quiesce()
        try:
            self.operator.close()
        finally:
            self._processor.prepare_close()
            self._processor.close()

    def __enter__(self) -> OneInputStreamOperatorTestHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class TwoInputStreamOperatorTestHarness(OneInputStreamOperatorTestHarness):
    """Runs an operator on two connected streams. ``push_watermark`` sends the watermark to both streams."""

    def push(self, value: Any, timestamp: int | None = None) -> None:
        raise TypeError("the operator has two inputs: use push1() for the first stream, push2() for the second")

    def push_all(self, values: Iterable[Any], timestamps: Iterable[int | None] | None = None) -> None:
        self.push(values)

    def push1(self, value: Any, timestamp: int | None = None) -> None:
        """Push one record into the first stream."""
        self._process(_one(value, timestamp), 0)

    def push2(self, value: Any, timestamp: int | None = None) -> None:
        """Push one record into the second stream."""
        self._process(_one(value, timestamp), 1)

    process_element1 = push1
    process_element2 = push2

    def __enter__(self) -> TwoInputStreamOperatorTestHarness:
        return self


def keying_of(record_input: RecordInput) -> Keying | None:
    return getattr(record_input, "keying", None)


def _chunks_of(snapshot: Any) -> dict[int, bytes]:
    if not isinstance(snapshot, OperatorSnapshot):
        raise ProgramError(
            f"an operator harness starts from an operator harness's snapshot(), not from {shorten(snapshot)}."
            " Pass a program's snapshot to another ProgramTestHarness"
        )
    return snapshot.chunks


def _one(value: Any, timestamp: int | None) -> Records:
    return Records([value], None if timestamp is None else [timestamp])


def _nothing_to_do(controller: MailboxController) -> None:
    controller.suspend_default_action()


def _own(value: Any) -> Any:
    try:
        return copied(value)
    except CannotCopyError:
        return value
