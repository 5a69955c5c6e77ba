# SPDX-License-Identifier: Apache-2.0
"""Turns, medians and tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

K = TypeVar("K")
T = TypeVar("T")


def in_turn(sides: Iterable[T], index: int) -> list[T]:
    """Return the sides in the order of a round: every other one goes backwards, so that none gains by its place."""
    order = list(sides)
    return order if index % 2 else order[::-1]


def turns(sides: Iterable[T], rounds: int, warm_up: int = 1) -> Iterator[tuple[int, T]]:
    """Return the number of each round, with each side in turn; the numbers of rounds that warm up are below 0."""
    order = list(sides)
    for index in range(-warm_up, rounds):
        for side in in_turn(order, index):
            yield index, side


def medians(values: Mapping[K, Sequence[float]]) -> dict[K, float]:
    """Return the median of each side's values."""
    return {side: statistics.median(series) for side, series in values.items()}


def rounded(values: Any, digits: int = 0) -> Any:
    """Return numbers rounded, in dictionaries and lists of any depth; what is no number stays as it is."""
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
        words: the columns that have words in them; the others have numbers.
    """
    lines = [head, ["---" if column in words else "---:" for column in range(len(head))], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def extent(values: Sequence[float], digits: int = 0) -> str:
    """Return lowest and highest as one cell of a table."""
    return f"{min(values):,.{digits}f} to {max(values):,.{digits}f}"
