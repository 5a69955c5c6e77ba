"""Matches a program's sources with a savepoint's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

# The default name, which matches nothing if other sources have names.
_NAMELESS = "dataframe"


class SourceMatch(NamedTuple):
    """The matching sources of a program and a savepoint.

    ``places`` has each program source's index in the savepoint, or None for a new source. ``gone`` has the indices of
    savepoint sources that the program lacks.
    """

    places: list[int | None]
    gone: list[int]


def match_sources(
    then: Sequence[str | None], now: Sequence[str | None], renamed: Mapping[str, str]
) -> SourceMatch | None:
    """Match sources by name or, if names are ambiguous, by order. Return None if neither is possible.

    ``renamed`` maps names in the savepoint to names in the program.
    """
    before = [None if name is None else renamed.get(name, name) for name in then]
    if not _are_distinct(before) or not _are_distinct(now):
        return SourceMatch([*range(len(now))], []) if len(then) == len(now) else None
    places = [before.index(name) if name in before else None for name in now]
    gone = [position for position in range(len(before)) if position not in places]
    new = [index for index, position in enumerate(places) if position is None]
    if len(gone) == len(new) and all(_NAMELESS in (before[position], now[index]) for position, index in zip(gone, new)):
        for position, index in zip(gone, new):
            places[index] = position
        gone = []
    return SourceMatch(places, gone)


def _are_distinct(names: Sequence[str | None]) -> bool:
    return None not in names and len(set(names)) == len(names)
