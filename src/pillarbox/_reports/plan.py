"""A program's plan as data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pillarbox._graph.program import Program


@dataclass(frozen=True)
class PlanOperator:
    """An operator: its name and the uid of its state and metrics."""

    name: str
    uid: str


@dataclass(frozen=True)
class PlanVertex:
    """A chain of operators that runs as one task per subtask.

    Attributes:
        kind: the method that created the first operator; empty for a source.
        calls: uids of the operators that are declared to call services.
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
        return " -> ".join(operator.name for operator in self.operators)

    @property
    def uid(self) -> str:
        return self.operators[0].uid


@dataclass(frozen=True)
class PlanEdge:
    """An edge from a vertex to another vertex or to an output.

    Attributes:
        receiver: the number of the receiving vertex, or -1 for an output.
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
        senders: set[int] = set()
        pending = [number]
        while pending:
            receiver = pending.pop()
            for edge in self.edges:
                if (edge.program, edge.receiver) == (program, receiver) and edge.sender not in senders:
                    senders.add(edge.sender)
                    pending.append(edge.sender)
        return sorted(senders)

    def named(self, name: str) -> Plan:
        vertices = [replace(vertex, program=name) for vertex in self.vertices]
        return Plan(vertices, [replace(edge, program=name) for edge in self.edges])


def plan_of(program: Program) -> Plan:
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
