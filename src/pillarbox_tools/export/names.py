"""The names that operators and sources have in the labels of metrics: each has one of its own in the query."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pillarbox._reports.plan import Plan

# A label of a description may be as long as this.
_LONGEST = 120


class Names:
    """The names of a query's operators: their uids, and of sources their names.

    A name that comes again is told apart: by its program in a query with several, else by a number.

    Attributes:
        infos: of each operator its label, its name for people, the label of its task's head, and its level.
    """

    def __init__(self, plan: Plan | None) -> None:
        self._chains: dict[tuple[str, int], list[str]] = {}
        # The operators of a task by their uids, from the longest: a name may begin with another one and a dot.
        self._uids: dict[tuple[str, int], list[tuple[str, str]]] = {}
        self._callers: set[str] | None = None if plan is None else set()
        self.infos: list[tuple[str, str, str, str]] = []
        taken: set[str] = set()
        for vertex in [] if plan is None else plan.vertices:
            place = vertex.program, vertex.number
            chain = self._chains[place] = []
            uids = self._uids[place] = []
            for operator in vertex.operators:
                name = _free(operator.uid or operator.name or f"vertex {vertex.number}", taken, vertex.program)
                taken.add(name)
                chain.append(name)
                self.infos.append((name, operator.name, chain[0], str(vertex.level)))
                if operator.uid:
                    uids.append((operator.uid, name))
                if operator.uid in vertex.calls:
                    assert self._callers is not None
                    self._callers.add(name)
            uids.sort(key=lambda pair: -len(pair[0]))

    def chain(self, program: str, vertex: int) -> list[str]:
        """Return the names of the operators of a vertex, the head first."""
        return self._chains.get((program, vertex)) or [f"{program} {vertex}"]

    def split(self, program: str, vertex: int, counter: str) -> tuple[str, str]:
        """Return the operator of a counter or gauge, and its name there: reports have ``uid.name``."""
        for uid, name in self._uids.get((program, vertex), ()):
            if counter.startswith(f"{uid}."):
                return name, counter[len(uid) + 1 :]
        # Functions that are chained to a source without a uid, or a plan that is not known.
        return self.chain(program, vertex)[0], counter.lstrip(".")

    def calls(self, operator: str) -> bool:
        """Return whether an operator may call a service."""
        return self._callers is None or operator in self._callers


def told_apart(descriptions: Iterable[str]) -> list[str]:
    """Return the descriptions of the sources of a query as labels: cut short, and each another one."""
    found: list[str] = []
    for each in descriptions:
        found.append(_free(each if len(each) <= _LONGEST else f"{each[: _LONGEST - 3]}...", set(found)))
    return found


def _free(name: str, taken: Collection[str], program: str = "pillarbox") -> str:
    """Return a name that is not taken."""
    if name in taken and program != "pillarbox":
        name = f"{name} ({program})"
    found, number = name, 2
    while found in taken:
        found, number = f"{name} {number}", number + 1
    return found
