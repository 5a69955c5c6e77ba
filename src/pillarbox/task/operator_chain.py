"""The operators of a vertex, wired to call each other directly (P6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pillarbox.mailbox import MailboxExecutor, MailboxProcessor
from pillarbox.operators.operator import Discard, Fanout, Input, OperatorContext, StreamOperator
from pillarbox.state import HeapKeyedStateBackend
from pillarbox.task.record_writer import RecordWriter
from pillarbox.task.vertex import Consumers, Vertex
from pillarbox.time import ProcessingTimeCallback, ProcessingTimeService, ProcessingTimeServiceImpl
from pillarbox.time.internal_timer_service import InternalTimeServiceManager

__all__ = ["OperatorChain", "as_mail"]


class OperatorChain:
    """A tree of operators: node 0 is the head. Opened from the tail to the head, finished from the head to the tail.

    Each operator has its own mailbox executor, with its index in the chain as priority. Only the mailbox thread
    may touch a chain.
    """

    def __init__(
        self,
        vertex: Vertex,
        subtask: int,
        processor: MailboxProcessor,
        clock: ProcessingTimeService,
        writer: RecordWriter,
        backend: HeapKeyedStateBackend | None,
    ) -> None:
        self.operators: list[StreamOperator] = [node.operator for node in vertex.nodes]
        self.time_services: InternalTimeServiceManager | None = None
        self._opened = False

        def consumers(wanted: Consumers) -> Input:
            inputs: list[Input] = [self.operators[node] for node in wanted.nodes]
            inputs += [writer.edges[edge] for edge in wanted.edges]
            if not inputs:
                return Discard()
            return inputs[0] if len(inputs) == 1 else Fanout(inputs)

        for index, node in enumerate(vertex.nodes):
            executor = processor.get_mailbox_executor(index)
            operator_clock = ProcessingTimeServiceImpl(clock, as_mail(executor))
            keyed = index == 0 and vertex.keyed
            if keyed:
                assert backend is not None
                self.time_services = InternalTimeServiceManager(backend, operator_clock)
            node.operator.setup(
                OperatorContext(
                    node.operator.name,
                    node.operator.uid,
                    subtask,
                    vertex.parallelism,
                    executor,
                    operator_clock,
                    backend if keyed else None,
                    self.time_services if keyed else None,
                ),
                consumers(node.output),
                {tag: consumers(side) for tag, side in node.side_outputs.items()},
            )

    @property
    def head(self) -> StreamOperator:
        """The operator that the task's input goes to."""
        return self.operators[0]

    def set_subtask(self, subtask: int) -> None:
        """Be another partition of the source from now on."""
        for operator in self.operators:
            operator.context.subtask = subtask

    def open(self) -> None:
        """Open all operators, the tail first, so that each finds those behind it ready."""
        self._opened = True
        for operator in reversed(self.operators):
            operator.open()

    def finish(self) -> None:
        """Let all operators emit what they have left, the head first."""
        for operator in self.operators:
            operator.finish()

    def close(self) -> list[Exception]:
        """Close all operators; give what went wrong, having closed the others nevertheless."""
        for operator in self.operators:
            # The clock may outlive the task: no timer of a dead one may reach its closed mailbox.
            operator.context.processing_time_service.quiesce()
        if not self._opened:
            return []
        self._opened = False
        failures: list[Exception] = []
        for operator in self.operators:
            try:
                operator.close()
            except Exception as error:
                failures.append(error)
        return failures

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Let operators emit what must go before the barrier, the head first."""
        for operator in self.operators:
            operator.prepare_snapshot_pre_barrier(checkpoint_id)

    def snapshot_state(self, checkpoint_id: int) -> dict[str, Any]:
        """Give the operators' own state by uid; keyed state is written by the state log."""
        states: dict[str, Any] = {}
        for operator in self.operators:
            state = operator.snapshot_state(checkpoint_id)
            if state is not None:
                states[operator.uid] = state
        return states

    def restore_state(self, states: dict[str, Any]) -> None:
        """Give operators their own state back."""
        for operator in self.operators:
            operator.restore_state(states.get(operator.uid))


def as_mail(executor: MailboxExecutor) -> Callable[[ProcessingTimeCallback, int], None]:
    """Give what makes a timer's callback a mail with the operator's priority."""

    def defer(callback: ProcessingTimeCallback, timestamp: int) -> None:
        executor.execute(lambda: callback(timestamp), "timer callback at %d", timestamp)

    return defer
