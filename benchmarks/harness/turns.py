# SPDX-License-Identifier: Apache-2.0
"""Turns, medians and tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

K = TypeVar("K")
T = TypeVar("T")


def in_turn(sides: Iterable[T], index: int) -> list[T]:
    """Return the sides in a round's order: every other round is in reverse, so that no position is favoured."""
    order = list(sides)
    return order if index % 2 else order[::-1]


def turns(sides: Iterable[T], rounds: int, warm_up: int = 1) -> Iterator[tuple[int, T]]:
    """Yield (round, side) for each side in each round. Warm-up rounds have negative numbers."""
    order = list(sides)
    for index in range(-warm_up, rounds):
        for side in in_turn(order, index):
            yield index, side


def medians(values: Mapping[K, Sequence[float]]) -> dict[K, float]:
    """Return the median of each side's values."""
    return {side: statistics.median(series) for side, series in values.items()}


def rounded(values: Any, digits: int = 0) -> Any:
    """Round numbers in nested dictionaries and lists. Other values are unchanged."""
    if isinstance(values, Mapping):
        return {key: rounded(value, digits) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [rounded(value, digits) for value in values]
    if isinstance(values, bool) or not isinstance(values, int | float):
        return values
    return round(values, digits) if digits else round(values)


def table(head: Sequence[object], rows: Iterable[Sequence[object]], *, words: Sequence[int] = (0,)) -> str:
    """Return a table in Markdown.

    Args:
        words: indexes of the columns with text. Other columns have numbers.
    """
    lines = [head, ["---" if column in words else "---:" for column in range(len(head))], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def extent(values: Sequence[float], digits: int = 0) -> str:
    """Return the lowest and the highest value as one cell of a table."""
    return f"{min(values):,.{digits}f} to {max(values):,.{digits}f}"
