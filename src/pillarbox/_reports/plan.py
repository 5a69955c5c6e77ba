"""A program's plan as data: its vertices, the operators in each, and the ways between."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pillarbox._graph.program import Program


@dataclass(frozen=True)
class PlanOperator:
    """An operator of a chain: its name, for people, and the uid that its state and its metrics are found under."""

    name: str
    uid: str


@dataclass(frozen=True)
class PlanVertex:
    """A chain of operators that runs as one task per subtask.

    Attributes:
        program: the name of its program: a query may hold several.
        number: identifies the vertex in its program.
        level: 0 for sources; one more than the highest level that it gets records from.
        kind: the method that made its head operator; empty for a source.
        parallelism: the number of its subtasks; 0 for a source, whose partitions are Spark's.
        is_keyed: whether its records come by key, so that a key has its subtask.
        calls: the uids of its operators that call services, as far as the program says so.
        operators: the chain, its head first.
    """

    program: str
    number: int
    level: int
    kind: str
    parallelism: int
    is_keyed: bool
    calls: list[str]
    operators: list[PlanOperator]

    @property
    def name(self) -> str:
        """The names of its operators."""
        return " -> ".join(each.name for each in self.operators)

    @property
    def uid(self) -> str:
        """The uid of its head."""
        return self.operators[0].uid


@dataclass(frozen=True)
class PlanEdge:
    """A way from a vertex to another one, or to an output.

    Attributes:
        receiver: the number of the receiving vertex; -1 where it is an output.
        output: the name of the output; empty where it is a vertex.
        partitioner: how records are spread over the receiver's subtasks.
    """

    program: str
    sender: int
    receiver: int
    output: str
    partitioner: str


@dataclass(frozen=True)
class Plan:
    """The plan of a program, or of all programs of a query."""

    vertices: list[PlanVertex]
    edges: list[PlanEdge]

    def before(self, program: str, number: int) -> list[int]:
        """Return the numbers of the vertices that a vertex of a program gets records from, also through others."""
        found: set[int] = set()
        pending = [number]
        while pending:
            receiver = pending.pop()
            for edge in self.edges:
                if (edge.program, edge.receiver) == (program, receiver) and edge.sender not in found:
                    found.add(edge.sender)
                    pending.append(edge.sender)
        return sorted(found)

    def named(self, name: str) -> Plan:
        """Return the plan of a program that has another name in its query."""
        vertices = [replace(vertex, program=name) for vertex in self.vertices]
        return Plan(vertices, [replace(edge, program=name) for edge in self.edges])


def plan_of(program: Program) -> Plan:
    """Return the plan of a program, as it was compiled."""
    name = "pillarbox"
    return Plan(
        [
            PlanVertex(
                name,
                vertex.number,
                vertex.level,
                vertex.kind,
                vertex.parallelism,
                vertex.key is not None,
                [node.uid for node in vertex.nodes if node.factory.wakes_up],
                [PlanOperator(node.name, node.uid) for node in vertex.nodes],
            )
            for vertex in program.vertices
        ],
        [
            PlanEdge(
                name,
                sender.number,
                -1 if isinstance(receiver, str) else receiver.number,
                receiver if isinstance(receiver, str) else "",
                edge.partitioner.label,
            )
            for sender, edge, receiver in program.edges()
        ],
    )
