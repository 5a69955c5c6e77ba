"""How states of the operator itself are dealt out anew, when the number of its subtasks changes.

A subtask's log has them in one row, of no key: broadcast state as maps, list states and union list states as lists.
Source of the behaviour: Flink's ``RoundRobinOperatorStateRepartitioner``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

__all__ = ["LIST", "UNION", "redistribute_operator_state"]

# What leads the names of slots of list states and of union list states. The operator's uid follows, then the name.
LIST = "list/"
UNION = "union/"


def redistribute_operator_state(states: Sequence[Mapping[str, Any]], parallelism: int) -> list[dict[str, Any]]:
    """Return what each of the new subtasks has of the operator's own state.

    The elements of a list state are shared out: in their order, in parts that differ by one element at the most; where
    the number of subtasks stays, each keeps its own. All elements of a union list state go to each subtask. Broadcast
    state is the same in all subtasks: each of the new ones gets a copy.

    Args:
        states: what each of the former subtasks has, by the names of the slots of its row; None, or no such name: it
            has nothing.
        parallelism: the number of the new subtasks.
    """
    new: list[dict[str, Any]] = [{} for _ in range(parallelism)]
    for name in dict.fromkeys(chain.from_iterable(states)):
        parts = [state.get(name) for state in states]
        if name.startswith((LIST, UNION)):
            elements = list(chain.from_iterable(part or () for part in parts))
            shares: list[Any] = [list(elements) for _ in new]
            if name.startswith(LIST):
                shares = [list(part or ()) for part in parts]
                if len(parts) != parallelism:
                    ends = [len(elements) * number // parallelism for number in range(parallelism + 1)]
                    shares = [elements[start:end] for start, end in pairwise(ends)]
        else:
            shares = [parts[number % len(parts)] for number in range(parallelism)]
            shares = [None if share is None else dict(share) for share in shares]
        for state, share in zip(new, shares):
            if share:
                state[name] = share
    return new
