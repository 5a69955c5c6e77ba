"""A program's vertices (operator chains), which are pickled and sent to workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from itertools import count, islice

from pillarbox._elements.buffers import channel_code
from pillarbox._operators.budgets.ledger import LedgerScope
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.frame.shared_resources import SharedResources
from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._state.keys.state_note import StateNote
from pillarbox._task.network.partitioner import BroadcastPartitioner, Partitioner
from pillarbox._types.codecs import time_zone

# Target of buffers with a task's metrics. Subtask codes are not negative.
REPORT_TARGET = -1

# Channel of empty buffers, which make Spark run the receiving task.
WAKE_CHANNEL = -1

# The low bits of an edge's id are the sending vertex, the high bits the ordinal.
_VERTEX_BITS = 28


def edge_id(vertex: int, ordinal: int = 0) -> int:
    """Return an edge's id at its receiver. ``ordinal`` numbers edges between the same two vertices."""
    return ordinal << _VERTEX_BITS | vertex


def sender_of_edge(edge: int) -> int:
    return edge & ((1 << _VERTEX_BITS) - 1)


def edge_from(edge: int, vertex: int) -> int:
    return edge - sender_of_edge(edge) + vertex


#: Stateful operators: (uid, vertex number, level).
Places = Sequence[tuple[str, int, int]]


def source_numbers(places: Places) -> Iterator[int]:
    """Yield the vertex numbers of a program's sources, and then, endlessly, numbers for new sources."""
    stateful = {number for _, number, _ in places}
    return (number for number in count() if number not in stateful)


def edge_in(places: Places, edge: int, then: Places) -> int:
    """Translate an edge's id in an earlier program (``then``) to its id in ``places``, whose sources may differ.

    Sources are matched by order, as in Spark's checkpoints.
    """
    sender = sender_of_edge(edge)
    before = [number for _, number, _ in then]
    if sender in before:
        return edge
    position = sender - sum(number < sender for number in before)
    return edge_from(edge, next(islice(source_numbers(places), position, None)))


@dataclass(frozen=True)
class VertexChainInput:
    """An operator input in the same chain."""

    node: int
    index: int = 0


@dataclass
class VertexConsumers:
    """The consumers of an operator's output: operators in the same chain, and edges."""

    nodes: list[VertexChainInput] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)


@dataclass
class ChainNode:
    """An operator of a chain (a tree of operators). Node 0 is the head."""

    name: str
    uid: str
    factory: OperatorFactory
    output: VertexConsumers = field(default_factory=VertexConsumers)
    side_outputs: dict[str, VertexConsumers] = field(default_factory=dict)
    is_sink: bool = False


@dataclass
class VertexEdge:
    """An outgoing edge of a vertex.

    Attributes:
        receiver: the number of the receiving vertex, or the name of an output.
        targets: the codes of the receiving subtasks (set by the layout) or of the output.
    """

    receiver: int | str
    index: int
    id: int
    targets: list[int]
    partitioner: Partitioner
    max_parallelism: int
    sender: str = ""
    senders: int = 0


@dataclass(frozen=True)
class InputEdge:
    """An incoming edge of a vertex.

    Attributes:
        parallelism: the number of sending subtasks, or 0 for a source, because its number of partitions may change.
        idle_timeout: a source without records for this time (ms) no longer holds the watermark back.
        progress_timeout: the watermark of a source without records for this time (ms) advances with the clock.
    """

    vertex: int
    parallelism: int
    idle_timeout: int | None = None
    ordinal: int = 0
    index: int = 0
    progress_timeout: int | None = None
    partitioner: Partitioner | None = None

    @property
    def id(self) -> int:
        return edge_id(self.vertex, self.ordinal)

    @property
    def is_broadcast(self) -> bool:
        return isinstance(self.partitioner, BroadcastPartitioner)

    @property
    def is_source(self) -> bool:
        return self.parallelism == 0

    @property
    def reacts_to_silence(self) -> bool:
        return self.is_source and (self.idle_timeout is not None or self.progress_timeout is not None)


@dataclass
class Vertex:
    """A chain of operators that runs as one task per subtask.

    Attributes:
        uid: the head operator's uid, which identifies the vertex's state.
        level: number of shuffles between the sources and the vertex; 0 for a source.
        parallelism: number of subtasks, or 0 for a source, because Spark decides the number.
        fires_processing_time: whether processing-time timers fire. The program must declare that it needs them, because
            Spark must then run epochs without data.
        program: uid, number and level of each stateful vertex in the program.
        latency_interval: interval between probes of the mailbox latency (ms), or None.
        parallelisms: all vertices' parallelisms. A layout computes numbers of subtasks from them.
        time_zone: the time zone of naive datetimes, or None to refuse them.
        partitions: the number of concurrent tasks after a shuffle, according to the program.
        budget_scope: the scope of the tasks' budgets, set in the worker.
    """

    number: int
    name: str
    uid: str
    level: int
    parallelism: int
    max_parallelism: int
    nodes: list[ChainNode]
    edges: list[VertexEdge]
    inputs: list[InputEdge]
    uses_processing_time: bool = False
    fires_processing_time: bool = True
    program: tuple[tuple[str, int, int], ...] = ()
    job_parallelism: int = 1
    latency_interval: int | None = None
    kind: str = ""
    key: KeyNote | None = None
    state_depends_on: StateNote = field(default_factory=dict)
    codes: int | None = None
    batch: bool = False
    time_zone: str | None = None
    moved: Mapping[tuple[str, str], type] = field(default_factory=dict)
    object_reuse: bool = False
    immutable: tuple[type, ...] = ()
    parallelisms: tuple[int | None, ...] = ()
    partitions: int = 1
    budget_scope: LedgerScope = field(default_factory=LedgerScope)
    shared: SharedResources | None = None

    @property
    def is_source(self) -> bool:
        return self.parallelism == 0

    @property
    def zone(self) -> tzinfo | None:
        return None if self.time_zone is None else time_zone(self.time_zone)

    @property
    def is_keyed(self) -> bool:
        return self.nodes[0].factory.keyed

    @property
    def channels(self) -> list[list[int]]:
        """The channels of each incoming edge. Edges from sources are left out, because their channels are unknown."""
        return [
            [channel_code(edge.id, subtask) for subtask in range(edge.parallelism)]
            for edge in self.inputs
            if not edge.is_source
        ]

    def log_identity(self, subtask: int) -> LogIdentity:
        return LogIdentity(
            self.uid,
            subtask,
            self.parallelism,
            self.max_parallelism,
            self.program,
            self.key,
            self.codes,
            self.state_depends_on,
        )
