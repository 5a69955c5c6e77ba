"""A savepoint in a local directory: written from logs, proved, and read, with Arrow alone.

On Spark the same files are written and read by Spark, so that they can be wherever Spark writes.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import pillarbox
from pillarbox._errors import CheckpointMismatchError
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._state.inspect.view import LogView
from pillarbox._state.savepoint.arrow_parts import schemas_of
from pillarbox._state.savepoint.manifest import (
    BEGUN,
    MANIFEST,
    STARTED,
    FileDigest,
    Manifest,
    OperatorTable,
    Sources,
    table_folder,
)
from pillarbox._state.savepoint.own_state import (
    TASKS,
    OwnState,
    is_drained,
    own_states,
    task_row,
)
from pillarbox._state.savepoint.table import Loads, Table
from pillarbox._unpickle import loads as loads_anything

# The part of a URI before its path.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?://[^/]*)?(?=/)")


def write_savepoint(
    directory: str | Path,
    logs: Mapping[tuple[str, int], ChunkStore],
    *,
    epoch: int,
    programs: list[dict[str, Any]] | None = None,
    sources: Sources | None = None,
    checkpoint: str = "",
) -> Manifest:
    """Write a savepoint of logs into a local directory, and return its manifest.

    Args:
        directory: must not exist, or be empty, or hold a savepoint that was begun and not completed: it is overwritten.
        logs: the stores of all subtasks, by uid and index.
        epoch: the number of the epoch whose state it is.
        programs: the descriptions of the query's programs.
        sources: how far the sources had been read.
        checkpoint: of which it is made, for people.

    Raises:
        CheckpointMismatchError: there is something in the directory; or a log cannot be read.
    """
    folder = _local(directory)
    _prepare(folder)
    views = [LogView(store, subtask) for (_, subtask), store in logs.items() if store.get(0) is not None]
    uids = sorted({view.head.operator for view in views})
    operators: list[OperatorTable] = []
    rows: list[dict[str, Any]] = []
    for uid in uids:
        mine = sorted((view for view in views if view.head.operator == uid), key=lambda view: view.head.subtask)
        parts: dict[str, pa.Schema] = {}
        for view in mine:
            parts = {**schemas_of(view), **parts}
        table = Table(OperatorTable.of([view.head for view in mine], parts))
        operators.append(table.operator)
        place = folder / table_folder(uid)
        place.mkdir(parents=True)
        with pq.ParquetWriter(place / "part-0.parquet", table.schema) as writer:
            for view in mine:
                for batch in table.encode(view.rows(), view.head.subtask):
                    writer.write_batch(batch)
        rows += map(task_row, mine)
    (folder / "tasks").mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=TASKS), folder / "tasks" / "part-0.parquet")
    manifest = Manifest(
        pillarbox=pillarbox.__version__,
        epoch=epoch,
        programs=programs,
        operators=tuple(operators),
        sources=sources or Sources(),
        files=_digests(folder),
        checkpoint=checkpoint,
        drained=is_drained(rows),
    )
    # Moved to its place as a whole: a savepoint is complete, or it is none.
    half = folder / f".{MANIFEST}"
    half.mkdir()
    (half / "part-0.txt").write_text(manifest.to_json() + "\n", encoding="utf-8")
    half.rename(folder / MANIFEST)
    return manifest


def _local(directory: str | Path) -> Path:
    """Return a local directory, of which Spark may speak as ``file:///...``; it escapes nothing in it."""
    place = _SCHEME.match(str(directory))
    if place is None:
        return Path(directory)
    if place[1] != "file":
        raise CheckpointMismatchError(
            f"the savepoint {directory} is in no local directory, where a program in this process could read or write"
            " it: copy it to one"
        )
    return Path(str(directory)[place.end() :])


def _prepare(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        if not (folder / STARTED).exists() or (folder / MANIFEST).exists():
            raise CheckpointMismatchError(
                f"{folder} exists, and is no savepoint that was begun and not completed: give a new directory"
            )
        for path in folder.iterdir():
            if path.name != STARTED:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    (folder / STARTED).mkdir(parents=True, exist_ok=True)
    (folder / STARTED / "part-0.txt").write_text(f"{BEGUN}\n", encoding="utf-8")


def _digests(folder: Path) -> dict[str, FileDigest]:
    """Return what the data files of a savepoint are, by their place in its directory."""
    found = sorted(path for name in ("state", "tasks") for path in (folder / name).rglob("*.parquet"))
    return {path.relative_to(folder).as_posix(): _digest(path) for path in found}


def _digest(path: Path) -> FileDigest:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return FileDigest(path.stat().st_size, digest.hexdigest())


class LocalSavepoint:
    """A savepoint in a local directory, whose files are proved to be those that were written.

    Attributes:
        manifest: its manifest.

    Raises:
        CheckpointMismatchError: it is none, or not complete, or not as it was written.
    """

    def __init__(self, directory: str | Path) -> None:
        self._folder = _local(directory)
        found = sorted(path for path in (self._folder / MANIFEST).glob("*") if path.name[0] not in "._")
        if not found:
            state = "was begun, and not completed" if (self._folder / STARTED).exists() else "is no savepoint"
            raise CheckpointMismatchError(f"{directory} {state}: it has no manifest")
        self.manifest: Manifest = Manifest.from_json(found[0].read_text(encoding="utf-8"))
        self.manifest.check_files(directory, _digests(self._folder))

    def table(self, uid: str) -> Table:
        """Return the table of an operator.

        Raises:
            CheckpointMismatchError: there is no state of it.
        """
        return Table(self.manifest.operator(uid))

    def batches(self, uid: str) -> Iterator[pa.RecordBatch]:
        """Return the rows of an operator's table.

        Raises:
            CheckpointMismatchError: there is no state of it.
        """
        table = self.table(uid)
        for path in self._files(f"{table_folder(uid)}/"):
            for batch in pq.ParquetFile(path, coerce_int96_timestamp_unit="us").iter_batches():
                yield table.cast(batch)

    def own_states(self, uid: str, loads: Loads = loads_anything) -> list[OwnState]:
        """Return what the operator's subtasks keep besides the rows of keys, by subtask.

        Args:
            loads: unpickles it.

        Raises:
            CheckpointMismatchError: there is no state of it, or it cannot be read.
        """
        table = self.table(uid)
        rows = (row for path in self._files("tasks/") for row in pq.read_table(path).to_pylist())
        own_rows = (table.own_rows(batch, loads) for batch in self.batches(uid))
        return own_states(table.operator, rows, own_rows, loads)

    def _files(self, lead: str) -> list[Path]:
        return [self._folder / name for name in sorted(self.manifest.files) if name.startswith(lead)]
