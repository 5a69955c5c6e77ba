"""A vertex of the program, which tasks run, as it travels to the workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from functools import cached_property
from itertools import count, islice

from pillarbox._elements import channel_code
from pillarbox._operators.budgets.ledger import BudgetScope
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.frame.shared_resources import SharedResources
from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._state.keys.state_note import StateNote
from pillarbox._task.network.partitioner import BroadcastPartitioner, Partitioner
from pillarbox._types.codecs import time_zone

# The code of buffers with a task's metrics. Negative codes never belong to a subtask.
REPORT_TARGET = -1

# The channel of buffers that say nothing, but that their receiver is to run.
WAKE_CHANNEL = -1

# An edge's number holds the sending vertex in its lowest bits, above them the ordinal.
_VERTEX_BITS = 28


def edge_id(vertex: int, ordinal: int = 0) -> int:
    """Return the number by which a receiver knows one of its edges.

    Args:
        vertex: the sending vertex.
        ordinal: which of the edges from that vertex to this receiver it is, from 0.
    """
    return ordinal << _VERTEX_BITS | vertex


def sender_of_edge(edge: int) -> int:
    """Return the sending vertex of an edge, from the number by which the receiver knows it."""
    return edge & ((1 << _VERTEX_BITS) - 1)


def edge_from(edge: int, vertex: int) -> int:
    """Return the number of an edge where its sending vertex has another one."""
    return edge - sender_of_edge(edge) + vertex


#: Where the operators of a program are that have state: uid, vertex number, level.
Places = Sequence[tuple[str, int, int]]


def source_numbers(places: Places) -> Iterator[int]:
    """Return the vertex numbers of a program's sources, in their order; there is no end to them."""
    taken = {number for _, number, _ in places}
    return (number for number in count() if number not in taken)


def edge_in(places: Places, edge: int, then: Places) -> int:
    """Return the number of an edge in a program whose operators are where they were, and whose sources may not be.

    Sources are known by their order, since Spark knows them by their order when it resumes from a checkpoint.

    Args:
        then: the operators of the program in which the edge had its number.
    """
    sender = sender_of_edge(edge)
    before = [number for _, number, _ in then]
    if sender in before:
        return edge
    place = sender - sum(number < sender for number in before)
    return edge_from(edge, next(islice(source_numbers(places), place, None)))


@dataclass(frozen=True)
class ChainInput:
    """An input of an operator of the same chain.

    Attributes:
        node: index of the operator.
        index: which of the operator's inputs it is.
    """

    node: int
    index: int = 0


@dataclass
class Consumers:
    """The consumers of a stream within its vertex: inputs of the chain's operators, and edges out, by index."""

    nodes: list[ChainInput] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)


@dataclass
class ChainNode:
    """One operator of a chain. A chain is a tree; node 0 is its head.

    Attributes:
        name: the operator's name, for people.
        uid: what its state is stored under; unique in the program.
        factory: makes it.
        output: the consumers of its main output.
        side_outputs: the same by tag, for its side outputs.
    """

    name: str
    uid: str
    factory: OperatorFactory
    output: Consumers = field(default_factory=Consumers)
    side_outputs: dict[str, Consumers] = field(default_factory=dict)


@dataclass
class Edge:
    """A way out of a vertex.

    Attributes:
        receiver: the number of the receiving vertex, or the name of the output.
        index: the input of the receiving operator.
        id: the number by which the receiver knows the edge (:func:`edge_id`).
        targets: the buffer code of each receiving subtask (set by the layout), or of the output.
        partitioner: how records are spread over the targets.
        max_parallelism: number of key groups.
        sender: names of the operators that send on it.
        senders: the number of sending subtasks; 0: it is a source, whose partitions are Spark's.
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
    """A way into a vertex.

    Attributes:
        vertex: the sending vertex.
        parallelism: the number of its subtasks; 0 for a source, whose partitions are counted again in every epoch.
        idle_timeout: milliseconds without records after which a source no longer holds back the watermark.
        ordinal: which of the edges from that vertex to this one it is, from 0.
        index: the input of the head operator that its records go to.
        progress_timeout: milliseconds without records after which a source's watermark advances with the clock.
        partitioner: how the records are spread on it.
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
        """The number by which the vertex knows the edge."""
        return edge_id(self.vertex, self.ordinal)

    @cached_property
    def is_broadcast(self) -> bool:
        """Whether each subtask gets all records."""
        return isinstance(self.partitioner, BroadcastPartitioner)

    @property
    def is_source(self) -> bool:
        """Whether it comes from a source."""
        return self.parallelism == 0

    @property
    def reacts_to_silence(self) -> bool:
        """Whether something happens by the clock when no records come: only a source can be silent."""
        return self.is_source and (self.idle_timeout is not None or self.progress_timeout is not None)


@dataclass
class Vertex:
    """A chain of operators that runs as one task per subtask.

    Attributes:
        number: identifies the vertex in the program.
        name: for people.
        uid: what its state is stored under: the uid of its head operator.
        level: 0 for sources; one more than the highest level that it gets records from.
        parallelism: number of subtasks; 0 for a source, whose partitions are Spark's.
        nodes: the chain.
        edges: its ways out.
        inputs: its ways in; empty for a source.
        uses_processing_time: whether something in it has to happen by the wall clock.
        fires_processing_time: whether it will: a streaming query of Spark runs epochs without data only where the
            program says that it needs them.
        program: uid, number and level of all vertices of the program that have state.
        job_parallelism: number of subtasks of the program's vertices that are no sources and have no other one.
        latency_interval: milliseconds between two probes of how long mails wait for their turn; None: there are none.
        kind: the method that made its head operator.
        key: the description of its key; None where its head has no key.
        state_depends_on: what the keyed state of its head depends on.
        codes: by which scheme of codes the state of subtasks is found; None: it is found otherwise.
        parallelisms: the numbers of subtasks of all vertices of the program, where they do not depend on its layout.
        batch: whether it runs in batch mode.
        time_zone: the time zone of naive datetimes, by its name; None: they are no points in time.
        moved: the classes that have moved, by the module and name that checkpoints have them by.
        object_reuse: whether emitted values are not copied.
        immutable: the classes whose instances never change, as declared.
        partitions: how many tasks of a vertex after a shuffle run at a time, by the program.
        budget_scope: where its task's budgets are kept. The runtime sets it where the task runs.
        shared: what its task shares with the others of the vertex there; None: nothing. The runtime sets it, too.
    """

    number: int
    name: str
    uid: str
    level: int
    parallelism: int
    max_parallelism: int
    nodes: list[ChainNode]
    edges: list[Edge]
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
    budget_scope: BudgetScope = field(default_factory=BudgetScope)
    shared: SharedResources | None = None

    @property
    def is_source(self) -> bool:
        """Whether it reads a source; else it stands after a shuffle, and has a place for state."""
        return self.parallelism == 0

    @property
    def zone(self) -> tzinfo | None:
        """The time zone of naive datetimes."""
        return None if self.time_zone is None else time_zone(self.time_zone)

    @property
    def is_keyed(self) -> bool:
        """Whether the operator at its head has keyed state and timers."""
        return self.nodes[0].factory.keyed

    @property
    def channels(self) -> list[list[int]]:
        """The channels of each way in whose senders are known: of a source they are not."""
        return [
            [channel_code(edge.id, subtask) for subtask in range(edge.parallelism)]
            for edge in self.inputs
            if not edge.is_source
        ]

    def log_identity(self, subtask: int) -> LogIdentity:
        """Return whose state the log of a subtask holds."""
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
