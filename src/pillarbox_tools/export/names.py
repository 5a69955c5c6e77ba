"""Names of operators and sources for metric labels, unique within a query."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pillarbox._reports.plan import Plan
from pillarbox_tools.model.snapshot import VertexId, vertex_id

_LONGEST = 120


class Names:
    """The label of each operator of a query: its uid, or a source's name.

    Duplicates get their program's name, if the query has several programs, or else a number.

    Attributes:
        infos: (label, display name, label of the task's head, level) of each operator.
    """

    def __init__(self, plan: Plan | None) -> None:
        self._chains: dict[VertexId, list[str]] = {}
        # The uids of each task's operators, longest first: a uid may be another's prefix with a dot.
        self._uids: dict[VertexId, list[tuple[str, str]]] = {}
        self._callers: set[str] | None = None if plan is None else set()
        self.infos: list[tuple[str, str, str, str]] = []
        names: set[str] = set()
        for vertex in [] if plan is None else plan.vertices:
            key = vertex_id(vertex)
            chain = self._chains[key] = []
            uids = self._uids[key] = []
            for operator in vertex.operators:
                name = _unused(operator.uid or operator.name or f"vertex {vertex.number}", names, vertex.program)
                names.add(name)
                chain.append(name)
                self.infos.append((name, operator.name, chain[0], str(vertex.level)))
                if operator.uid:
                    uids.append((operator.uid, name))
                if operator.uid in vertex.calls:
                    assert self._callers is not None
                    self._callers.add(name)
            uids.sort(key=lambda pair: -len(pair[0]))

    def chain(self, vertex: VertexId) -> list[str]:
        return self._chains.get(vertex) or ["{} {}".format(*vertex)]

    def split(self, vertex: VertexId, counter: str) -> tuple[str, str]:
        """Split a counter or gauge, reported as ``uid.name``, into the operator's label and the name."""
        for uid, name in self._uids.get(vertex, ()):
            if counter.startswith(f"{uid}."):
                return name, counter[len(uid) + 1 :]
        return self.chain(vertex)[0], counter.lstrip(".")

    def calls(self, operator: str) -> bool:
        return self._callers is None or operator in self._callers


def unique_labels(descriptions: Iterable[str]) -> list[str]:
    labels: list[str] = []
    for text in descriptions:
        labels.append(_unused(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}...", labels))
    return labels


def _unused(name: str, names: Collection[str], program: str = "pillarbox") -> str:
    if name in names and program != "pillarbox":
        name = f"{name} ({program})"
    candidate, number = name, 2
    while candidate in names:
        candidate, number = f"{name} {number}", number + 1
    return candidate
