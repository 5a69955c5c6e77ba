"""The base class of tasks. A task runs a subtask, epoch by epoch, with a mailbox, an operator chain and a writer.

A task stays in its process between epochs. An epoch runs the mailbox loop up to the barrier and then suspends it. Only
the mailbox thread touches operators and state; other threads send mails. Follows Flink's ``StreamTask``.
"""

from __future__ import annotations

import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pillarbox._copies import COPY_MS
from pillarbox._elements.buffers import Buffer, channel_code
from pillarbox._elements.elements import Barrier, EndOfData
from pillarbox._elements.task_report import TaskReport
from pillarbox._errors import PillarboxError, TaskCanceledError, place_of_task
from pillarbox._operators.budgets.gate import RATE_LIMITED
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._task.collector import rare_collections
from pillarbox._task.lifecycle import EpochPhase, TaskEvent, TaskLife, TaskState, suppress
from pillarbox._task.memory import container_limit, private_memory, resident_bytes
from pillarbox._task.metrics import TaskMetrics
from pillarbox._task.network.record_writer import RecordWriter
from pillarbox._task.network.task_input import (
    EXHAUSTED,
    AnyReader,
    DataInputStatus,
    IteratorInputReader,
    ThreadedInputReader,
)
from pillarbox._task.operator_chain import OperatorChain
from pillarbox._task.vertex import REPORT_TARGET, Vertex
from pillarbox._time.clock import ProcessingTimeService
from pillarbox._time.clock_log import LoggedClock
from pillarbox._time.system_clock import SystemProcessingTimeService
from pillarbox.mailbox import (
    MAX_PRIORITY,
    MailboxClosedError,
    MailboxController,
    MailboxMetrics,
    MailboxProcessor,
    Suspension,
    TaskMailbox,
)

_log = logging.getLogger("pillarbox")


class StreamTask(ABC):
    """Base class of source tasks and tasks after a shuffle."""

    def __init__(
        self,
        vertex: Vertex,
        subtask: int,
        *,
        clock: ProcessingTimeService | None = None,
        backend: KeyedStateBackend | None = None,
        own_state: KeyedStateBackend | None = None,
    ) -> None:
        self.vertex = vertex
        self.subtask = subtask
        self.metrics: TaskMetrics = TaskMetrics()
        self.life: TaskLife = TaskLife(vertex.name)
        # Whether another thread reads the input.
        self._threaded_input = any(node.factory.wakes_up for node in vertex.nodes)
        mailbox = TaskMailbox(resting=vertex.shared.resting) if vertex.shared else TaskMailbox()
        self.mailbox_metrics: MailboxMetrics = self._new_mailbox_metrics()
        self.processor: MailboxProcessor = MailboxProcessor(self.process_input, mailbox, self.mailbox_metrics)
        inner = clock or SystemProcessingTimeService(self.handle_async_exception)
        self.clock: LoggedClock = LoggedClock(inner, lambda: self.metrics.buffers_in)
        self._owns_clock = clock is None
        self.writer: RecordWriter = RecordWriter(vertex.edges)
        self.chain: OperatorChain = OperatorChain(
            vertex, subtask, self.processor, self.clock, self.writer, backend, own_state
        )
        # Mailbox thread only.
        self.latest_completed: int = 0
        self._reader: AnyReader = IteratorInputReader(())
        self._suspension: Suspension | None = None
        self._phase = EpochPhase.READING
        self._checkpoint_id = 0
        self._mails_before = 0
        self.attempt: int | None = None
        self.process_tasks: int | None = None
        self.versions: dict[str, str] | None = None
        self.executor: int | None = None
        self.fallback: str | None = None

    def _new_mailbox_metrics(self) -> MailboxMetrics:
        interval = self.vertex.latency_interval
        if interval is None:
            return MailboxMetrics()

        def probe_later(delay: float, send: Callable[[], None]) -> None:
            self.clock.register_timer(
                self.clock.current_processing_time() + round(delay * 1000), lambda timestamp: send()
            )

        seconds = interval / 1000
        return MailboxMetrics(probe_later, interval=seconds, clock=lambda: self.clock.relative_time_millis() / 1000)

    # State transitions: see the table in lifecycle.py.

    @property
    def state(self) -> TaskState:
        return self.life.state

    @property
    def failure(self) -> BaseException | None:
        return self.life.cause if self.state is TaskState.FAILED else None

    @contextmanager
    def _working(self, begin: TaskEvent, end: TaskEvent) -> Iterator[None]:
        """Hold the work lock within the block, so that the calling thread may run operators.

        The first error ends the task. The block raises it even if another thread has reported it.
        """
        self.life.begin(begin)
        cause: BaseException | None = None
        try:
            self.processor.rebind_to_current_thread()
            self.life.check()
            yield
            self.life.check()
            self.life.enter(end)
        except BaseException as error:
            cause = self._die(error)
            # Ctrl-C and the like must reach the thread.
            if cause is error or not isinstance(error, Exception):
                raise
        if cause is not None:
            raise cause
        self._stop_working()

    def _stop_working(self) -> None:
        self.life.give_back()
        # Another thread has cancelled the task. This thread must end it.
        if isinstance(self.life.cause, TaskCanceledError) and self.life.try_begin():
            raise self._end_for_its_cause()

    def _die(self, error: BaseException) -> BaseException:
        """End the task because of an error. Returns the error that was reported first."""
        at_work = self.state.is_at_work
        if isinstance(error, PillarboxError):
            self._locate(error)
        self.life.report(error)
        if at_work or self.life.try_begin():
            return self._end_for_its_cause()
        return error  # another thread ended it while its output was taken

    def _locate(self, error: PillarboxError) -> None:
        where = error.place
        named = where.get("operator")
        failed = next((operator for operator in self.chain.operators if repr(operator.name) == named), None)
        if failed is not None:
            error.at(uid=failed.uid)
        if failed is self.chain.head and "position" in where and not self.vertex.batch:
            # The position is known within the latest batch of records.
            error.at(number=self.metrics.records_in - self.metrics.run + int(where["position"]) + 1)

    @property
    def place(self) -> str:
        head = self.chain.head
        return place_of_task(head.name, self.subtask, head.context.epoch)

    def _end_for_its_cause(self) -> BaseException:
        cause = self.life.cause
        assert cause is not None
        failures = self._end(TaskEvent.CANCEL if isinstance(cause, TaskCanceledError) else TaskEvent.FAIL)
        for failure in failures:
            if isinstance(cause, TaskCanceledError):
                _log.warning("the task was cancelled %s, but closing its functions failed: %s", self.place, failure)
            else:
                suppress(cause, failure, "closing the operators failed as well")
        self.life.tell_others()
        return cause

    def _end(self, event: TaskEvent) -> list[Exception]:
        """End the task. Returns the errors that were raised while closing.

        The caller must hold the work lock. This method does not release it.
        """
        self.life.enter(event)
        # The operators and the mailbox now belong to this thread.
        self.processor.rebind_to_current_thread()
        failures: list[Exception] = []
        try:
            self._close_input()
            failures += self.chain.close()
        finally:
            if self._owns_clock:
                self.clock.shutdown()
            self.processor.prepare_close()
            try:
                self.processor.close()
            except Exception as error:
                failures.append(error)
        return failures

    def _close_input(self) -> None:
        self._reader.close()

    def cancel(self) -> None:
        """Cancel the task. Thread-safe."""
        if self.state.is_terminal:
            return
        error = TaskCanceledError(f"task {self.vertex.name!r} was cancelled")
        self.life.report(error)
        if self.life.try_begin():
            self._end_for_its_cause()
        else:
            self._leave_loop(error)

    def handle_async_exception(self, error: BaseException) -> None:
        """Fail the task because of an error in another thread. Thread-safe.

        The thread that holds the work lock closes the operators, at the latest in the next epoch.
        """
        self.life.report(error)
        self._leave_loop(error)

    def _leave_loop(self, error: BaseException) -> None:
        try:
            self.processor.report_throwable(error)
        except MailboxClosedError:
            pass  # the task has just ended

    def close(self) -> None:
        """Close the task between epochs. If an epoch's output has not been consumed, cancel the task.

        Raises the first error that was reported since the last epoch or occurs while closing.
        """
        if not self.life.try_begin():
            if self.state.is_terminal:
                return
            raise self.life.illegal(TaskEvent.CLOSE)
        if self.state is TaskState.PAUSED:
            self.life.report(TaskCanceledError(f"task {self.vertex.name!r} was closed within an epoch"))
        if self.life.cause is not None:
            cause = self._end_for_its_cause()
            if self.state is TaskState.FAILED:
                raise cause
            return
        failures = self._end(TaskEvent.CLOSE)
        for failure in failures[1:]:
            suppress(failures[0], failure, "closing the operators failed more than once")
        if failures:
            raise failures[0]

    @property
    def is_satisfied(self) -> bool:
        return any(operator.is_satisfied for operator in self.chain.operators)

    def _run_epoch(self, checkpoint_id: int, items: Iterable[Any]) -> Iterator[list[Buffer]]:
        """Run the mailbox loop to the end of the epoch. Yields output when the writer is full and at the end."""
        self._checkpoint_id = checkpoint_id
        self._phase = EpochPhase.READING
        self._mails_before = self.mailbox_metrics.mails_processed
        self.metrics = TaskMetrics()
        self.clock.begin_epoch()
        self.chain.set_epoch(checkpoint_id)
        self.chain.resume_timers()
        self._reader = self._reader_of(items)
        try:
            with rare_collections():
                self._begin_epoch()
                self._resume()
                self.processor.run_mailbox_loop()
                while self._phase is not EpochPhase.DONE:
                    yield from self._hand_over()
                    self._resume()
                    self.processor.run_mailbox_loop()
                yield from self._hand_over()
                # Last, to include the waits for other output.
                channel = channel_code(self.vertex.number, self.subtask)
                self.writer.send(REPORT_TARGET, channel, 0, self._report())
                yield from self._hand_over()
        finally:
            self._reader.close()

    def _reader_of(self, items: Iterable[Any]) -> AnyReader:
        if self._threaded_input:
            return ThreadedInputReader(items, self.processor.get_main_mailbox_executor(), self.handle_async_exception)
        return IteratorInputReader(items, self.metrics.idle)

    def _hand_over(self) -> Iterator[list[Buffer]]:
        """Yield the output, and release the work lock until the caller resumes."""
        buffers = self.writer.take()
        if not buffers:
            return
        self.life.enter(TaskEvent.PAUSE)
        self._stop_working()
        self.metrics.back_pressured.mark_start()
        yield buffers
        self.metrics.back_pressured.mark_end()
        self.life.begin(TaskEvent.RESUME)
        self.life.check()

    def _resume(self) -> None:
        suspension, self._suspension = self._suspension, None
        if suspension is not None:
            suspension.resume()

    def process_input(self, controller: MailboxController) -> None:
        """Process some input, or suspend the default action if there is no input or no room for output."""
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
            self._reader.when_available(suspension.resume)
            return
        if status is DataInputStatus.END_OF_DATA:
            self._end_data()
            return
        # Only the checkpoint is left.
        self._suspension = controller.suspend_default_action()

    def _emit_next(self) -> DataInputStatus:
        item = self._reader.poll()
        if item is None:
            return DataInputStatus.NOTHING_AVAILABLE
        if item is EXHAUSTED:
            return self._end_epoch()
        self._process(item)
        return DataInputStatus.MORE_AVAILABLE

    def _end_data(self) -> None:
        self.chain.finish()
        self._phase = EpochPhase.DATA_ENDED
        self.writer.broadcast(EndOfData())

    @abstractmethod
    def _begin_epoch(self) -> None: ...

    @abstractmethod
    def _process(self, item: Any) -> None: ...

    @abstractmethod
    def _end_epoch(self) -> DataInputStatus: ...

    def _end_input(self) -> DataInputStatus:
        executor = self.processor.get_main_mailbox_executor()
        executor.execute(self._take_checkpoint, "checkpoint %s", self._checkpoint_id)
        return DataInputStatus.END_OF_INPUT

    def _take_checkpoint(self) -> None:
        for service in self.chain.timer_services():
            service.unschedule()
        checkpoint_id = self._checkpoint_id
        self.chain.prepare_snapshot_pre_barrier(checkpoint_id)
        # The barrier has no timestamp, so a retried task sends the same bytes.
        self.writer.broadcast(Barrier(checkpoint_id))
        self._write_state(self.chain.snapshot_state(checkpoint_id))
        self.chain.resume_after_snapshot()
        self._phase = EpochPhase.DONE
        self.processor.suspend()

    def notify_checkpoint_complete_async(self, checkpoint_id: int) -> None:
        def notify() -> None:
            if checkpoint_id > self.latest_completed:
                self.latest_completed = checkpoint_id
                for operator in self.chain.operators:
                    operator.notify_checkpoint_complete(checkpoint_id)

        self.processor.get_mailbox_executor(MAX_PRIORITY).execute(notify, "checkpoint %s complete", checkpoint_id)

    def _write_state(self, operator_states: dict[str, Any]) -> None: ...

    def _report(self) -> TaskReport:
        counters: dict[str, int] = {}
        gauges: dict[str, float] = {}
        limited = [
            operator.context.counters[RATE_LIMITED]
            for operator in self.chain.operators
            if RATE_LIMITED in operator.context.counters
        ]
        for operator in self.chain.operators:
            for name, count in operator.context.counters.items():
                counters[f"{operator.uid}.{name}"] = count
            for name, milliseconds in operator.context.copier.take_milliseconds().items():
                counters[f"{operator.uid}.{COPY_MS}{name}"] = milliseconds
            operator.context.metrics.take(operator.uid, counters, gauges)
        latency = self.mailbox_metrics.latency
        return TaskReport(
            vertex=self.vertex.name,
            uid=self.vertex.uid,
            level=self.vertex.level,
            subtask=self.subtask,
            epoch=self._checkpoint_id,
            records_in=self.metrics.records_in,
            records_out=self.writer.records_out,
            bytes_out=self.writer.bytes_out,
            mails=self.mailbox_metrics.mails_processed - self._mails_before,
            **self.metrics.times(),
            counters=counters,
            gauges=gauges,
            rate_limited_ms=sum(limited) if limited else None,
            mailbox_latency_ms=None if latency is None else round(latency.maximum * 1000),
            host=socket.gethostname(),
            process=os.getpid(),
            attempt=self.attempt,
            process_tasks=self.process_tasks,
            process_bytes=resident_bytes(),
            private_bytes=private_memory.bytes(),
            number=self.vertex.number,
            started=self.metrics.started,
            operators=self.chain.take_counts(self.metrics.records_in),
            event_times=self.chain.take_event_times(),
            versions=self.versions,
            executor=self.executor,
            fallback=self.fallback,
            memory_limit=None if self.versions is None else container_limit(),
        )
