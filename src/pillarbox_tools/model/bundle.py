"""A bundle: a file of diagnostic data about a query, for sharing.

The zip archive contains ``snapshot.json``, the descriptions of the checkpoint's programs in ``notes.jsonl``, the
state's sizes in ``state.json``, and ``README.txt``. By default, it contains no keys or records, and no error messages,
which may quote them. Failures are reduced to the error's class, the operator and the line of code. Sources are reduced
to their number per type.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pillarbox._copies import COPY_MS
from pillarbox._errors import ConfigurationError, advice_on_version, describe
from pillarbox._json import plain, read
from pillarbox_tools.model.call_counters import BUDGET_COUNTER, CALL_COUNTERS, KEYED_COUNTERS
from pillarbox_tools.model.snapshot import FORMAT, Snapshot

_SNAPSHOT, _NOTES, _STATE, _README = "snapshot.json", "notes.jsonl", "state.json", "README.txt"
_HIDDEN = "(left out: the bundle was made without records)"
_FRAME = re.compile(r'^\s*File ".*", line \d+', re.MULTILINE)
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
# Names of the operators' own counters. Names of copy and budget counters are longer.
_COUNTERS = {"late_records_dropped", "dead_letters", *CALL_COUNTERS, *KEYED_COUNTERS}


def write_bundle(
    path: Path, snapshot: Snapshot, notes: Sequence[str], state: dict[str, Any] | None, *, with_records: bool
) -> None:
    """Write a bundle. An existing file is replaced when the bundle is complete.

    Args:
        state: the state's sizes, as ``inspect`` returns them, or None if the state cannot be read.
    """
    if state is not None:
        sizes = {operator["uid"]: operator["bytes_of"] for operator in state["operators"] if operator.get("bytes_of")}
        snapshot = replace(snapshot, state_sizes=sizes)
    document = plain(snapshot)
    if not with_records:
        uids = [operator.uid for vertex in snapshot.vertices for operator in vertex.operators if operator.uid]
        document = _scrubbed(document, {**_OF_SNAPSHOT, "counters": _own_of(uids)})
        state = _scrubbed(state, _OF_STATE)
    started = path.with_name(f".{path.name}.tmp")
    with zipfile.ZipFile(started, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_README, _readme(snapshot, with_records=with_records))
        archive.writestr(_SNAPSHOT, json.dumps({**document, "format": FORMAT}, indent=1))
        archive.writestr(_NOTES, "".join(f"{line}\n" for line in notes))
        if state is not None:
            archive.writestr(_STATE, json.dumps(state, indent=1))
    started.replace(path)


def _readme(snapshot: Snapshot, *, with_records: bool) -> str:
    records = "It holds keys, records and error messages." if with_records else "It holds no keys and no records."
    return (
        f"A bundle of pillarbox: query {snapshot.id}, checkpoint {snapshot.checkpoint}. {records}\n"
        "Open it with: pillarbox dashboard FILE\n"
    )


def read_bundle(path: Path) -> Snapshot:
    try:
        with zipfile.ZipFile(path) as archive:
            document = json.loads(archive.read(_SNAPSHOT))
        number = int(document["format"])
        snapshot = read(Snapshot, document) if number == FORMAT else None
    except Exception as error:
        raise ConfigurationError(f"{path} is not a pillarbox bundle, or is damaged: {describe(error)}") from error
    if snapshot is None:
        raise ConfigurationError(
            f"bundle {path} has format {number}, but this version of pillarbox reads format {FORMAT}:"
            f" {advice_on_version(number, FORMAT)}"
        )
    return replace(snapshot, is_live=False, missing=[*snapshot.missing, f"This is a bundle: {path.name}."])


def _scrubbed(value: Any, fields: Mapping[str, Callable[[Any], Any]]) -> Any:
    if isinstance(value, dict):
        return {name: fields[name](item) if name in fields else _scrubbed(item, fields) for name, item in value.items()}
    return [_scrubbed(item, fields) for item in value] if isinstance(value, list) else value


def _own_of(uids: Sequence[str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that removes user-defined counters from metrics: their names may contain record keys."""

    @cache
    def is_own(name: str) -> bool:
        return any(_is_own(name, uid) for uid in uids if name.startswith(f"{uid}."))

    return lambda counters: {name: count for name, count in counters.items() if is_own(name)}


def _is_own(name: str, uid: str) -> bool:
    counter = name[len(uid) + 1 :]
    return counter in _COUNTERS or counter.startswith(COPY_MS) or BUDGET_COUNTER.fullmatch(name) is not None


def _failure(failure: dict[str, Any]) -> dict[str, Any]:
    frames = "\n".join(_FRAME.findall(failure.get("message", "")))
    message = f"{failure.get('error', '')} {_HIDDEN}\n{frames}".strip()
    return {**failure, **{name: _HIDDEN for name in ("key", "record") if name in failure}, "message": message}


def _source(source: dict[str, Any]) -> dict[str, Any]:
    """Keep a source's kind and numbers. Leave out addresses and offsets, which may contain secrets."""
    kind = re.match(r"\w*", source["description"])
    metrics = {name: value for name, value in source.get("metrics", {}).items() if _NUMBER.fullmatch(value)}
    return {"description": "" if kind is None else kind[0], "rows": source["rows"], "metrics": metrics}


# Fields of a snapshot, and of the state's sizes, that may contain user text.
_OF_SNAPSHOT: dict[str, Callable[[Any], Any]] = {
    "event_times": lambda times: times and [*times[:2], {}],  # without the position of the newest record
    "failures": lambda failures: list(map(_failure, failures)),
    "gauges": lambda _: {},
    "hot_keys": lambda _: {},
    # Replaces keys with their ranks.
    "key_sample": lambda sample: (
        sample and [sample[0], [[f"key {rank}", count] for rank, (_, count) in enumerate(sample[1], 1)]]
    ),
    "sources": lambda sources: list(map(_source, sources)),
}
_OF_STATE: dict[str, Callable[[Any], Any]] = {"largest": lambda _: []}
