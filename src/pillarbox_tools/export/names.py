"""Labels of operators and sources."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pillarbox._reports.plan import Plan
from pillarbox_tools.model.snapshot import VertexId, vertex_id

_LONGEST = 120


class ExportNames:
    """The labels of a query's operators and sources: a unique uid, or a source's name.

    Labels that would be equal also contain the program's name or, within a program, a number.

    Attributes:
        infos: (label, display name, label of the chain's first operator, level) of each operator.
    """

    def __init__(self, plan: Plan | None) -> None:
        # (uid, label) of each operator of a task.
        self._operators: dict[VertexId, list[tuple[str, str]]] = {}
        self._plan = plan
        self._callers: set[str] = set()
        self.infos: list[tuple[str, str, str, str]] = []
        names: set[str] = set()
        for vertex in [] if plan is None else plan.vertices:
            operators = self._operators[vertex_id(vertex)] = []
            for operator in vertex.operators:
                name = _unused(operator.uid or operator.name or f"vertex {vertex.number}", names, vertex.program)
                names.add(name)
                operators.append((operator.uid, name))
                self.infos.append((name, operator.name, operators[0][1], str(vertex.level)))
                if operator.uid in vertex.calls:
                    self._callers.add(name)

    def chain(self, vertex: VertexId) -> list[str]:
        return [name for _, name in self._operators.get(vertex, ())] or ["{} {}".format(*vertex)]

    def split(self, vertex: VertexId, counter: str) -> tuple[str, str]:
        """Split a counter's or gauge's full name, ``uid.name``, into the operator's label and the name."""
        operators = self._operators.get(vertex, ())
        matches = [(uid, name) for uid, name in operators if uid and counter.startswith(f"{uid}.")]
        if not matches:
            return self.chain(vertex)[0], counter.lstrip(".")
        uid, name = max(matches, key=lambda match: len(match[0]))  # one uid and a dot may be a prefix of another uid
        return name, counter[len(uid) + 1 :]

    def calls(self, operator: str) -> bool:
        return self._plan is None or operator in self._callers


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
