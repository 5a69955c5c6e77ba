"""The task of a vertex (operator chain) after a shuffle: an input gate, operators and a state log.

Follows Flink's ``MultipleInputStreamTask`` and ``OneInputStreamTask``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pillarbox._elements.buffers import Buffer
from pillarbox._elements.elements import Watermark, WatermarkStatus
from pillarbox._elements.records import Records
from pillarbox._elements.task_report import TaskReport
from pillarbox._errors import OperatorError, causes_of, place_of_task, shorten
from pillarbox._operators.frame.keying import Keying
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.key_rows import KeyOwner
from pillarbox._state.log.state_log import StateLog, Sync
from pillarbox._state.savepoint.own_state import gate_with_edges
from pillarbox._task.key_sample import KeySample
from pillarbox._task.lifecycle import EpochPhase, TaskEvent, TaskState
from pillarbox._task.memory import Memory, MemoryProbe, process_memory, readable
from pillarbox._task.metrics import TaskMetrics
from pillarbox._task.network.batch_input import BatchInput
from pillarbox._task.network.input_gate import InputGate
from pillarbox._task.network.task_input import DataInputStatus, IteratorInputReader
from pillarbox._task.operator_chain import OperatorChain
from pillarbox._task.stream_task import StreamTask
from pillarbox._task.vertex import Vertex, edge_in
from pillarbox._time.clock import ProcessingTimeService
from pillarbox._time.clock_log import ReplayedClock

_log = logging.getLogger("pillarbox")

# Memory for writing state: a large epoch's chunks, and Arrow's copy of the output.
_HEADROOM = 16 * 1024 * 1024


class MultipleInputStreamTask(StreamTask):
    """A task after a shuffle."""

    def __init__(
        self,
        vertex: Vertex,
        subtask: int,
        *,
        clock: ProcessingTimeService | None = None,
        memory: MemoryProbe = process_memory,
    ) -> None:
        owner = KeyOwner(subtask, vertex.parallelism, vertex.max_parallelism)
        self.backend: KeyedStateBackend = KeyedStateBackend(vertex.nodes[0].name, owner, vertex.zone)
        super().__init__(
            vertex,
            subtask,
            clock=clock,
            backend=self.backend if vertex.is_keyed else None,
            own_state=self.backend,
        )
        self._replayed = clock if isinstance(clock, ReplayedClock) else None
        self._memory = memory
        self._warned = False
        self._own_state = any(node.factory.stateful for node in vertex.nodes)
        self.log: StateLog = StateLog(
            vertex.log_identity(subtask), self.backend, own_state=self._own_state, moved=vertex.moved
        )
        self.gate: InputGate = InputGate(vertex.name, vertex.inputs)
        self._batch: BatchInput | None = None
        if vertex.batch:
            head = self.chain.head
            self._batch = BatchInput(head.name, vertex.inputs, by_key=vertex.is_keyed and head.by_key)
        self._keyings: list[Keying | None] = [
            getattr(head_input, "keying", None) for head_input in self.chain.head.inputs
        ]
        self._keys = KeySample(subtask)
        self._store: ChunkStore | None = None
        self._sync = Sync.IN_STEP
        self._state_format: str | None = None
        self._restore_seconds = 0.0
        self._epoch_time = 0
        self._is_last = False

    def restore(self, store: ChunkStore | None) -> bool:
        """Load the store's state into a new task, or check that a used task has the store's version.

        Returns False if the task has uncommitted changes, or if another process has run a later epoch. The caller must
        then create a new task. In batch mode, ``store`` is None.
        """
        first = self.state is TaskState.CREATED
        try:
            with self._working(TaskEvent.RESTORE if first else TaskEvent.SYNC, TaskEvent.RESTORED):
                self.metrics = TaskMetrics()
                if first:
                    self.chain.open()
                    self.backend.seal()
                    self._state_format = None if store is None else self._find_state_format()
                self.metrics.state.mark_start()
                self._sync = Sync.IN_STEP if store is None else self.log.sync(store)
                self.metrics.state.mark_end()
                self._restore_seconds = self.metrics.state.total
                if first:
                    self._restore_task_state(self.log.task_state)
        except Exception as error:
            if _ran_out_of_memory(error):
                raise self._out_of_memory(self._memory()) from error
            raise
        if self._sync is Sync.OUT_OF_STEP:
            self.cancel()
            return False
        return True

    def _find_state_format(self) -> str | None:
        if not self.backend.is_declared and not self._own_state:
            return None
        reason = self.log.reason_for_pickles
        if self.subtask == 0:
            description = "plain data of the declared types" if reason is None else f"pickles: {reason}"
            _log.info(
                "the state in the checkpoint is stored as %s %s", description, place_of_task(self.chain.head.name)
            )
        return "plain" if reason is None else f"pickle: {reason}"

    def _restore_task_state(self, task_state: dict[str, Any]) -> None:
        # The operators are notified of this version again.
        self.latest_completed = max(0, self.log.version - 1)
        former = self.log.former_program
        event_time = task_state.get("event_time", {})
        repeat_status = not self.chain.has_receivers_of(event_time)
        gate = task_state.get("gate")  # ``adopt`` writes no gate
        if gate is not None:
            if former is not None:
                gate = gate_with_edges(gate, lambda edge: edge_in(self.vertex.program, edge, former))
            self.gate.restore(gate, repeat_status=repeat_status)
        for service in self.chain.timer_services():
            service.current_watermark = self.gate.current_watermark
        self.chain.restore_event_time(event_time, repeat_status=repeat_status)
        self.chain.restore_state(task_state.get("operators", {}), is_restored=self.log.version > 0)
        self.backend.check_operator_lists()

    @property
    def next_wake_up(self) -> int | None:
        """When the task next has work even without input (Unix time in ms), or None.

        This is the time of the earliest processing-time timer or timeout or, if requests are carried over, the epoch's
        time.
        """
        times = [service.next_processing_time_timer() for service in self.chain.timer_services()]
        times += [self.gate.next_wake_up(self._epoch_time)]
        times += [operator.next_wake_up for operator in self.chain.operators]
        times += [self._epoch_time] if self._is_unfinished else []
        return min((time for time in times if time is not None), default=None)

    @property
    def _is_unfinished(self) -> bool:
        return any(operator.is_unfinished for operator in self.chain.operators)

    def run_epoch(
        self,
        buffers: Iterable[Iterable[Buffer]],
        store: ChunkStore | None,
        epoch_time: int | None = None,
        *,
        last: bool = False,
    ) -> Iterator[list[Buffer]]:
        """Process an epoch's buffers, yield the output in parts, and write the state to ``store``.

        In batch mode, ``store`` is None, and there is only one epoch.

        Args:
            epoch_time: the time (Unix time in ms) that decides whether sources are idle and state has expired. It is
                the same in all tasks and when the epoch is repeated. By default, the clock's time.
        """
        try:
            with self._working(TaskEvent.BEGIN_EPOCH, TaskEvent.END_EPOCH):
                self._store = store
                self._is_last = last
                self._epoch_time = self.clock.current_processing_time() if epoch_time is None else epoch_time
                self.backend.now = self._epoch_time
                epoch = self.log.version + 1
                self.gate.begin_epoch(epoch)
                self.writer.begin_epoch(self.subtask, epoch)
                if self.log.version > self.latest_completed:
                    self.notify_checkpoint_complete_async(self.log.version)
                if self._replayed is not None:
                    buffers = self._replayed.feed(buffers)
                yield from self._run_epoch(epoch, buffers)
        except Exception as error:
            if _ran_out_of_memory(error):
                raise self._out_of_memory(self._memory()) from error
            raise

    def _begin_epoch(self) -> None:
        self.metrics.state.total += self._restore_seconds
        self.metrics.epoch.total += self._restore_seconds
        self._keys = KeySample(self.subtask)
        # Even if the program is not known to use processing time.
        self.processor.get_main_mailbox_executor().execute(self._start_timers, "start processing-time timers")

    def _start_timers(self) -> None:
        began = self.clock.read_beginning()
        for service in self.chain.timer_services():
            service.begin_epoch(began)

    def _process(self, item: Any) -> None:
        if self._batch is not None and self._batch.complete:
            self.chain.head.process_key_by_key(item)
        else:
            self._process_buffers(item, self._batch)

    def _process_buffers(self, item: Iterable[Buffer], batch: BatchInput | None) -> None:
        gate, inputs, keyings = self.gate, self.chain.head.inputs, self._keyings
        for buffer in item:
            self.metrics.buffers_in += 1
            for channel, element in gate.receive(buffer):
                if isinstance(element, Records):
                    self.metrics.count_run(len(element))
                    edge = gate.edge_of(channel)
                    if edge.is_broadcast:
                        self.metrics.broadcast_in += len(element)
                    elif (keying := keyings[edge.index]) is not None:
                        self._keys.draw(element, keying)
                    if batch is None or not batch.takes(edge, element, len(buffer.payload)):
                        inputs[edge.index].process_records(element)
                elif batch is not None:
                    continue
                elif isinstance(element, Watermark):
                    gate.watermark(channel, element.timestamp, self.chain)
                elif isinstance(element, WatermarkStatus):
                    gate.status(channel, element.idle)
            if batch is None and gate.any_barrier and not self.metrics.alignment.is_running:
                self.metrics.alignment.mark_start()

    def keys_of(self, channel: int, records: Records) -> list[Any]:
        keying = self._keyings[self.gate.edge_of(channel).index]
        return [] if keying is None else keying.keys_of(records)

    def _close_input(self) -> None:
        self.gate.close()
        if self._batch is not None:
            self._batch.close()
        super()._close_input()

    def _end_epoch(self) -> DataInputStatus:
        ended = self.gate.aligned()
        self.metrics.alignment.mark_end()
        if self._phase is EpochPhase.DATA_ENDED:
            return self._end_input()
        if self._batch is not None:
            if self._batch.complete:
                return DataInputStatus.END_OF_DATA
            self._reader.close()
            self._reader = IteratorInputReader(self._batch.in_order())
            return DataInputStatus.MORE_AVAILABLE
        self.gate.advance(self._epoch_time, _FiresOverdueTimers(self.chain))
        self.chain.fire_overdue_timers()
        if self._is_last:
            self.gate.end(self.chain)
        if ended or self._is_last:
            return DataInputStatus.END_OF_DATA
        return self._end_input()

    def _write_state(self, operator_states: dict[str, Any]) -> None:
        if self._store is None:
            self.log.check_changes()
            return
        self.metrics.state.mark_start()
        self._watch_memory()
        state = {"gate": self.gate.snapshot(), "operators": operator_states}
        event_time = self.chain.snapshot_event_time(input_is_idle=self.gate.is_idle)
        if any(event_time.values()):
            state["event_time"] = event_time
        self.log.commit(self._store, state, self.clock.log.to_bytes())
        self.metrics.state.mark_end()

    def _watch_memory(self) -> None:
        """Warn if the worker's memory is nearly exhausted, and raise if too little is left to write the state."""
        memory = self._memory()
        if memory is None:
            return
        if memory.left < _HEADROOM:
            raise self._out_of_memory(memory)
        if self._warned or not memory.is_scarce:
            return
        self._warned = True
        used, limit = readable(memory.used), readable(memory.limit)
        if memory.share is None:
            use = f"the worker uses {used} of its {limit} of memory"
        else:
            use = (
                f"the container's processes use {used} of its {limit} of memory, and this worker may use"
                f" {readable(memory.share)} of it"
            )
        _log.warning(
            "%s; writing the state of %d keys takes about %s, and several times as much memory: raise %s, or"
            " store less per key %s",
            use,
            self.backend.num_keys,
            readable(self.log.state_bytes),
            _setting_of(memory),
            self.place,
        )

    def _out_of_memory(self, memory: Memory | None) -> OperatorError:
        used = (
            "" if memory is None else f" ({readable(memory.limit - memory.left)} of {readable(memory.limit)} are used)"
        )
        largest = ", ".join(f"{shorten(key)} (about {readable(size)})" for key, size in self.backend.largest_keys())
        return OperatorError(
            f"operator {self.chain.head.name!r}, subtask {self.subtask}: the worker has no memory left{used}; the state"
            f" of {self.backend.num_keys} keys took about {readable(self.log.state_bytes)} when last written, and takes"
            f" several times as much memory; the largest keys are {largest or 'none'}: raise {_setting_of(memory)},"
            " store less per key, or raise the parallelism (pillarbox rescale)"
        )

    def _report(self) -> TaskReport:
        services = list(self.chain.timer_services())
        return replace(
            super()._report(),
            buffers_in=self.metrics.buffers_in,
            broadcast_in=self.metrics.broadcast_in,
            watermark=self.gate.current_watermark,
            keys=self.backend.num_keys,
            event_time_timers=sum(service.num_event_time_timers() for service in services),
            processing_time_timers=sum(service.num_processing_time_timers() for service in services),
            next_wake_up=self.next_wake_up,
            unfinished=self._is_unfinished,
            state_bytes=self.log.state_bytes,
            state_bytes_written=self.log.bytes_written,
            state_chunks=self.log.chunks,
            state_sync=self._sync.value,
            state_format=self._state_format,
            held_by=self.gate.held_by(),
            key_sample=self._keys.heaviest(),
            hot_keys={operator.uid: key for operator in self.chain.operators if (key := operator.hot_key)} or None,
        )


class _FiresOverdueTimers:
    """A chain's input at the end of an epoch. Fires overdue timers before the chain becomes idle."""

    def __init__(self, chain: OperatorChain) -> None:
        self._chain = chain
        self.process_watermark = chain.process_watermark

    def process_status(self, idle: bool) -> None:
        if idle:
            self._chain.fire_overdue_timers()
        self._chain.process_status(idle)


def _setting_of(memory: Memory | None) -> str:
    of_container = memory is not None and memory.share is not None
    return "spark.executor.memoryOverhead" if of_container else "spark.executor.pyspark.memory"


def _ran_out_of_memory(error: BaseException) -> bool:
    return any(isinstance(cause, MemoryError) for cause in causes_of(error))
