"""Which source of a program resumes which source of a savepoint: pillarbox matches them by their names.

Source of the behaviour: Flink's, where the splits of a source are state of an operator that is found by its uid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

# The name of sources that were given none: it says nothing where another source has a name.
_NAMELESS = "dataframe"


class SourceMatch(NamedTuple):
    """How the sources of a program correspond to the sources of a savepoint.

    Attributes:
        places: for each source of the program, the place of the savepoint's; None: it is new.
        gone: the places of the savepoint's that the program does not read.
    """

    places: list[int | None]
    gone: list[int]


def match_sources(
    then: Sequence[str | None], now: Sequence[str | None], renamed: Mapping[str, str]
) -> SourceMatch | None:
    """Match sources by name, or by their order where names do not tell, and there are as many; None: nothing tells.

    Args:
        then: the names of the savepoint's; None: it is not known.
        now: the names of the program's; None: it is not known.
        renamed: names in the program, by those in the savepoint.
    """
    before = [None if name is None else renamed.get(name, name) for name in then]
    if not _tell(before) or not _tell(now):
        return SourceMatch([*range(len(now))], []) if len(then) == len(now) else None
    places = [before.index(name) if name in before else None for name in now]
    gone = [place for place in range(len(before)) if place not in places]
    new = [index for index, place in enumerate(places) if place is None]
    if len(gone) == len(new) and all(_NAMELESS in (before[place], now[index]) for place, index in zip(gone, new)):
        for place, index in zip(gone, new):
            places[index] = place
        gone = []
    return SourceMatch(places, gone)


def _tell(names: Sequence[str | None]) -> bool:
    return None not in names and len(set(names)) == len(names)
