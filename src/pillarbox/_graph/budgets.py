"""The budgets of a program."""

from __future__ import annotations

from collections.abc import Iterable

from pillarbox._errors import ProgramError
from pillarbox._operators.budgets.budget import Limits
from pillarbox._task.vertex import Vertex


def budgets_of(vertices: Iterable[Vertex]) -> list[Limits]:
    """Return the limits that tasks of the vertices share.

    Raises:
        ProgramError: two budgets of one name have different values.
    """
    budgets: dict[str, Limits] = {}
    for vertex in vertices:
        for node in vertex.nodes:
            for limits in (each.of_operator(node.uid) for each in node.factory.budgets):
                check_equal(budgets.setdefault(limits.name, limits), limits)
    return list(budgets.values())


def check_equal(one: Limits, other: Limits) -> None:
    """Refuse two budgets of one name with different values.

    Raises:
        ProgramError: they differ.
    """
    if one != other:
        values = [
            ", ".join(f"{name} {value}" for name, value in each._asdict().items() if value != twin[name])
            for each, twin in ((one, other._asdict()), (other, one._asdict()))
        ]
        raise ProgramError(
            f"two budgets have the name {one.name!r}, one with {values[0]}, one with {values[1]} (rates are per second,"
            " times in ms): give all operators one Budget, or use another name"
        )
