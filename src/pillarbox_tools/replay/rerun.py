"""Recreates a recorded task in this process, without Spark or Java."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from pillarbox._elements.buffers import Buffer, channel_code, decode, edge_of_channel, subtask_of_channel
from pillarbox._elements.records import ArrowRecords, Records, pickled_records
from pillarbox._errors import ConfigurationError, OperatorError, describe
from pillarbox._graph.layout import Layout, lay_out
from pillarbox._operators.budgets.ledger import LedgerScope
from pillarbox._operators.frame.shared_resources import SharedResources
from pillarbox._rows import batch_from_bytes
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._runtime.spark.homes.broadcasts import use_values
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._task.source_stream_task import SourceStreamTask
from pillarbox._task.stream_task import StreamTask
from pillarbox._task.vertex import REPORT_TARGET, Vertex
from pillarbox._time.clock_log import ClockLog, ReplayedClock
from pillarbox_tools.recording.recording import Recording, portions_in
from pillarbox_tools.replay.refused_calls import RefusedCallError, refused_calls, replay_calls


class Rerun:
    """A recreated task, which can run once.

    Args:
        shipped: the vertex. By default, the recorded vertex.
        broadcasts: pickled values of Spark's broadcast variables, by number. By default, as recorded.
        clock: constant time (Unix time in ms), or None to repeat the recorded readings.
        allow_calls: whether operators may call services. If False, the first call stops the task.

    Attributes:
        store: the task's state log. Running the task updates it.
    """

    def __init__(
        self,
        recording: Recording,
        shipped: ShippedVertex | None = None,
        clock: int | None = None,
        *,
        allow_calls: bool = False,
        broadcasts: Mapping[int, bytes] | None = None,
    ) -> None:
        facts = recording.facts
        self._recording = recording
        use_values(recording.broadcasts if broadcasts is None else broadcasts)
        recorded = _laid_out(recording, recording.shipped)
        # Loaded last, because loading a program replaces the classes in ``__main__``.
        self.vertex: Vertex = recorded if shipped is None else _laid_out(recording, shipped)
        replay_calls(self.vertex, recording.answers, allow_calls=allow_calls)
        self._edges = _edges(recording, recorded, self.vertex)
        self._places = {(code, edge.id): index for index, edge in enumerate(self.vertex.edges) for code in edge.targets}
        self.vertex.budget_scope, self.vertex.shared = LedgerScope(), SharedResources()
        self.store: MemoryChunkStore = MemoryChunkStore()
        self.store.chunks = dict(recording.state)
        log = ClockLog() if clock is not None or facts.clock is None else ClockLog.of_text(facts.clock)
        shown = ReplayedClock(log, facts.time if clock is None else clock, is_same_code=shipped is None)
        self.task: StreamTask
        if facts.level == 0:
            self.task = source = SourceStreamTask(self.vertex, facts.subtask, clock=shown)
            source.restore()
        else:
            self.task = task = MultipleInputStreamTask(self.vertex, facts.subtask, clock=shown)
            task.restore(self.store)

    def run(self, portions: Iterable[Any] | None = None) -> Iterator[list[Buffer]]:
        """Run the epoch on ``portions`` (by default, the recorded input). Yields output in parts."""
        facts, task = self._recording.facts, self.task
        batches = self.input() if portions is None else portions
        if isinstance(task, SourceStreamTask):
            return task.run_epoch(batches, subtask=facts.subtask, checkpoint_id=facts.epoch, bounded=facts.is_last)
        assert isinstance(task, MultipleInputStreamTask)
        return task.run_epoch(batches, self.store, facts.time, last=facts.is_last)

    def input(self) -> Iterator[Any]:
        portions = portions_in(self._recording.folder)
        if self._recording.facts.level == 0:
            batches = map(batch_from_bytes, portions)
            return map(pickled_records if self._recording.facts.is_pickled else ArrowRecords, batches)
        return ([self._renumbered(Buffer(*fields)) for fields in portion] for portion in portions)

    def _renumbered(self, buffer: Buffer) -> Buffer:
        edge = edge_of_channel(buffer.channel)
        if self._edges.get(edge, edge) == edge:
            return buffer
        return buffer._replace(channel=channel_code(self._edges[edge], subtask_of_channel(buffer.channel)))

    def outputs(self, buffers: Iterable[Buffer]) -> list[tuple[int, Records]]:
        return [
            (self._places[buffer.target, edge_of_channel(buffer.channel)], element)
            for buffer in buffers
            if buffer.target != REPORT_TARGET and isinstance(element := decode(buffer.payload), Records)
        ]


@dataclass
class RerunOutcome:
    """The outcome of a run."""

    rerun: Rerun | None = None
    error: Exception | None = None
    unanswered: str | None = None


def run_once(
    recording: Recording,
    make: Callable[[], Rerun],
    run: Callable[[Rerun], None],
    *,
    allow_calls: bool,
    on_error: Callable[[Exception], None] = lambda error: None,
) -> RerunOutcome:
    """Create a task with ``make``, run it, and cancel it. Errors in ``make`` propagate."""
    outcome = RerunOutcome()
    with nullcontext() if allow_calls else refused_calls(recording.facts.uid) as refused:
        try:
            outcome.rerun = make()
            run(outcome.rerun)
        except (Exception, RefusedCallError) as error:
            if refused is None or refused.first is None:
                if outcome.rerun is None or not isinstance(error, Exception):
                    raise
                outcome.error = error
                on_error(error)
        finally:
            if outcome.rerun is not None:
                outcome.rerun.task.cancel()
    outcome.unanswered = None if refused is None else refused.first
    return outcome


def _laid_out(recording: Recording, shipped: ShippedVertex) -> Vertex:
    try:
        vertex = shipped.load()
    except OperatorError as error:
        if not isinstance(error.__cause__, ImportError):
            raise
        raise ConfigurationError(
            f"the functions of {shipped.name!r} cannot be loaded: {describe(error.__cause__)}. Add the folder of the"
            " missing module to PYTHONPATH, or install its package"
        ) from error
    lay_out(vertex, Layout(*recording.facts.layout))
    return vertex


def _edges(recording: Recording, vertex: Vertex, other: Vertex) -> dict[int, int]:
    recorded, others = ([edge.id for edge in program.inputs] for program in (vertex, other))
    if len(recorded) != len(others):
        raise ConfigurationError(
            f"operator {recording.facts.uid!r} has {len(others)} inputs in the other program, but {len(recorded)} in"
            " the recording: the numbers must be equal, because both programs run on the recorded input"
        )
    return dict(zip(recorded, others))
