"""The operators of a vertex, wired to call each other directly (P6)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Event
from typing import Any

from pillarbox._copies import Copier, NoCopier, declare_immutable
from pillarbox._errors import CheckpointMismatchError
from pillarbox._operators.frame.operator import (
    Discard,
    Fanout,
    Input,
    KeyedContext,
    OperatorContext,
    RecordInput,
    StreamOperator,
)
from pillarbox._operators.frame.shared_resources import SharedResources
from pillarbox._operators.functions.checkpointed import OperatorStateStore
from pillarbox._operators.stateless.typed_results import typed
from pillarbox._operators.timestamps_and_watermarks import status_said_anew
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._task.counted_output import CountedOutput, Outputs, records_by_operator
from pillarbox._task.network.record_writer import RecordWriter
from pillarbox._task.vertex import Consumers, Vertex
from pillarbox._time.batch_timer_service import BatchTimeServiceManager
from pillarbox._time.clock import ProcessingTimeCallback
from pillarbox._time.clock_log import LoggedClock
from pillarbox._time.epoch_valve import EpochValve
from pillarbox._time.internal_timer_service import InternalTimerService, InternalTimeServiceManager
from pillarbox._time.operator_clock import ProcessingTimeServiceImpl
from pillarbox._time.timestamps import MAX_WATERMARK
from pillarbox.mailbox import MailboxExecutor, MailboxProcessor


class OperatorChain:
    """A tree of operators: node 0 is the head.

    They are made and opened from the tail to the head, and finished from the head to the tail. Each operator has its
    own mailbox executor, with its index in the chain as priority. Only the mailbox thread may touch a chain.

    Args:
        backend: keyed state, for the operator at the head; None where it has none.
        own_state: where states of the operators themselves lie; None where there is no place for them.
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
        # The outputs of each operator.
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
            copier = NoCopier(node.name) if vertex.object_reuse else Copier(node.name)
            counted = {
                tag: CountedOutput(typed(wiring.consumers((node.uid, tag), wanted, copier), types.get(tag), node.name))
                for tag, wanted in [(None, node.output), *node.side_outputs.items()]
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
        self._meetings = dict(sorted(wiring.meetings.items()))
        self._hearers = wiring.hearers()

    @property
    def head(self) -> StreamOperator:
        """The operator that the task's input goes to."""
        return self.operators[0]

    def timer_services(self) -> Iterable[InternalTimerService]:
        """Return the timers of the keyed operator at the head; none where there is no such operator."""
        return () if self._keyed is None else self._keyed.timers.services()

    def take_counts(self, records_in: int) -> list[list[int]]:
        """Return for each operator how many records came in and went out since the last call.

        Args:
            records_in: how many records came to the head.
        """
        counts = records_by_operator(self._nodes, self._outputs, records_in)
        for outputs in self._outputs:
            for output in outputs.values():
                output.count = 0
        return counts

    def take_event_times(self) -> list[Any] | None:
        """Return the event times of the records since the last call, as a :class:`TaskReport` has them."""
        found = [operator.take_event_times() for operator in self.operators]
        return next((times for times in found if times is not None), None)

    def set_subtask(self, subtask: int) -> None:
        """Set the partition of the source that the task processes from now on."""
        for operator in self.operators:
            operator.context.subtask = subtask

    def set_epoch(self, epoch: int) -> None:
        """Tell the operators which epoch runs from now on."""
        for operator in self.operators:
            operator.context.epoch = epoch
        for meeting in self._meetings.values():
            meeting.valve.begin_epoch()

    def begin_epoch(self) -> None:
        """Begin an epoch of a source: event time begins again, too."""
        for meeting in self._meetings.values():
            meeting.restore(None)
        for operator in self.operators:
            operator.begin_epoch()

    def open(self) -> None:
        """Open all operators, the tail first, so that each finds its successors ready."""
        self._opened = True
        for operator in reversed(self.operators):
            operator.open()

    # -- event time, from the valve of the input --

    def process_watermark(self, timestamp: int) -> None:
        """Advance event time, from the head on."""
        if timestamp == MAX_WATERMARK:
            # Records that timers are about to emit would come too late downstream.
            self.fire_overdue_timers()
            quiesce(self.operators[0], self._clocks[0])
        self.head.process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        """Hand on a change between idle and active."""
        self.head.process_status(idle)

    def fire_overdue_timers(self) -> None:
        """Fire the processing-time timers that waited for the epoch's records."""
        for service in self.timer_services():
            service.fire_overdue_processing_time_timers()

    # -- the end of the data --

    def resume_timers(self) -> None:
        """Let timers fire again that the end of a former epoch's data has quiesced."""
        for clock in self._clocks:
            clock.resume()

    def finish(self) -> None:
        """End the data, operator by operator, the head first: nothing of one comes once it is finished.

        Each ends its input, with its timers at work; then its timers are quiesced, and those of its mails run that
        are waiting, above all of timers that have fired; then it is finished. The maximum watermark sets out from the
        head after all that the head's timers emit. (In Flink it does so before, and what they emit comes too late.)
        """
        for meeting in self._meetings.values():
            meeting.end_epoch()
        for operator, clock in zip(self._in_order(), self._clocks):
            operator.end_input()
            quiesce(operator, clock)
            if operator is self.head:
                operator.process_watermark(MAX_WATERMARK)
            operator.finish()

    def close(self) -> list[Exception]:
        """Close all operators; give what went wrong, having closed the others nevertheless."""
        for clock in self._clocks:
            # The clock beneath may outlive the task: no timer of a dead one may reach its closed mailbox.
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
        """Let operators emit what must go before the barrier, the head first, and streams that meet count."""
        for operator in self._in_order():
            operator.prepare_snapshot_pre_barrier(checkpoint_id)

    def _in_order(self) -> Iterator[StreamOperator]:
        """Yield the operators, the head first. Before each, all counts that streams have said by then which meet there.

        The same goes for those that meet after all operators.
        """
        for place, operator in enumerate(self.operators):
            if place in self._meetings:
                self._meetings[place].end_epoch()
            yield operator
        for place, meeting in self._meetings.items():
            if place >= len(self.operators):
                meeting.end_epoch()

    def snapshot_state(self, checkpoint_id: int) -> dict[str, Any]:
        """Return the operators' own state by uid; keyed state is written by the state log."""
        states: dict[str, Any] = {}
        for operator in self.operators:
            operator.snapshot_function(checkpoint_id)
            state = operator.snapshot_state(checkpoint_id)
            if state is not None:
                states[operator.uid] = state
        return states

    def snapshot_event_time(self, *, input_is_idle: bool = False) -> dict[str, Any]:
        """Return what is known of event time after the input's valve, as plain data.

        ``{"operators": {uid: what it returned}, "meetings": {name: snapshot of its valve}}``; where something is idle,
        also ``"heard"``, the names of all that have been told so.
        """
        said = {operator.uid: operator.snapshot_event_time() for operator in self.operators}
        operators = {uid: state for uid, state in said.items() if state is not None}
        meetings = {meeting.name: meeting.valve.snapshot() for meeting in self._meetings.values()}
        idle = any(known.get("idle") for known in (*operators.values(), *meetings.values()))
        return {
            "operators": operators,
            "meetings": meetings,
            **({"heard": self._hearers} if input_is_idle or idle else {}),
        }

    def have_heard(self, state: Mapping[str, Any]) -> bool:
        """Return whether all that are to be told what is idle have been told so by the time of a snapshot."""
        return state.get("heard") == self._hearers

    def restore_event_time(self, state: Mapping[str, Any], *, say_anew: bool = False) -> None:
        """Take back what ``snapshot_event_time`` returned, as far as there still are such operators; or nothing.

        Args:
            say_anew: whether there may be operators, here or in later tasks, that have not heard which streams
                are idle.
        """
        meetings, operators = state.get("meetings", {}), state.get("operators", {})
        for meeting in self._meetings.values():
            meeting.restore(meetings.get(meeting.name), say_anew=say_anew)
        for operator in self.operators:
            known = operators.get(operator.uid)
            operator.restore_event_time(known if known is None or not say_anew else status_said_anew(known))

    def restore_state(self, states: dict[str, Any], *, is_restored: bool) -> None:
        """Restore the operators' own state.

        Args:
            states: what operators returned with the last checkpoint, by uid.
            is_restored: whether there is a checkpoint.

        Raises:
            CheckpointMismatchError: there is state of an operator that the chain does not have.
        """
        lost = sorted(states.keys() - {operator.uid for operator in self.operators})
        if lost:
            raise CheckpointMismatchError(
                f"the checkpoint holds what operator {lost[0]!r} had not finished, which the program does not have in"
                f" {self.head.name!r}: run the program that wrote it, set uid() of the operator to the one in the"
                " checkpoint, or start from a new one"
            )
        for operator in self.operators:
            operator.restore_state(states.get(operator.uid))
            operator.initialize_function(is_restored=is_restored)


#: A stream of a chain: the uid of its operator, and the tag of a side output or None.
_Stream = tuple[str, str | None]


class _Wiring:
    """Connects the operators of a chain while they are made, each after those that it sends to.

    Operators, then edges, have one numbering: their *places*.

    Attributes:
        operators: those that are made, by place.
        meetings: where several streams meet, by place.
    """

    def __init__(self, vertex: Vertex, writer: RecordWriter) -> None:
        self._vertex = vertex
        self._arriving: defaultdict[int, list[_Stream]] = defaultdict(list)
        for node in vertex.nodes:
            for tag, wanted in [(None, node.output), *node.side_outputs.items()]:
                for place, _ in self._places(wanted):
                    self._arriving[place].append((node.uid, tag))
        self._names = [*((node.uid,) for node in vertex.nodes), *_names_of_edges(vertex)]
        self._targets: dict[int, Input] = {}
        self.operators: dict[int, StreamOperator] = {}
        self.meetings: dict[int, _Meeting] = {}
        for place, edge in enumerate(writer.edges, len(vertex.nodes)):
            self._add_target(place, edge)

    def add(self, place: int, operator: StreamOperator) -> None:
        """Make an operator known, so that streams can lead to it."""
        self.operators[place] = operator
        self._add_target(place, operator)

    def _add_target(self, place: int, target: Input) -> None:
        self._targets[place] = target
        if len(self._arriving[place]) > 1:
            self.meetings[place] = _Meeting(self._names[place], target, self._arriving[place])

    def hearers(self) -> list[tuple[Any, ...]]:
        """Return names of all that are told which streams are idle: of the edges, and of the streams that meet."""
        met = ((*meeting.name, *branch) for meeting in self.meetings.values() for branch in meeting.branches)
        return [*_names_of_edges(self._vertex), *met]

    def consumers(self, stream: _Stream, wanted: Consumers, copier: Copier) -> Input:
        """Return the one input that stands for all consumers of a stream.

        Edges change no records and come last, so they share the stream's own; without edges, the last operator gets it.
        """
        inputs = [self._input_at(stream, place, index) for place, index in self._places(wanted)]
        if not inputs:
            return Discard()
        if len(inputs) == 1:
            return inputs[0]
        owners = len(wanted.nodes) if wanted.edges else len(inputs) - 1
        return Fanout(inputs, copier, 0 if copier.is_off else owners)

    def _input_at(self, stream: _Stream, place: int, index: int) -> Input:
        target = self._targets[place]
        if place not in self.meetings:
            return target
        way_in = self.operators[place].inputs[index] if place in self.operators else target
        return self.meetings[place].branch(stream, way_in)

    def _places(self, wanted: Consumers) -> list[tuple[int, int]]:
        """Return the places of consumers, each with the index of its input."""
        return [
            *((consumer.node, consumer.index) for consumer in wanted.nodes),
            *((len(self._vertex.nodes) + edge, 0) for edge in wanted.edges),
        ]


def _names_of_edges(vertex: Vertex) -> Iterator[tuple[Any, ...]]:
    """Return names of edges, which they keep when vertices get other numbers: receiver, its input, and which it is."""
    uids: dict[int | str, str] = {number: uid for uid, number, _ in vertex.program}
    seen: Counter[Any] = Counter()
    for edge in vertex.edges:
        name = "edge", uids.get(edge.receiver, edge.receiver), edge.index
        yield *name, seen[name]
        seen[name] += 1


class _Meeting:
    """The place where several streams of one chain meet: a union, or the inputs of one operator.

    Event time is the minimum of theirs. In Flink they would come in by several channels, and the input's valve would
    take care of that.

    Args:
        name: by which a checkpoint knows it.
        streams: the streams that meet; one that comes twice occurs twice.
    """

    def __init__(self, name: tuple[Any, ...], target: Input, streams: Sequence[_Stream]) -> None:
        self.name = name
        self.target = target
        self.branches = [(*stream, streams[:number].count(stream)) for number, stream in enumerate(streams)]
        self._taken: Counter[_Stream] = Counter()
        self.restore(None)

    def restore(self, snapshot: dict[str, Any] | None, *, say_anew: bool = False) -> None:
        """Take back what the streams have said; None: nothing, as at the beginning of an epoch of a source."""
        self.valve = EpochValve(self.branches)
        if snapshot is not None:
            self.valve.restore(snapshot, say_anew=say_anew)

    def end_epoch(self) -> None:
        self.valve.end_epoch(self.target)

    def branch(self, stream: _Stream, records: RecordInput) -> _Branch:
        number = self._taken[stream]
        self._taken[stream] += 1
        return _Branch(self, (*stream, number), records)


class _Branch:
    """One of the streams that meet, and where its records go."""

    def __init__(self, meeting: _Meeting, name: tuple[Any, ...], records: RecordInput) -> None:
        self._meeting = meeting
        self._name = name
        self.process_records = records.process_records

    def process_watermark(self, timestamp: int) -> None:
        self._meeting.valve.watermark_came(self._name, timestamp, self._meeting.target)

    def process_status(self, idle: bool) -> None:
        self._meeting.valve.status_came(self._name, idle)


def quiesce(operator: StreamOperator, clock: ProcessingTimeServiceImpl) -> None:
    """Let no timer of an operator fire any more, and run its waiting mails."""
    executor = operator.context.mailbox_executor
    finished = Event()
    # After the mails of all timers that have fired. Then after all of its waiting mails.
    clock.quiesce().add_done_callback(lambda _: executor.execute(finished.set, "finish %s", operator.name))
    while not finished.is_set():
        executor.yield_ignoring_deferrable()


def as_mail(executor: MailboxExecutor) -> Callable[[ProcessingTimeCallback, int], None]:
    """Return a function that makes a timer's callback a mail with the operator's priority."""

    def defer(callback: ProcessingTimeCallback, timestamp: int) -> None:
        executor.execute(lambda: callback(timestamp), "timer callback at %d", timestamp)

    return defer
