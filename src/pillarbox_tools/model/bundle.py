"""A bundle: all data about a query, in one file to send.

The zip archive has ``snapshot.json``, the descriptions of the checkpoint's programs in ``notes.jsonl``, the sizes of
its state in ``state.json``, and ``README.txt``. By default it omits user data: keys, records, and error messages, which
may quote both. Failures keep error classes, operator and lines of code; sources keep kinds and figures.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pillarbox._copies import COPY_MS
from pillarbox._elements import TaskReport
from pillarbox._errors import ConfigurationError, advice_on_version, describe
from pillarbox._json import plain, read
from pillarbox._reports.failure import Failure
from pillarbox_tools.model.snapshot import FORMAT, EpochRun, Run, Snapshot, SourceProgress

T = TypeVar("T")

_SNAPSHOT, _NOTES, _STATE, _README = "snapshot.json", "notes.jsonl", "state.json", "README.txt"
_HIDDEN = "(left out: the bundle was made without records)"
_FRAME = re.compile(r'^\s*File ".*", line \d+', re.MULTILINE)
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
# The operators' own counters; other names can start with them.
_COUNTERS = (
    *("late_records_dropped", "dead_letters", "requests", "retried", "completed", "failed", "timed_out", "dropped"),
    *("cache_hits", "in_flight", "latency_p", "rate_limited_ms", COPY_MS),
)
_NAMES_KEYS = ("largest",)


def write_bundle(
    path: Path, snapshot: Snapshot, notes: Sequence[str], state: dict[str, Any] | None, *, with_records: bool
) -> None:
    """Write a bundle. An existing file is replaced when the new one is complete.

    Args:
        notes: JSON lines that describe the checkpoint's programs.
        state: the state's figures, as from ``inspect``, or None if unreadable.
    """
    if state is not None:
        sizes = {operator["uid"]: operator["bytes_of"] for operator in state["operators"] if operator.get("bytes_of")}
        snapshot = replace(snapshot, state_sizes=sizes)
    if not with_records:
        snapshot, state = without_records(snapshot), _without_keys(state)
    started = path.with_name(f".{path.name}.tmp")
    with zipfile.ZipFile(started, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_README, _readme(snapshot, with_records=with_records))
        archive.writestr(_SNAPSHOT, json.dumps({**plain(snapshot), "format": FORMAT}, indent=1))
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
    """Return the snapshot in a bundle. Refuses damaged files and other format versions."""
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


def without_records(snapshot: Snapshot) -> Snapshot:
    return replace(
        snapshot,
        run=_run(snapshot.run),
        earlier=[_run(run) for run in snapshot.earlier],
        epochs=[_epoch(epoch) for epoch in snapshot.epochs],
    )


# Each part of a snapshot that may contain user text has a function that lists the included fields.


def _run(run: Run) -> Run:
    moments = [replace(moment, counters=_own(moment.counters)) for moment in run.moments]
    return replace(run, failures=[_failure(failure) for failure in run.failures], moments=moments)


def _own(counters: dict[str, T]) -> dict[str, T]:
    """Keep only the operators' own counters: the name of a function's counter may contain a key."""
    return {name: value for name, value in counters.items() if name.rpartition(".")[2].startswith(_COUNTERS)}


def _failure(failure: Failure) -> Failure:
    frames = "\n".join(_FRAME.findall(failure.message))
    return replace(
        failure,
        key=None if failure.key is None else _HIDDEN,
        record=None if failure.record is None else _HIDDEN,
        message=f"{failure.error} {_HIDDEN}\n{frames}".strip(),
    )


def _epoch(epoch: EpochRun) -> EpochRun:
    return replace(
        epoch,
        sources=[_source(source) for source in epoch.sources],
        vertices=[replace(vertex, counters=_own(vertex.counters), gauges={}) for vertex in epoch.vertices],
        tasks=[_task(task) for task in epoch.tasks],
    )


def _source(source: SourceProgress) -> SourceProgress:
    """Keep a source's kind and figures: addresses may contain passwords, and offsets file names."""
    kind = re.match(r"\w*", source.description)
    numbers = {name: value for name, value in source.metrics.items() if _NUMBER.fullmatch(value)}
    return SourceProgress("" if kind is None else kind[0], source.rows, metrics=numbers)


def _task(task: TaskReport) -> TaskReport:
    # Hide which keys are heavy, but not how heavy they are, and the position of the newest record.
    sample, times = task.key_sample, task.event_times
    if sample is not None:
        sample = [sample[0], [[f"key {rank}", count] for rank, (_, count) in enumerate(sample[1], 1)]]
    times = times if times is None else [*times[:2], {}]
    return replace(task, key_sample=sample, event_times=times, counters=_own(task.counters), gauges={})


def _without_keys(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _without_keys(value) for name, value in state.items() if name not in _NAMES_KEYS}
    return [_without_keys(value) for value in state] if isinstance(state, list) else state
