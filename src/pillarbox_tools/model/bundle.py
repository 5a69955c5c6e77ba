"""A bundle: a file with diagnostic data about a query, for sharing.

The zip archive contains ``snapshot.json``, the descriptions of the checkpoint's programs in ``notes.jsonl``, the sizes
of its state in ``state.json``, and ``README.txt``. By default, a bundle contains no keys or records. It also
contains no error messages, because they may quote keys or records. For each failure, it contains the error's class, the
operator and the line of code. For each type of source, it contains the number of sources.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pillarbox._copies import COPY_MS
from pillarbox._errors import ConfigurationError, advice_on_version, describe
from pillarbox._json import plain, read
from pillarbox_tools.model.calls import BUDGET_COUNTER, CALL_COUNTERS, KEYED_COUNTERS
from pillarbox_tools.model.snapshot import FORMAT, Snapshot

_SNAPSHOT, _NOTES, _STATE, _README = "snapshot.json", "notes.jsonl", "state.json", "README.txt"
_HIDDEN = "(left out: the bundle was made without records)"
_FRAME = re.compile(r'^\s*File ".*", line \d+', re.MULTILINE)
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
# The operators' own counters. Counters of copies and budgets have longer names.
_COUNTERS = {"late_records_dropped", "dead_letters", *CALL_COUNTERS, *KEYED_COUNTERS}


def write_bundle(
    path: Path, snapshot: Snapshot, notes: Sequence[str], state: dict[str, Any] | None, *, with_records: bool
) -> None:
    """Write a bundle. Replaces an existing file once the bundle is complete.

    Args:
        notes: JSON lines that describe the checkpoint's programs.
        state: the sizes of the state, as ``inspect`` returns them, or None if the state cannot be read.
    """
    if state is not None:
        sizes = {operator["uid"]: operator["bytes_of"] for operator in state["operators"] if operator.get("bytes_of")}
        snapshot = replace(snapshot, state_sizes=sizes)
    document = plain(snapshot)
    if not with_records:
        document, state = _scrubbed(document, _OF_SNAPSHOT), _scrubbed(state, _OF_STATE)
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
    """Return the snapshot in a bundle. Raises for damaged files and other versions of the format."""
    try:
        with zipfile.ZipFile(path) as archive:
            document = json.loads(archive.read(_SNAPSHOT))
        number = int(document["format"])
        snapshot = read(Snapshot, document) if number == FORMAT else None
    except Exception as error:
        raise ConfigurationError(f"{path} is not a bundle of pillarbox, or is damaged: {describe(error)}") from error
    if snapshot is None:
        raise ConfigurationError(
            f"bundle {path} has format {number}, this version of pillarbox reads format {FORMAT}:"
            f" {advice_on_version(number, FORMAT)}"
        )
    return replace(snapshot, is_live=False, missing=[*snapshot.missing, f"This is a bundle: {path.name}."])


def _scrubbed(value: Any, fields: Mapping[str, Callable[[Any], Any]]) -> Any:
    if isinstance(value, dict):
        return {name: fields[name](item) if name in fields else _scrubbed(item, fields) for name, item in value.items()}
    return [_scrubbed(item, fields) for item in value] if isinstance(value, list) else value


def _own(counters: dict[str, Any]) -> dict[str, Any]:
    """Return the counters without user functions' counters, whose names may contain a key."""
    return {name: count for name, count in counters.items() if _is_own(name)}


def _is_own(name: str) -> bool:
    counter = name.rpartition(".")[2]
    return counter in _COUNTERS or counter.startswith(COPY_MS) or BUDGET_COUNTER.fullmatch(name) is not None


def _failure(failure: dict[str, Any]) -> dict[str, Any]:
    frames = "\n".join(_FRAME.findall(failure.get("message", "")))
    message = f"{failure.get('error', '')} {_HIDDEN}\n{frames}".strip()
    return {**failure, **{name: _HIDDEN for name in ("key", "record") if name in failure}, "message": message}


def _source(source: dict[str, Any]) -> dict[str, Any]:
    """Return a source's kind and numbers, without addresses and offsets, which may contain secrets."""
    kind = re.match(r"\w*", source["description"])
    metrics = {name: value for name, value in source.get("metrics", {}).items() if _NUMBER.fullmatch(value)}
    return {"description": "" if kind is None else kind[0], "rows": source["rows"], "metrics": metrics}


# The fields of a snapshot, and of the state's figures, that may contain user text.
_OF_SNAPSHOT: dict[str, Callable[[Any], Any]] = {
    "counters": _own,
    "event_times": lambda times: times and [*times[:2], {}],  # without the position of the newest record
    "failures": lambda failures: list(map(_failure, failures)),
    "gauges": lambda _: {},
    "hot_keys": lambda _: {},
    # Which keys are heavy, but not how heavy they are.
    "key_sample": lambda sample: (
        sample and [sample[0], [[f"key {rank}", count] for rank, (_, count) in enumerate(sample[1], 1)]]
    ),
    "sources": lambda sources: list(map(_source, sources)),
}
_OF_STATE: dict[str, Callable[[Any], Any]] = {"largest": lambda _: []}
