"""How the subtasks of a program are laid out: how many there are, which keys they own, where their state is found.

A program is compiled with one layout. A checkpoint has the one of its first start, which may be another, and is known
only when the query starts: so all that depends on it is set in one place, here, and can be set again in the workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from pillarbox._graph.targets import subtask_codes
from pillarbox._task.vertex import Vertex

# The numbers of subtasks of all vertices, by vertex: 0 for a source, whose partitions are Spark's; None: the layout's.
Parallelisms = tuple[int | None, ...]


class Layout(NamedTuple):
    """The numbers that decide where state lies.

    Attributes:
        subtasks: of each vertex after a shuffle that has no number of its own.
        key_groups: the shares of all keys, which the subtasks of a vertex divide among them.
        codes: by which scheme of codes the state of subtasks is found; None: it is found otherwise.
    """

    subtasks: int
    key_groups: int
    codes: int | None = None

    def count(self, parallelism: int | None) -> int:
        """Return the number of subtasks of a vertex, given its own (:data:`Parallelisms`)."""
        return self.subtasks if parallelism is None else parallelism


@lru_cache(maxsize=64)
def _codes(parallelisms: Parallelisms, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Return the codes of the subtasks of each vertex."""
    counts = map(layout.count, parallelisms)
    return tuple(tuple(subtask_codes(vertex, count)) if count else () for vertex, count in enumerate(counts))


@lru_cache(maxsize=64)
def subtask_places(parallelisms: Parallelisms, layout: Layout) -> Mapping[int, tuple[int, int]]:
    """Return vertex and subtask of each code."""
    return MappingProxyType(
        {
            code: (vertex, subtask)
            for vertex, codes in enumerate(_codes(parallelisms, layout))
            for subtask, code in enumerate(codes)
        }
    )


def lay_out(vertex: Vertex, layout: Layout) -> None:
    """Set everything in a vertex that depends on the layout."""
    codes = _codes(vertex.parallelisms, layout)
    vertex.parallelism = layout.count(vertex.parallelisms[vertex.number])
    vertex.job_parallelism = layout.subtasks
    vertex.max_parallelism = layout.key_groups
    vertex.codes = layout.codes
    for edge in vertex.edges:
        edge.max_parallelism = layout.key_groups
        if isinstance(edge.receiver, int):
            edge.targets = list(codes[edge.receiver])
            edge.senders = vertex.parallelism
    vertex.inputs = [
        replace(edge, parallelism=layout.count(vertex.parallelisms[edge.vertex])) for edge in vertex.inputs
    ]
