"""Collects the budgets of a program."""

from __future__ import annotations

from collections.abc import Iterable

from pillarbox._errors import ProgramError
from pillarbox._operators.budgets.budget import BudgetLimits
from pillarbox._task.vertex import Vertex


def budgets_of(vertices: Iterable[Vertex]) -> list[BudgetLimits]:
    budgets: dict[str, BudgetLimits] = {}
    for vertex in vertices:
        for node in vertex.nodes:
            for limits in (budget.of_operator(node.uid) for budget in node.factory.budgets):
                check_equal(budgets.setdefault(limits.name, limits), limits)
    return list(budgets.values())


def check_equal(limits: BudgetLimits, other: BudgetLimits) -> None:
    if limits != other:
        values = [
            ", ".join(f"{name} {value}" for name, value in values._asdict().items() if value != twin[name])
            for values, twin in ((limits, other._asdict()), (other, limits._asdict()))
        ]
        raise ProgramError(
            f"two budgets have the name {limits.name!r}, one with {values[0]}, one with {values[1]} (rates per"
            " second, times in ms): pass one Budget to all operators, or rename one"
        )
