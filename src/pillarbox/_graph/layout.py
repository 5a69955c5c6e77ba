"""The layout of a program: each vertex's number of subtasks, their key groups, and the numbers of their state.

A program is compiled with a layout. When a query starts, its checkpoint may have a different layout, and workers update
everything that depends on the layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from pillarbox._graph.targets import subtask_codes
from pillarbox._task.vertex import Vertex

# Parallelism by vertex: 0 for a source, None for the layout's number.
Parallelisms = tuple[int | None, ...]


class Layout(NamedTuple):
    """The numbers that decide where state is stored.

    Attributes:
        subtasks: the number of subtasks of post-shuffle vertices whose parallelism is not set.
        codes: version of the subtask codes (grouping keys of the shuffle), or None if state is not stored by code.
    """

    subtasks: int
    key_groups: int
    codes: int | None = None

    def count(self, parallelism: int | None) -> int:
        """Return the number of subtasks of a vertex. ``parallelism`` is None unless the user has set it."""
        return self.subtasks if parallelism is None else parallelism


@lru_cache(maxsize=64)
def _codes(parallelisms: Parallelisms, layout: Layout) -> tuple[tuple[int, ...], ...]:
    counts = map(layout.count, parallelisms)
    return tuple(tuple(subtask_codes(vertex, count)) if count else () for vertex, count in enumerate(counts))


@lru_cache(maxsize=64)
def subtask_places(parallelisms: Parallelisms, layout: Layout) -> Mapping[int, tuple[int, int]]:
    """Return a map from subtask codes to (vertex, subtask)."""
    return MappingProxyType(
        {
            code: (vertex, subtask)
            for vertex, codes in enumerate(_codes(parallelisms, layout))
            for subtask, code in enumerate(codes)
        }
    )


def lay_out(vertex: Vertex, layout: Layout) -> None:
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
