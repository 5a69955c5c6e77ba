"""The files that a file source has read, as a path with wildcards that matches these alone."""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Iterable
from urllib.parse import unquote

from pillarbox._errors import CheckpointMismatchError

__all__ = ["glob_of", "paths_seen"]

# Characters that mean something in Hadoop's wildcards.
_SPECIAL = re.compile(r"([{}\[\]*?,\\])")
# Scheme and authority before a path.
_PLACE = re.compile(r"((?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://[^/]*)?)(/.*)", re.DOTALL)


def paths_seen(lines: Iterable[str], last: int) -> list[str]:
    """Return the paths in lines of Spark's log of a file source: JSON, with percent-encoded paths.

    Args:
        last: the number up to which they count.
    """
    found = map(json.loads, lines)
    return [unquote(str(line["path"])) for line in found if line.get("batchId", 0) <= last]


def glob_of(paths: Iterable[str]) -> str:
    """Return a path with wildcards that matches exactly these files.

    Alternatives with a slash in them are looked up one by one, so it takes one look at each file and no listing.

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
                " one of several: have the source begin anew, positions={NAME: None}, on files that were not read yet"
            )
        places.add(match[1])
        found.add(match[2])
    if len(places) != 1:
        raise CheckpointMismatchError(f"the files that one source has read lie in {' and '.join(sorted(places))}")
    # One level above all of them, so that each alternative has a slash.
    above = os.path.dirname(os.path.commonpath([os.path.dirname(path) for path in found]))
    above = above.rstrip("/")
    # (Hadoop takes one backslash away when it goes through alternatives, another one when it looks for the path.)
    alternatives = ",".join(_SPECIAL.sub(r"\\\\\\\1", path[len(above) + 1 :]) for path in sorted(found))
    return f"{places.pop()}" + _SPECIAL.sub(r"\\\1", above) + f"/{{{alternatives}}}"
