"""What a task runs: a vertex of the program, as it travels to the workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from pillarbox.operators.keys import Keying
from pillarbox.operators.operator import StreamOperator
from pillarbox.state.key_note import KeyNote

__all__ = ["ChainNode", "Consumers", "Edge", "InputEdge", "Vertex", "channel_code"]

# A channel's number holds its vertex above these bits and its subtask below.
_SUBTASK_BITS = 20


def channel_code(vertex: int, subtask: int) -> int:
    """Give the number of the channel that a subtask sends on."""
    return vertex << _SUBTASK_BITS | subtask


def vertex_of_channel(channel: int) -> int:
    """Give the vertex that sends on a channel."""
    return channel >> _SUBTASK_BITS


@dataclass
class Consumers:
    """Who takes a stream within its vertex: operators of the chain, and edges that leave it."""

    nodes: list[int] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)


@dataclass
class ChainNode:
    """One operator of a chain, and who takes what it emits. A chain is a tree; node 0 is its head."""

    operator: StreamOperator
    output: Consumers = field(default_factory=Consumers)
    side_outputs: dict[str, Consumers] = field(default_factory=dict)


@dataclass
class Edge:
    """A way out of a vertex.

    Attributes:
        targets: the buffer code of each receiving subtask; of the output where ``keying`` is None.
        keying: how records are spread over the targets; None: all go to the one output.
        max_parallelism: number of key groups.
        label: for people.
        sender: names of the operators that send on it.
    """

    targets: list[int]
    keying: Keying | None
    max_parallelism: int
    label: str
    sender: str = ""


@dataclass(frozen=True)
class InputEdge:
    """A way into a vertex.

    Attributes:
        vertex: the sending vertex.
        parallelism: the number of its subtasks; None for a source under Spark, whose partitions are counted
            anew in every epoch.
        idle_timeout: milliseconds without records after which a source no longer holds back the watermark.
    """

    vertex: int
    parallelism: int | None
    idle_timeout: int | None = None


@dataclass
class Vertex:
    """A chain of operators that runs as one task per subtask.

    Attributes:
        number: identifies the vertex in the program.
        name: for people.
        uid: what its state is stored under: the uid of its keyed operator.
        level: 0 for sources; one more than the highest level that it gets records from.
        parallelism: number of subtasks; 0 for a source, whose partitions are Spark's.
        keyed: whether its head operator has keyed state.
        inputs: where it gets records from; empty for a source.
        report_target: the buffer code of the metrics.
        uses_processing_time: whether something in it has to happen by the wall clock.
        fires_processing_time: whether it will: a streaming query of Spark runs epochs without data only where the
            program says that it needs them.
        program: uid, number and level of all vertices of the program that have state.
        kind: the method that made its keyed operator.
        key: what is noted of its key.
    """

    number: int
    name: str
    uid: str
    level: int
    parallelism: int
    max_parallelism: int
    keyed: bool
    nodes: list[ChainNode]
    edges: list[Edge]
    inputs: list[InputEdge]
    report_target: int
    uses_processing_time: bool = False
    fires_processing_time: bool = True
    program: tuple[tuple[str, int, int], ...] = ()
    kind: str = ""
    key: KeyNote | None = None
