"""A program's plan as text and as a Mermaid flowchart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox._task.vertex import Vertex

if TYPE_CHECKING:
    from pillarbox._graph.program import Program


def as_text(program: Program) -> str:
    lines = [f"Program {program.name!r}: parallelism {program.parallelism}, max parallelism {program.max_parallelism}"]
    if program.batch:
        lines[0] += ", batch mode"
    for level, vertices in enumerate(program.levels):
        lines.append(f"Level {level}" + (" (sources)" if level == 0 else ""))
        for vertex in vertices:
            line = f"  [{vertex.number}] {vertex.name}" + (f"  uid={vertex.uid}" if vertex.uid else "")
            if _differs(program, vertex):
                line += f"  parallelism={vertex.parallelism}"
            lines.append(line)
            for sender, edge, receiver in program.edges():
                if sender is vertex:
                    to = f"output {receiver!r}" if isinstance(receiver, str) else f"[{receiver.number}]"
                    lines.append(f"        --{edge.partitioner.label}--> {to}")
    return "\n".join(lines)


def as_mermaid(program: Program) -> str:
    lines = ["flowchart LR"]
    for level, vertices in enumerate(program.levels):
        lines.append(f'  subgraph L{level}["level {level}"]')
        for vertex in vertices:
            name = " &rarr; ".join(_quoted(node.name) for node in vertex.nodes)
            if _differs(program, vertex):
                name += f"<br/>parallelism {vertex.parallelism}"
            lines.append(f'    v{vertex.number}["{name}"]')
        lines.append("  end")
    for index, name in enumerate(program.outputs):
        lines.append(f'  o{index}(["{_quoted(name)}"])')
    for sender, edge, receiver in program.edges():
        to = f"o{program.outputs.index(receiver)}" if isinstance(receiver, str) else f"v{receiver.number}"
        lines.append(f'  v{sender.number} -- "{_quoted(edge.partitioner.label)}" --> {to}')
    return "\n".join(lines)


def _differs(program: Program, vertex: Vertex) -> bool:
    return not vertex.is_source and vertex.parallelism != program.layout.subtasks


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
