"""The files that a file source has read."""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple
from urllib.parse import unquote

from pillarbox._errors import CheckpointMismatchError

# Special characters in Hadoop's globs.
_SPECIAL = re.compile(r"([{}\[\]*?,\\])")
# (scheme and authority, authority, path)
_PLACE = re.compile(r"((?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://([^/]*))?)(/.*)", re.DOTALL)
# Maximum files per alternative, because Hadoop's automaton grows with the names.
_TOGETHER = 10_000


def paths_seen(lines: Iterable[str], last: int) -> list[str]:
    entries = map(json.loads, lines)
    return [unquote(str(line["path"])) for line in entries if line.get("batchId", 0) <= last]


def file_outside(folder: str, paths: Iterable[str]) -> str | None:
    """Return a file that is not in this folder, or None. Globs and relative paths are ignored."""
    parts = _PLACE.fullmatch(folder)
    if parts is None or _SPECIAL.search(folder):
        return None
    _, authority, name = parts.groups()
    parent = os.path.normpath(f"/{name.lstrip('/')}").rstrip("/")
    for path in paths:
        match = _PLACE.fullmatch(path)
        if match is None:
            continue
        is_elsewhere = authority and match[2] and authority != match[2]
        if is_elsewhere or not os.path.normpath(match[3]).startswith(f"{parent}/"):
            return path
    return None


def glob_of(paths: Iterable[str]) -> str:
    """Return a glob that matches exactly these files.

    Alternatives are nested, ``{folder/{file,file},...}``: Hadoop looks up each alternative with a slash, but for
    alternatives without a slash, it lists the folder once.
    """
    places: set[str] = set()
    files: set[str] = set()
    for path in paths:
        match = _PLACE.fullmatch(path)
        if match is None:
            raise CheckpointMismatchError(f"the savepoint lists the file {path!r} as read, but without a full path")
        if ":" in match[3]:
            raise CheckpointMismatchError(
                f"the savepoint lists the file {path!r} as read, but Spark cannot look up several paths if one contains"
                " a colon: start the source as new, with positions={NAME: None}, on unread files"
            )
        places.add(match[1])
        files.add(match[3])
    if len(places) != 1:
        raise CheckpointMismatchError(
            "a source can resume after files on only one file system, but it has read files on"
            f" {' and '.join(sorted(places))}"
        )
    # The parent folder, so that each alternative has a slash.
    folders = {os.path.dirname(path) for path in files}
    above = os.path.dirname(os.path.commonpath(folders)).rstrip("/")
    escaped = _escaped if folders == {"/"} else _twice_escaped
    alternatives: list[str] = []
    for folder, members in groupby(sorted(map(os.path.split, files)), key=itemgetter(0)):
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
    """Escape a path twice: Hadoop unescapes alternatives with a slash, and then the path."""
    return _SPECIAL.sub(r"\\\\\\\1", path)


class SeenFiles(NamedTuple):
    """The position of a file source: the files that it has read."""

    paths: list[str]
