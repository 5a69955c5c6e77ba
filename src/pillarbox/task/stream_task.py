"""One subtask of a vertex: mailbox, chain, writer, state, driven epoch by epoch.

A task is *resident*: it lives in its worker between epochs. An epoch runs its mailbox loop, and ends at the barrier
with the loop suspended; the next epoch runs the same loop again, with state, connections and open functions warm.
Everything that touches operators or state runs in the mailbox thread; any other thread may only post mail.
Source of the behaviour: Flink's ``StreamTask``.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from enum import Enum
from typing import Any

from pillarbox.elements import Buffer, EndOfData, TaskReport
from pillarbox.errors import TaskCanceledError
from pillarbox.mailbox import (
    MAX_PRIORITY,
    MailboxClosedError,
    MailboxController,
    MailboxMetrics,
    MailboxProcessor,
    MailOptions,
    StreamTaskActionExecutor,
    Suspension,
    TaskMailbox,
)
from pillarbox.state import HeapKeyedStateBackend
from pillarbox.task.checkpoint import CheckpointMetaData, CheckpointOptions, SubtaskCheckpointCoordinator
from pillarbox.task.metrics import TaskMetrics
from pillarbox.task.operator_chain import OperatorChain
from pillarbox.task.record_writer import RecordWriter
from pillarbox.task.task_input import (
    EXHAUSTED,
    AnyReader,
    DataInputStatus,
    IteratorReader,
    ThreadedReader,
)
from pillarbox.task.vertex import Vertex, channel_code
from pillarbox.time import (
    ProcessingTimeService,
    SystemProcessingTimeService,
)
from pillarbox.time.timestamps import MAX_WATERMARK

__all__ = ["StreamTask", "TaskState"]

# While an epoch runs. Records and keyed state are many, long-lived and without cycles: at Python's own thresholds the
# collector walks over them every few hundred records, and takes a third of the time.
_GC_THRESHOLDS = (100_000, 20, 100)


class TaskState(Enum):
    """Where a task is in its life (P1)."""

    CREATED = "created"
    RESTORED = "restored"
    RUNNING = "running"
    FAILED = "failed"
    CANCELED = "canceled"
    FINISHED = "finished"


class StreamTask(ABC):
    """What source tasks and keyed tasks share.

    Args:
        clock: processing time; the system's when None.
        threaded_input: read the input in a thread of its own (P4), also where no operator wakes up by itself.
        action_executor: runs the mails (P5).
        backend: keyed state, for the operator at the head of the chain.

    Attributes:
        state: where the task is in its life.
        failure: the first error that it died of.
    """

    def __init__(
        self,
        vertex: Vertex,
        subtask: int,
        *,
        clock: ProcessingTimeService | None = None,
        threaded_input: bool = False,
        action_executor: StreamTaskActionExecutor = StreamTaskActionExecutor.IMMEDIATE,
        backend: HeapKeyedStateBackend | None = None,
    ) -> None:
        self.vertex = vertex
        self.subtask = subtask
        self.metrics = TaskMetrics()
        self.state = TaskState.CREATED
        self.failure: BaseException | None = None
        self._threaded_input = threaded_input or any(node.operator.wakes_up for node in vertex.nodes)
        mailbox = TaskMailbox()
        self.mailbox_metrics = MailboxMetrics()
        self.processor = MailboxProcessor(self.process_input, mailbox, action_executor, self.mailbox_metrics)
        self.clock = clock or SystemProcessingTimeService(self.processor.report_throwable)
        self._owns_clock = clock is None
        self.writer = RecordWriter(vertex.edges, channel_code(vertex.number, subtask))
        self.chain = OperatorChain(vertex, subtask, self.processor, self.clock, self.writer, backend)
        self.coordinator = SubtaskCheckpointCoordinator(self.chain, self.writer)
        self._reader: AnyReader = IteratorReader(())
        self._suspension: Suspension | None = None
        self._epoch_done = False
        self._input_done = False
        self._end_of_data = False
        self._checkpoint_id = 0

    # -- life --

    def _open(self) -> None:
        try:
            self.chain.open()
        except BaseException as error:
            self.fail(error)
            raise

    def _run_epoch(self, checkpoint_id: int, items: Iterable[Any]) -> Iterator[list[Buffer]]:
        """Run the loop to the end of the epoch; give the output whenever the writer is full, and at the end."""
        self._checkpoint_id = checkpoint_id
        self._epoch_done = False
        self._input_done = False
        self._end_of_data = False
        self.metrics.begin_epoch()
        self.processor.rebind_to_current_thread()
        executor = self.processor.get_main_mailbox_executor()
        # Before the input thread starts: from now on, other threads leave the task to its loop.
        self.state = TaskState.RUNNING
        if self._threaded_input:
            self._reader = ThreadedReader(items, executor, self.processor.report_throwable)
        else:
            self._reader = IteratorReader(items)
        thresholds = gc.get_threshold()
        gc.set_threshold(*_GC_THRESHOLDS)
        try:
            self._begin_epoch()
            self._resume()
            while not self._epoch_done:
                self.processor.run_mailbox_loop()
                if not self._epoch_done:
                    self.metrics.back_pressured.mark_start()
                    yield self.writer.take()
                    self.metrics.back_pressured.mark_end()
                    self._resume()
            report = self._report()
            self.writer.send(self.vertex.report_target, TaskReport(report))
            self.state = TaskState.RESTORED
            yield self.writer.take()
        except BaseException as error:  # also when whoever runs the task gives up taking the output
            if not self._epoch_done:
                self.fail(error)
            raise
        finally:
            gc.set_threshold(*thresholds)
            self._reader.close()

    def _resume(self) -> None:
        suspension, self._suspension = self._suspension, None
        if suspension is not None:
            suspension.resume()

    def fail(self, error: BaseException) -> None:
        """Die of ``error``, unless the task is dead already: close the operators, keep the first cause."""
        if self.state in (TaskState.FAILED, TaskState.CANCELED, TaskState.FINISHED):
            return
        if isinstance(error, TaskCanceledError):
            self._end(TaskState.CANCELED)
        else:
            self.failure = error
            self._end(TaskState.FAILED)

    def cancel(self) -> None:
        """End the task from outside, without finishing. Any thread: a running loop is left by an error in it."""
        if self.state in (TaskState.FAILED, TaskState.CANCELED, TaskState.FINISHED):
            return
        if self.state is TaskState.RUNNING and not self.processor.is_mailbox_thread():
            try:
                self.processor.report_throwable(TaskCanceledError(f"task {self.vertex.name!r} was cancelled"))
            except MailboxClosedError:
                pass  # it has just ended by itself
        else:
            self._end(TaskState.CANCELED)

    def close(self) -> None:
        """End the task in good order, between epochs.

        Raises:
            Exception: the first error that closing the operators gave.
        """
        if self.state in (TaskState.FAILED, TaskState.CANCELED, TaskState.FINISHED):
            return
        failures = self._end(TaskState.FINISHED)
        if failures:
            raise failures[0]

    def _end(self, state: TaskState) -> list[Exception]:
        self.state = state
        self._reader.close()
        failures = self.chain.close()
        if self._owns_clock:
            self.clock.shutdown()
        if self.processor.is_mailbox_thread():
            self.processor.prepare_close()
            self.processor.close()
        if self.failure is not None:
            for failure in failures:
                # Reported beside the first cause, never in its place.
                if hasattr(self.failure, "add_note"):
                    self.failure.add_note(f"closing the operators failed as well: {failure!r}")
        return failures

    # -- the default action --

    def process_input(self, controller: MailboxController) -> None:
        """Handle a bounded slice of input; suspend when there is none, or no room for the output (P2, P3)."""
        if not self.writer.is_available:
            self._suspension = controller.suspend_default_action()
            self.processor.suspend()
            return
        status = self._emit_next()
        if status is DataInputStatus.MORE_AVAILABLE:
            return
        if status is DataInputStatus.NOTHING_AVAILABLE:
            suspension = controller.suspend_default_action(self.metrics.idle)
            self._suspension = suspension
            if not self._input_done:
                # Calls back at once if availability has changed meanwhile.
                self._reader.when_available(suspension.resume)
            return
        if status is DataInputStatus.END_OF_DATA:
            self._end_data(drain=True)
            return
        if status is DataInputStatus.STOPPED:
            self._end_data(drain=False)
            return
        if status is DataInputStatus.END_OF_INPUT:
            self._suspension = controller.suspend_default_action()
            self.processor.suspend()
            return
        raise AssertionError(f"{status} cannot come from the input of a running task")

    def _emit_next(self) -> DataInputStatus:
        item = self._reader.poll()
        if item is None:
            return DataInputStatus.NOTHING_AVAILABLE
        if item is EXHAUSTED:
            status = self._end_epoch()
            # Data that ends for good has one more step to go: its checkpoint.
            self._input_done = status is not DataInputStatus.END_OF_DATA
            return status
        self._process(item)
        return DataInputStatus.MORE_AVAILABLE

    def _end_data(self, *, drain: bool) -> None:
        self._end_of_data = True
        if drain:
            self.chain.head.process_watermark(MAX_WATERMARK)
            self.chain.finish()
        self.writer.broadcast(EndOfData())

    @abstractmethod
    def _begin_epoch(self) -> None: ...

    @abstractmethod
    def _process(self, item: Any) -> None: ...

    @abstractmethod
    def _end_epoch(self) -> DataInputStatus: ...

    # -- checkpoints --

    def trigger_checkpoint_async(
        self, metadata: CheckpointMetaData, options: CheckpointOptions | None = None
    ) -> Future[bool]:
        """Take a checkpoint, as a mail; its outcome reaches the future, and a failure the task as well (C1)."""
        mail = MailOptions.urgent() if options is not None and options.unaligned else MailOptions.DEFAULT

        def run() -> bool:
            self._perform_checkpoint(metadata)
            return True

        def fail_the_task(outcome: Future[bool]) -> None:
            error = None if outcome.cancelled() else outcome.exception()
            if error is not None:
                self.processor.report_throwable(error)

        executor = self.processor.get_main_mailbox_executor()
        outcome = executor.submit(run, "checkpoint %s", metadata.checkpoint_id, options=mail)
        outcome.add_done_callback(fail_the_task)
        return outcome

    def notify_checkpoint_complete_async(self, checkpoint_id: int) -> None:
        """Have the operators told that a checkpoint is committed (C2)."""
        self.processor.get_mailbox_executor(MAX_PRIORITY).execute(
            lambda: self.coordinator.notify_checkpoint_complete(checkpoint_id), "checkpoint %s complete", checkpoint_id
        )

    def notify_checkpoint_aborted_async(self, checkpoint_id: int, latest_completed: int) -> None:
        """Have the operators told that a checkpoint failed (C2)."""
        self.processor.get_mailbox_executor(MAX_PRIORITY).execute(
            lambda: self.coordinator.notify_checkpoint_aborted(checkpoint_id, latest_completed),
            "checkpoint %s aborted",
            checkpoint_id,
        )

    def notify_checkpoint_subsumed_async(self, checkpoint_id: int) -> None:
        """Have the operators told that a checkpoint is superseded (C2)."""
        self.processor.get_mailbox_executor(MAX_PRIORITY).execute(
            lambda: self.coordinator.notify_checkpoint_subsumed(checkpoint_id),
            "checkpoint %s subsumed",
            checkpoint_id,
        )

    def _perform_checkpoint(self, metadata: CheckpointMetaData) -> None:
        self.coordinator.checkpoint_state(metadata, self._write_state)
        self._epoch_done = True
        self.processor.suspend()

    def _write_state(self, operator_states: dict[str, Any]) -> None:
        """Write the state of the epoch; a task without state has none."""

    def _report(self) -> dict[str, Any]:
        counters: dict[str, int] = {}
        for operator in self.chain.operators:
            for name, count in operator.context.counters.items():
                counters[f"{operator.uid}.{name}"] = count
        return {
            "vertex": self.vertex.name,
            "uid": self.vertex.uid,
            "level": self.vertex.level,
            "subtask": self.subtask,
            "epoch": self._checkpoint_id,
            "records_in": self.metrics.records_in,
            "records_out": self.writer.records_out,
            "bytes_out": self.writer.bytes_out,
            "mails": self.mailbox_metrics.statistics().mails_processed,
            **self.metrics.times(),
            "counters": counters,
        }
