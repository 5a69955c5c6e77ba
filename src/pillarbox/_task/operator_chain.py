"""Creates and connects a vertex's operators, which call each other directly."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Event
from typing import Any

from pillarbox._copies import Copier, copier_of, declare_immutable
from pillarbox._errors import CheckpointMismatchError
from pillarbox._operators.frame.operator import (
    Input,
    KeyedContext,
    OperatorContext,
    OperatorDiscard,
    OperatorFanout,
    RecordInput,
    StreamOperator,
)
from pillarbox._operators.frame.shared_resources import SharedResources
from pillarbox._operators.frame.spark_time import SparkMicroBatch
from pillarbox._operators.functions.checkpointed import OperatorStateStore
from pillarbox._operators.stateless.typed_results import typed
from pillarbox._operators.timestamps_and_watermarks import status_said_anew
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._task.counted_output import CountedOutput, Outputs, records_by_operator
from pillarbox._task.network.record_writer import RecordWriter
from pillarbox._task.vertex import Vertex, VertexConsumers
from pillarbox._time.batch_timer_service import BatchTimeServiceManager
from pillarbox._time.clock import ProcessingTimeCallback
from pillarbox._time.clock_log import LoggedClock
from pillarbox._time.epoch_valve import EpochValve
from pillarbox._time.internal_timer_service import InternalTimerService, InternalTimeServiceManager
from pillarbox._time.operator_clock import ProcessingTimeServiceImpl
from pillarbox._time.timestamp_assigner import MAX_WATERMARK
from pillarbox.mailbox import MailboxExecutor, MailboxProcessor


class OperatorChain:
    """A tree of operators, whose head is node 0. Mailbox thread only.

    Operators are opened from the tail to the head, and finished from the head to the tail. Each operator has a mailbox
    executor, whose priority is the operator's index in the chain.

    Args:
        own_state: stores non-keyed state, or None.
    """

    def __init__(
        self,
        vertex: Vertex,
        subtask: int,
        processor: MailboxProcessor,
        clock: LoggedClock,
        writer: RecordWriter,
        backend: KeyedStateBackend | None,
        own_state: KeyedStateBackend | None = None,
    ) -> None:
        self._opened = False
        self._nodes = vertex.nodes
        self._outputs: list[Outputs] = []
        executors = [processor.get_mailbox_executor(index) for index in range(len(vertex.nodes))]
        self._clocks = [ProcessingTimeServiceImpl(clock, as_mail(executor), clock.log_firing) for executor in executors]
        self._keyed: KeyedContext | None = None
        if backend is not None:
            timers = (
                BatchTimeServiceManager(backend, self._clocks[0])
                if vertex.batch
                else InternalTimeServiceManager(backend, self._clocks[0], fires=vertex.fires_processing_time)
            )
            self._keyed = KeyedContext(backend, timers)
        wiring = _Wiring(vertex, writer)
        epoch_time = None if own_state is None else lambda: own_state.now
        shared = vertex.shared or SharedResources()
        declare_immutable(vertex.immutable)
        for index, node in reversed(list(enumerate(vertex.nodes))):
            types = node.factory.result_types
            copier = copier_of(node.name, object_reuse=vertex.object_reuse)
            counted = {
                tag: CountedOutput(
                    typed(wiring.consumers((node.uid, tag), consumers, copier), types.get(tag), node.name)
                )
                for tag, consumers in [(None, node.output), *node.side_outputs.items()]
            }
            self._outputs.insert(0, counted)
            outputs: dict[Any, Input] = {**counted}
            context = OperatorContext(
                node.name,
                node.uid,
                subtask,
                vertex.parallelism,
                executors[index],
                self._clocks[index],
                outputs.pop(None),
                outputs,
                self._keyed if index == 0 else None,
                vertex.job_parallelism,
                copier=copier,
                max_parallelism=vertex.max_parallelism,
                operator_state=None if own_state is None else OperatorStateStore(own_state, node.uid),
                batch=vertex.batch,
                epoch_time=epoch_time,
                budget_scope=vertex.budget_scope,
                shared=shared,
                read_elsewhere=set(node.factory.asked_tags) - node.side_outputs.keys(),
                zone=vertex.zone,
            )
            wiring.add(index, node.factory.make(context))
        self.operators: list[StreamOperator] = [wiring.operators[index] for index in range(len(vertex.nodes))]
        self._merges = dict(sorted(wiring.merges.items()))
        self._receivers = wiring.receivers()

    @property
    def head(self) -> StreamOperator:
        return self.operators[0]

    def timer_services(self) -> Iterable[InternalTimerService]:
        return () if self._keyed is None else self._keyed.timers.services()

    def take_counts(self, records_in: int) -> list[list[int]]:
        counts = records_by_operator(self._nodes, self._outputs, records_in)
        for outputs in self._outputs:
            for output in outputs.values():
                output.count = 0
        return counts

    def take_event_times(self) -> list[Any] | None:
        samples = [operator.take_event_times() for operator in self.operators]
        return next((times for times in samples if times is not None), None)

    def set_subtask(self, subtask: int) -> None:
        for operator in self.operators:
            operator.context.subtask = subtask

    def set_epoch(self, epoch: int) -> None:
        for operator in self.operators:
            operator.context.epoch = epoch
        for merge in self._merges.values():
            merge.valve.begin_epoch()

    def set_micro_batch(self, micro_batch: SparkMicroBatch) -> None:
        for operator in self.operators:
            operator.context.micro_batch = micro_batch

    def begin_epoch(self) -> None:
        for merge in self._merges.values():
            merge.restore(None)
        for operator in self.operators:
            operator.begin_epoch()

    def open(self) -> None:
        self._opened = True
        for operator in reversed(self.operators):
            operator.open()

    # Event time, from the valve of the input.

    def process_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_WATERMARK:
            # Results of timers that fire after this watermark would be late downstream.
            self.fire_overdue_timers()
            quiesce(self.operators[0], self._clocks[0])
        self.head.process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        self.head.process_status(idle)

    def fire_overdue_timers(self) -> None:
        for service in self.timer_services():
            service.fire_overdue_processing_time_timers()

    def resume_timers(self) -> None:
        for clock in self._clocks:
            clock.resume()

    def finish(self) -> None:
        """Finish the operators, head first, because a finished operator must not receive records.

        For each operator, end its input, stop its timers, run its waiting mails, and call ``finish``. The head emits
        the maximum watermark after its timers' results. (Flink emits the watermark first, which makes these results
        late.)
        """
        for merge in self._merges.values():
            merge.end_epoch()
        for operator, clock in zip(self._in_order(), self._clocks):
            operator.end_input()
            quiesce(operator, clock)
            if operator is self.head:
                operator.process_watermark(MAX_WATERMARK)
            operator.finish()

    def close(self) -> list[Exception]:
        for clock in self._clocks:
            # The clock may outlive the task, whose mailbox is closed.
            clock.quiesce()
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
        for operator in self._in_order():
            operator.prepare_snapshot_pre_barrier(checkpoint_id)

    def _in_order(self) -> Iterator[StreamOperator]:
        """Yield the operators, head first. Applies a merge's pending watermarks before it yields the next operator."""
        for number, operator in enumerate(self.operators):
            if number in self._merges:
                self._merges[number].end_epoch()
            yield operator
        for number, merge in self._merges.items():
            if number >= len(self.operators):
                merge.end_epoch()

    def snapshot_state(self, checkpoint_id: int) -> dict[str, Any]:
        states: dict[str, Any] = {}
        for operator in self.operators:
            operator.snapshot_function(checkpoint_id)
            state = operator.snapshot_state(checkpoint_id)
            if state is not None:
                states[operator.uid] = state
        return states

    def resume_after_snapshot(self) -> None:
        for operator in self.operators:
            operator.resume_after_snapshot()

    def snapshot_event_time(self, *, input_is_idle: bool = False) -> dict[str, Any]:
        """Return the event-time state of the operators and merges as plain data.

        ``{"operators": {uid: state}, "meetings": {name: snapshot of the merge's valve}}``. If an input, operator or
        merge is idle, ``"heard"`` lists the edges and merge inputs that have received the idle status.
        """
        states = {operator.uid: operator.snapshot_event_time() for operator in self.operators}
        operators = {uid: state for uid, state in states.items() if state is not None}
        merges = {merge.name: merge.valve.snapshot() for merge in self._merges.values()}
        idle = any(state.get("idle") for state in (*operators.values(), *merges.values()))
        return {
            "operators": operators,
            "meetings": merges,
            **({"heard": self._receivers} if input_is_idle or idle else {}),
        }

    def has_receivers_of(self, state: Mapping[str, Any]) -> bool:
        """Return whether an event-time snapshot is from a chain with the same edges and merges."""
        return state.get("heard") == self._receivers

    def restore_event_time(self, snapshot: Mapping[str, Any], *, repeat_status: bool = False) -> None:
        """Restore the result of ``snapshot_event_time``, except for operators that no longer exist.

        With ``repeat_status``, emit idle statuses again, for operators that may not have received them.
        """
        merges, operators = snapshot.get("meetings", {}), snapshot.get("operators", {})
        for merge in self._merges.values():
            merge.restore(merges.get(merge.name), repeat_status=repeat_status)
        for operator in self.operators:
            state = operators.get(operator.uid)
            operator.restore_event_time(state if state is None or not repeat_status else status_said_anew(state))

    def restore_state(self, states: dict[str, Any], *, is_restored: bool) -> None:
        lost = sorted(states.keys() - {operator.uid for operator in self.operators})
        if lost:
            raise CheckpointMismatchError(
                f"the checkpoint contains unfinished work of operator {lost[0]!r}, but the program has no such"
                f" operator chained to {self.head.name!r}: let the old program finish it, set the operator's uid() to"
                " the checkpoint's uid, or use a new checkpoint directory"
            )
        for operator in self.operators:
            operator.restore_state(states.get(operator.uid))
            operator.initialize_function(is_restored=is_restored)


#: A stream: its operator's uid, and its side-output tag or None.
_Stream = tuple[str, str | None]


class _Wiring:
    """Connects the operators of a chain. An operator is added after the operators that consume its output.

    Operators and edges share one numbering, operators first.
    """

    def __init__(self, vertex: Vertex, writer: RecordWriter) -> None:
        self._vertex = vertex
        self._arriving: defaultdict[int, list[_Stream]] = defaultdict(list)
        for node in vertex.nodes:
            for tag, consumers in [(None, node.output), *node.side_outputs.items()]:
                for target, _ in self._targets_of(consumers):
                    self._arriving[target].append((node.uid, tag))
        self._names = [*((node.uid,) for node in vertex.nodes), *_names_of_edges(vertex)]
        self._targets: dict[int, Input] = {}
        self.operators: dict[int, StreamOperator] = {}
        self.merges: dict[int, _Merge] = {}
        for number, edge in enumerate(writer.edges, len(vertex.nodes)):
            self._add_target(number, edge)

    def add(self, number: int, operator: StreamOperator) -> None:
        self.operators[number] = operator
        self._add_target(number, operator)

    def _add_target(self, number: int, target: Input) -> None:
        self._targets[number] = target
        if len(self._arriving[number]) > 1:
            self.merges[number] = _Merge(self._names[number], target, self._arriving[number])

    def receivers(self) -> list[tuple[Any, ...]]:
        met = ((*merge.name, *branch) for merge in self.merges.values() for branch in merge.branches)
        return [*_names_of_edges(self._vertex), *met]

    def consumers(self, stream: _Stream, consumers: VertexConsumers, copier: Copier) -> Input:
        """Return an input that forwards to all consumers of a stream.

        Edges are last and receive the original records, because edges do not change them. Without edges, the last
        operator receives the originals. Other operators receive copies.
        """
        inputs = [self._input_at(stream, number, index) for number, index in self._targets_of(consumers)]
        if not inputs:
            return OperatorDiscard()
        if len(inputs) == 1:
            return inputs[0]
        owners = len(consumers.nodes) if consumers.edges else len(inputs) - 1
        return OperatorFanout(inputs, copier, 0 if copier.is_off else owners)

    def _input_at(self, stream: _Stream, number: int, index: int) -> Input:
        target = self._targets[number]
        if number not in self.merges:
            return target
        records = self.operators[number].inputs[index] if number in self.operators else target
        return self.merges[number].branch(stream, records)

    def _targets_of(self, consumers: VertexConsumers) -> list[tuple[int, int]]:
        return [
            *((consumer.node, consumer.index) for consumer in consumers.nodes),
            *((len(self._vertex.nodes) + edge, 0) for edge in consumers.edges),
        ]


def _names_of_edges(vertex: Vertex) -> Iterator[tuple[Any, ...]]:
    """Yield edge names that do not depend on vertex numbers: ("edge", receiver's uid, input index, ordinal)."""
    uids: dict[int | str, str] = {number: uid for uid, number, _ in vertex.program}
    seen: Counter[Any] = Counter()
    for edge in vertex.edges:
        name = "edge", uids.get(edge.receiver, edge.receiver), edge.index
        yield *name, seen[name]
        seen[name] += 1


class _Merge:
    """A merge of several streams within a chain, for a union or for an operator's inputs.

    Its event time is the minimum of the streams' event times. A stream merged with itself counts as two streams.
    """

    def __init__(self, name: tuple[Any, ...], target: Input, streams: Sequence[_Stream]) -> None:
        self.name = name
        self.target = target
        self.branches = [(*stream, streams[:number].count(stream)) for number, stream in enumerate(streams)]
        self._taken: Counter[_Stream] = Counter()
        self.restore(None)

    def restore(self, snapshot: dict[str, Any] | None, *, repeat_status: bool = False) -> None:
        self.valve = EpochValve(self.branches)
        if snapshot is not None:
            self.valve.restore(snapshot, repeat_status=repeat_status)

    def end_epoch(self) -> None:
        self.valve.end_epoch(self.target)

    def branch(self, stream: _Stream, records: RecordInput) -> _Branch:
        number = self._taken[stream]
        self._taken[stream] += 1
        return _Branch(self, (*stream, number), records)


class _Branch:
    def __init__(self, merge: _Merge, name: tuple[Any, ...], records: RecordInput) -> None:
        self._merge = merge
        self._name = name
        self.process_records = records.process_records

    def process_watermark(self, timestamp: int) -> None:
        self._merge.valve.watermark_came(self._name, timestamp, self._merge.target)

    def process_status(self, idle: bool) -> None:
        self._merge.valve.status_came(self._name, idle)


def quiesce(operator: StreamOperator, clock: ProcessingTimeServiceImpl) -> None:
    executor = operator.context.mailbox_executor
    finished = Event()
    # Sent after the mails of fired timers. Runs after all waiting mails.
    clock.quiesce().add_done_callback(lambda _: executor.execute(finished.set, "finish %s", operator.name))
    while not finished.is_set():
        executor.yield_ignoring_deferrable()


def as_mail(executor: MailboxExecutor) -> Callable[[ProcessingTimeCallback, int], None]:
    def defer(callback: ProcessingTimeCallback, timestamp: int) -> None:
        executor.execute(lambda: callback(timestamp), "timer callback at %d", timestamp)

    return defer
