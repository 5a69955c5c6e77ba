"""The files that a file source has read, as a path with wildcards that matches these alone."""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from urllib.parse import unquote

from pillarbox._errors import CheckpointMismatchError

# Characters that mean something in Hadoop's wildcards.
_SPECIAL = re.compile(r"([{}\[\]*?,\\])")
# Scheme and authority before a path.
_PLACE = re.compile(r"((?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://[^/]*)?)(/.*)", re.DOTALL)
# So many files of a folder are looked for at once. Hadoop makes an automaton of their names, whose size is that of all
# names together.
_TOGETHER = 10_000


def paths_seen(lines: Iterable[str], last: int) -> list[str]:
    """Return the paths in lines of Spark's log of a file source: JSON, with percent-encoded paths.

    Args:
        last: the number up to which they count.
    """
    found = map(json.loads, lines)
    return [unquote(str(line["path"])) for line in found if line.get("batchId", 0) <= last]


def glob_of(paths: Iterable[str]) -> str:
    """Return a path with wildcards that matches exactly these files.

    Hadoop looks up alternatives with a slash in them one by one, and finds those without one by listing their folder.
    So there is an alternative for each folder, and those of its files are within it: it takes one look at each folder,
    or a few where it has very many files.

    Raises:
        CheckpointMismatchError: they lie in several file systems, or in none.
    """
    places: set[str] = set()
    found: set[str] = set()
    for path in paths:
        match = _PLACE.fullmatch(path)
        if match is None:
            raise CheckpointMismatchError(f"the savepoint says that the file {path!r} was read, which has no full path")
        if ":" in match[2]:
            raise CheckpointMismatchError(
                f"the savepoint says that the file {path!r} was read, and Spark cannot look for a path with a colon as"
                " one of several: let the source begin as in a new query, positions={NAME: None}, on files that"
                " were not read yet"
            )
        places.add(match[1])
        found.add(match[2])
    if len(places) != 1:
        raise CheckpointMismatchError(f"the files that one source has read lie in {' and '.join(sorted(places))}")
    # One level above all of them, so that each alternative has a slash; but nothing is above the root.
    folders = {os.path.dirname(path) for path in found}
    above = os.path.dirname(os.path.commonpath(folders)).rstrip("/")
    escaped = _escaped if folders == {"/"} else _twice_escaped
    alternatives: list[str] = []
    for folder, members in groupby(sorted(map(os.path.split, found)), key=itemgetter(0)):
        inside = escaped(folder[len(above) + 1 :])
        names = [escaped(name) for _, name in members]
        for start in range(0, len(names), _TOGETHER):
            some = names[start : start + _TOGETHER]
            which = some[0] if len(some) == 1 else f"{{{','.join(some)}}}"
            alternatives.append(f"{inside}/{which}" if inside else which)
    return f"{places.pop()}{_escaped(above)}/{{{','.join(alternatives)}}}"


def _escaped(path: str) -> str:
    return _SPECIAL.sub(r"\\\1", path)


def _twice_escaped(path: str) -> str:
    """Return a path as it is within alternatives.

    Hadoop takes one backslash away when it goes through those with a slash, another one when it looks for the path.
    """
    return _SPECIAL.sub(r"\\\\\\\1", path)
