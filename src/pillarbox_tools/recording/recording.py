"""A recording: a folder with a task's program, input and state in an epoch.

- ``recording.json``: the description as plain data;
- ``program``: the pickled vertex;
- ``state``: the chunks of the task's log before the epoch; ``state-after``: the chunks after the epoch, if it was
  committed;
- ``answers``: answers in the operators' call journals;
- ``broadcasts``: pickled values of the vertex's broadcast variables;
- ``sources.json``: the user modules' source, and versions of installed packages;
- ``input``: consecutive pickles of lists of buffers, or of a source's Arrow batches.

A replay runs code from the recording, so accept recordings only from people whose programs you would run.
"""

from __future__ import annotations

import json
import pickle
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import pillarbox
from pillarbox._errors import ConfigurationError, advice_on_version, describe
from pillarbox._json import json_of, read
from pillarbox._operators.calls.journal import Entry
from pillarbox._reports.failure import Failure
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox_tools.recording.modules import ModuleSource, sources_here, versions_here

FORMAT = 1
_FACTS, _PROGRAM, _STATE, _AFTER, _INPUT = "recording.json", "program", "state", "state-after", "input"
_SOURCES, _BROADCASTS, _ANSWERS = "sources.json", "broadcasts", "answers"

# A journal's entries by epoch.
Answers = dict[int, list[Entry]]


@dataclass(frozen=True)
class RecordingMetadata:
    """The description of a recording.

    Attributes:
        uid: the first uid among the task's operators.
        subtask: the task's subtask; for a source, the partition.
        clock: the clock log as text, or None if unknown.
        is_last: whether event time ended in the epoch.
        is_pickled: whether a source's rows are pickled records of a collection.
        doubts: messages about possible differences between the recording and the epoch.
        hash_seed: the worker's ``PYTHONHASHSEED``, which determines the order of string sets, or None.
    """

    checkpoint: str
    epoch: int
    number: int
    uid: str
    name: str
    subtask: int
    level: int
    layout: list[Any]
    time: int
    clock: str | None
    is_last: bool = False
    is_pickled: bool = False
    failure: Failure | None = None
    calls: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    hash_seed: str | None = None
    python: str = ""
    pillarbox: str = ""
    bytes: int = 0
    format: int = 0


@dataclass(frozen=True)
class Recording:
    """A recording on disk.

    Attributes:
        state: chunks of the state log before the epoch.
        after: chunks after the epoch, or None if unknown.
    """

    folder: Path
    facts: RecordingMetadata
    shipped: ShippedVertex
    state: dict[int, bytes]
    after: dict[int, bytes] | None
    broadcasts: dict[int, bytes]
    answers: dict[str, Answers]

    def modules(self) -> tuple[dict[str, ModuleSource], dict[str, str]]:
        with _damage_of(self.folder):
            document = json.loads((self.folder / _SOURCES).read_text())
            return {name: ModuleSource(*fields) for name, fields in document["sources"].items()}, document["versions"]


def portions_in(folder: Path) -> Iterator[Any]:
    with input_of(folder).open("rb") as file:
        yield from pickles_in(file)


def pickles_in(file: IO[bytes]) -> Iterator[Any]:
    while True:
        try:
            yield pickle.load(file)
        except EOFError:
            return


def write_recording(
    folder: Path,
    facts: RecordingMetadata,
    shipped: bytes,
    state: dict[int, bytes],
    after: dict[int, bytes] | None,
    broadcasts: Mapping[int, bytes] = MappingProxyType({}),
    answers: Mapping[str, Answers] = MappingProxyType({}),
) -> None:
    (folder / _PROGRAM).write_bytes(shipped)
    (folder / _STATE).write_bytes(pickle.dumps(state))
    if after is not None:
        (folder / _AFTER).write_bytes(pickle.dumps(after))
    (folder / _BROADCASTS).write_bytes(pickle.dumps(dict(broadcasts)))
    (folder / _ANSWERS).write_bytes(pickle.dumps(dict(answers)))
    modules = {"sources": sources_here(), "versions": versions_here()}
    (folder / _SOURCES).write_text(json.dumps(modules))
    facts = replace(facts, python=platform.python_version(), pillarbox=pillarbox.__version__, format=FORMAT)
    (folder / _FACTS).write_text(json_of(facts, indent=1))


def input_of(folder: Path) -> Path:
    return folder / _INPUT


def read_metadata(folder: Path) -> RecordingMetadata:
    try:
        document = json.loads((folder / _FACTS).read_text())
        if document["format"] != FORMAT:
            raise ConfigurationError(
                f"recording {folder} has format {document['format']}, but this version of pillarbox reads format"
                f" {FORMAT}: {advice_on_version(document['format'], FORMAT)}"
            )
        facts = read(RecordingMetadata, document)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{folder} is not a recording: {describe(error)}") from error
    minor, installed = (version.split(".")[:2] for version in (facts.python, platform.python_version()))
    if minor != installed:
        raise ConfigurationError(
            f"recording {folder} was made with Python {facts.python}, but this is Python {platform.python_version()}:"
            f" replay it with Python {'.'.join(minor)}"
        )
    return facts


def read_recording(folder: Path) -> Recording:
    """Read a recording. Raises if it is damaged, or if this version of Python or pillarbox cannot replay it."""
    facts = read_metadata(folder)
    size = input_of(folder).stat().st_size if input_of(folder).exists() else 0
    if size != facts.bytes:
        raise ConfigurationError(
            f"{folder} is damaged: its input has {size:,} of {facts.bytes:,} bytes. Copy the recording again, or record"
            " again"
        )
    with _damage_of(folder):
        state, shipped, broadcasts, answers = (
            pickle.loads((folder / name).read_bytes()) for name in (_STATE, _PROGRAM, _BROADCASTS, _ANSWERS)
        )
        after = pickle.loads((folder / _AFTER).read_bytes()) if (folder / _AFTER).exists() else None
        return Recording(folder, facts, shipped, state, after, broadcasts, answers)


@contextmanager
def _damage_of(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise ConfigurationError(f"{folder} is damaged: {describe(error)}") from error
