"""A bundle: what is known of a query, in one file that people send to each other.

It is a zip archive: ``snapshot.json``, the notes of the checkpoint's programs in ``notes.jsonl``, the figures of its
state in ``state.json``, and ``README.txt``. Unless it is told otherwise, it holds no keys and no records, and no error
messages, in which there may be both: of a failure it has the classes of the errors, the operator and the lines of code.
Of sources it has their kinds and figures, and no addresses or offsets; of counters the ones that operators have by
themselves.
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
# The counters of operators, and how the names of others of them begin.
_COUNTERS = (
    *("late_records_dropped", "dead_letters", "requests", "retried", "completed", "failed", "timed_out", "dropped"),
    *("cache_hits", "in_flight", "latency_p", "rate_limited_ms", COPY_MS),
)
# Figures of state that name keys.
_NAMES_KEYS = ("largest",)


def write_bundle(
    path: Path, snapshot: Snapshot, notes: Sequence[str], state: dict[str, Any] | None, *, with_records: bool
) -> None:
    """Write a bundle; a former file is overwritten when the new one is complete.

    Args:
        notes: lines of JSON that describe the programs of the checkpoint.
        state: the figures of its state, as ``inspect`` has them; None: they could not be read.
        with_records: whether keys, records and error messages go along.
    """
    if state is not None:
        sizes = {each["uid"]: each["bytes_of"] for each in state["operators"] if each.get("bytes_of")}
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
    """Return the snapshot in a bundle.

    Raises:
        ConfigurationError: it is no bundle, is damaged, or was written by another version.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = json.loads(archive.read(_SNAPSHOT))
        number = int(found["format"])
        snapshot = read(Snapshot, found) if number == FORMAT else None
    except Exception as error:  # whatever a damaged archive makes of the libraries that read it
        raise ConfigurationError(f"{path} is no bundle of pillarbox, or is damaged: {describe(error)}") from error
    if snapshot is None:
        raise ConfigurationError(
            f"bundle {path} has format {number}, this version of pillarbox reads format {FORMAT}:"
            f" {advice_on_version(number, FORMAT)}"
        )
    return replace(snapshot, is_live=False, missing=[*snapshot.missing, f"This is a bundle: {path.name}."])


def without_records(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without keys, records, and the messages of errors."""
    return replace(
        snapshot,
        run=_run(snapshot.run),
        earlier=[_run(each) for each in snapshot.earlier],
        epochs=[_epoch(each) for each in snapshot.epochs],
    )


# Each part of a snapshot that may have text of users has a function here, which names what goes in.


def _run(run: Run) -> Run:
    moments = [replace(each, counters=_own(each.counters)) for each in run.moments]
    return replace(run, failures=[_failure(each) for each in run.failures], moments=moments)


def _own(counters: dict[str, T]) -> dict[str, T]:
    """Return the counters that operators have by themselves: functions may have a key in a name."""
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
        sources=[_source(each) for each in epoch.sources],
        vertices=[replace(each, counters=_own(each.counters), gauges={}) for each in epoch.vertices],
        tasks=[_task(each) for each in epoch.tasks],
    )


def _source(source: SourceProgress) -> SourceProgress:
    """Return a source with its kind and figures: an address may have a password in it, and offsets names of files."""
    kind = re.match(r"\w*", source.description)
    numbers = {name: value for name, value in source.metrics.items() if _NUMBER.fullmatch(value)}
    return SourceProgress("" if kind is None else kind[0], source.rows, metrics=numbers)


def _task(task: TaskReport) -> TaskReport:
    # Which keys are heavy is hidden, and not how heavy they are; and of the newest record, where it is.
    sample, times = task.key_sample, task.event_times
    if sample is not None:
        sample = [sample[0], [[f"key {place}", count] for place, (_, count) in enumerate(sample[1], 1)]]
    times = times if times is None else [*times[:2], {}]
    return replace(task, key_sample=sample, event_times=times, counters=_own(task.counters), gauges={})


def _without_keys(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _without_keys(each) for name, each in state.items() if name not in _NAMES_KEYS}
    return [_without_keys(each) for each in state] if isinstance(state, list) else state
