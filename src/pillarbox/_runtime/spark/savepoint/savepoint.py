"""Writes and reads savepoints with Spark's readers and writers.

The manifest is written last, and makes a savepoint complete (docs/savepoint-format.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pillarbox
from pillarbox._errors import CheckpointMismatchError
from pillarbox._graph.description import json_object
from pillarbox._runtime.spark.budgets.spent import IN_SAVEPOINT, charges_in
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.checkpoint.copy import removed
from pillarbox._runtime.spark.checkpoint.look import read_epoch
from pillarbox._runtime.spark.checkpoint.state import CheckpointState, CheckpointStateOperator, map_logs
from pillarbox._runtime.spark.failures import unwrapped_failures
from pillarbox._runtime.spark.rows.any_names import map_in_arrow
from pillarbox._runtime.spark.session.directories import check_session, checked_directory
from pillarbox._runtime.spark.session.folders import is_savepoint, reader, text_of, unless_missing
from pillarbox._state.chunks.head import LogHead
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.inspect.view import LogView
from pillarbox._state.log.many_objects import collector_paused
from pillarbox._state.savepoint.arrow_parts import schemas_of
from pillarbox._state.savepoint.manifest import (
    BEGUN,
    MANIFEST,
    STARTED,
    FileDigest,
    Manifest,
    OperatorTable,
    Sources,
    parts_slot,
    table_folder,
)
from pillarbox._state.savepoint.own_state import TASKS, OwnState, is_drained, own_states, task_row
from pillarbox._state.savepoint.table import Loads, Table
from pillarbox._unpickle import loads as loads_anything

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_STATE = "state"
_TASKS = "tasks"
# Limits of a data file. Its bytes may be in memory several times.
_BYTES_IN_FILE = 64 * 1024 * 1024
_ROWS_IN_FILE = 200_000


def savepoint(spark: SparkSession, checkpoint: str, directory: str, *, epoch: int | None = None) -> None:
    """Write a savepoint: a query's state as plain Parquet files (docs/savepoint-format.md).

    A query can start from it at any parallelism. Reads one committed epoch from the checkpoint of a running or stopped
    query, and needs neither the program nor its classes. All state is verified. A Spark task holds one subtask's state
    log in memory.

    If the call is interrupted, repeat it: it overwrites the incomplete savepoint.

    Args:
        checkpoint: the ``checkpointLocation`` of the query.
        directory: a new directory, on any file system that Spark can write to.
        epoch: a micro-batch whose state Spark retains, or None for the last committed micro-batch.

    Raises:
        CheckpointMismatchError: the checkpoint or epoch does not exist, was removed or cannot be read, or the directory
            is not empty.
        ProgramError: ``epoch`` is not a micro-batch number.

    Example:
        >>> savepoint(spark, "/checkpoints/flights", "/savepoints/flights-1")  # doctest: +SKIP
    """
    check_session(spark, "savepoint()")
    checkpoint = checked_directory(checkpoint, "savepoint(): checkpoint=")
    directory = checked_directory(directory, "savepoint(): directory=")
    read_epoch(spark, checkpoint, epoch, partial(_write, directory))


def _write(directory: str, files: CheckpointState) -> None:
    spark, stateful = files.spark, files.stateful
    if not stateful and files.checkpoint.binding() is None:
        raise CheckpointMismatchError(
            f"checkpoint {files} contains no pillarbox state: does it belong to a query without pillarbox?"
        )
    check_new(spark, directory)
    # Before the tables, because Spark also removes old offsets.
    programs, sources = files.checkpoint.programs_at(files.epoch), sources_at(spark, files.checkpoint, files.epoch)
    with unwrapped_failures():
        begin(spark, directory)
        operators, tasks = _write_tables(files, stateful, directory)
        write_tasks(spark, tasks, directory)
        charges = charges_in(spark, str(files.checkpoint))
        if charges:
            _write_text(spark, charges, f"{directory}/{IN_SAVEPOINT}")
        manifest = Manifest(
            pillarbox=pillarbox.__version__,
            epoch=files.epoch,
            programs=programs,
            operators=tuple(operators),
            sources=sources,
            files={},
            checkpoint=str(files),
            drained=is_drained(tasks),
        )
        complete(spark, directory, manifest)


def check_new(spark: SparkSession, directory: str) -> None:
    """Raise unless a directory is new or contains an incomplete savepoint."""
    directory = directory.rstrip("/")
    is_incomplete = (
        text_of(spark, f"{directory}/{STARTED}") is not None and text_of(spark, f"{directory}/{MANIFEST}") is None
    )
    if is_incomplete or _is_empty(spark, directory):
        return
    what = "is already a savepoint" if is_savepoint(spark, directory) else "contains other files"
    raise CheckpointMismatchError(f"{directory} exists and {what}: pass a new directory for the savepoint")


def begin(spark: SparkSession, directory: str) -> None:
    if text_of(spark, f"{directory}/{STARTED}") is None:
        # Not overwritten: that would first remove the file, and a crash would leave the other files unmarked.
        _write_text(spark, BEGUN, f"{directory}/{STARTED}")
    # This removes an incomplete earlier savepoint.
    _write_text(spark, "a folder for each operator", f"{directory}/{_STATE}")


def write_table(rows: DataFrame, directory: str, uid: str) -> None:
    """Write an operator's table. If a file gets too large, write smaller files."""
    path, most = f"{directory}/{table_folder(uid)}", _ROWS_IN_FILE
    while True:
        rows.write.mode("overwrite").option("maxRecordsPerFile", str(most)).parquet(path)
        largest = max(
            (row["length"] for row in _parquet(rows.sparkSession, path).select("length").collect()), default=0
        )
        if largest <= _BYTES_IN_FILE or most == 1:
            return
        most = max(1, most * _BYTES_IN_FILE // (2 * largest))


def complete(spark: SparkSession, directory: str, manifest: Manifest) -> None:
    """Write the manifest with the digests of all files.

    Digests that the manifest already has are not replaced, so that later damage is detected.
    """
    tasks = f"{_TASKS}/"
    digests = {name: digest for name, digest in manifest.files.items() if not name.startswith(tasks)}
    folders = sorted(
        {*(table_folder(operator.uid) for operator in manifest.operators), _TASKS} - set(map(_folder, digests))
    )
    whole = replace(manifest, files={**digests, **_digests(spark, directory, folders)})
    _write_text(spark, whole.to_json(), f"{directory}/{MANIFEST}")


def _write_tables(
    files: CheckpointState, stateful: Iterable[CheckpointStateOperator], directory: str
) -> tuple[list[OperatorTable], list[dict[str, Any]]]:
    operators: list[OperatorTable] = []
    tasks: list[dict[str, Any]] = []
    for operator in stateful:
        by_uid: dict[str, dict[int, LogView]] = {}
        for code, view in files.views(operator).items():
            by_uid.setdefault(view.head.operator, {})[code] = view
        for uid, views in sorted(by_uid.items()):
            if any(uid == other.uid for other in operators):
                raise CheckpointMismatchError(
                    f"checkpoint {files}: several programs of the query have an operator with uid {uid!r}, but a"
                    " savepoint has one state per uid, so none was written: run each program in a separate query"
                )
            logs = files.logs(operator).where(f"code IN ({', '.join(map(str, sorted(views)))})")
            table, rows = table_of_logs(logs, [view.head for view in views.values()])
            write_table(rows, directory, uid)
            operators.append(table)
            tasks += map(task_row, views.values())
    return sorted(operators, key=lambda operator: operator.uid), tasks


def table_of_logs(logs: DataFrame, heads: Sequence[LogHead]) -> tuple[OperatorTable, DataFrame]:
    table = Table(OperatorTable.of(heads))
    if parts_slot(table.operator.layout, table.operator.space_layout) is not None:
        table = Table(OperatorTable.of(heads, _parts(logs)))
    return table.operator, map_in_arrow(logs, "savepoint", partial(_rows, table.operator), spark_schema(table.schema))


def _rows(operator: OperatorTable, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    table = Table(operator)

    def rows(code: int, store: MemoryChunkStore) -> Iterator[pa.RecordBatch]:
        view = LogView(store, code)
        with collector_paused():
            yield from table.encode(view.rows(), view.head.subtask)

    return map_logs(rows, batches)


def _parts(logs: DataFrame) -> dict[str, pa.Schema]:
    parts: dict[str, pa.Schema] = {}
    schemas = map_in_arrow(logs, "savepoint", partial(map_logs, _schemas), "part STRING, content BINARY")
    for row in schemas.collect():
        parts.setdefault(row["part"], pa.ipc.read_schema(pa.py_buffer(bytes(row["content"]))))
    return parts


def _schemas(code: int, store: MemoryChunkStore) -> Iterator[pa.RecordBatch]:
    schemas = schemas_of(LogView(store, code))
    if schemas:
        contents = [schema.serialize().to_pybytes() for schema in schemas.values()]
        yield pa.RecordBatch.from_pydict({"part": [*schemas], "content": contents})


def write_tasks(spark: SparkSession, rows: list[dict[str, Any]], directory: str) -> None:
    values = [tuple(row[name] for name in TASKS.names) for row in rows]
    schema = spark_schema(TASKS)
    frame = spark.createDataFrame(values, schema)
    frame.coalesce(1).write.mode("overwrite").parquet(f"{directory}/{_TASKS}")


def _write_text(spark: SparkSession, text: str, folder: str) -> None:
    frame = spark.createDataFrame([(text,)], "value STRING")
    frame.coalesce(1).write.mode("overwrite").option("compression", "none").text(folder)


def sources_at(spark: SparkSession, checkpoint: Checkpoint, epoch: int) -> Sources:
    entry = checkpoint.offsets([epoch])[epoch]
    if not entry.lines:
        raise removed(str(checkpoint), epoch)
    watermark = checkpoint.watermark(epoch)
    last = max(entry.files.values(), default=None)
    if last is None:
        return Sources(entry.lines, watermark=watermark)
    # A source that is read twice has two lines and one folder. Only the program shows which lines these are.
    seen = {name: _files_seen(spark, f"{checkpoint}/sources/{name}", last) for name in entry.sources}
    return Sources(entry.lines, {name: log for name, log in seen.items() if log}, watermark)


def _files_seen(spark: SparkSession, folder: str, last: int) -> tuple[str, ...]:
    """Return a file source's log up to batch ``last``, without the entries that compacted files repeat."""
    rows: list[Any] = unless_missing(
        lambda: reader(spark).text(folder).where("value LIKE '{%'").distinct().collect(), []
    )
    seen = [
        (entry, row[0]) for row in rows if "path" in (entry := json_object(row[0])) and entry.get("batchId", 0) <= last
    ]
    return tuple(line for _, line in sorted(seen, key=lambda item: (item[0].get("batchId", 0), item[0]["path"])))


def _digests(spark: SparkSession, directory: str, folders: Iterable[str]) -> dict[str, FileDigest]:
    digests: dict[str, FileDigest] = {}
    for folder in folders:
        rows = _parquet(spark, f"{directory}/{folder}").selectExpr("path", "length", "sha2(content, 256)")
        for path, length, digest in rows.collect():
            digests[_relative_path(path, folder)] = FileDigest(length, digest)
    return digests


def _lengths(spark: SparkSession, directory: str) -> dict[str, FileDigest | int]:
    return {
        "/".join([name, *path.split("/")[-depth:]]): length
        for name, depth in ((_STATE, 2), (_TASKS, 1))
        for path, length in _parquet(spark, f"{directory}/{name}").select("path", "length").collect()
    }


def _relative_path(path: str, folder: str) -> str:
    return f"{folder}/{path.rsplit('/', 1)[1]}"


def _folder(path: str) -> str:
    return path.rsplit("/", 1)[0]


def _parquet(spark: SparkSession, directory: str) -> DataFrame:
    read = reader(spark).format("binaryFile").option("recursiveFileLookup", "true")
    return read.option("pathGlobFilter", "*.parquet").load(directory)


def _is_empty(spark: SparkSession, directory: str) -> bool:
    read = reader(spark).format("binaryFile").option("recursiveFileLookup", "true")
    return unless_missing(lambda: read.load(directory).select("path").limit(1).count(), 0) == 0


def open_savepoint(spark: SparkSession, directory: str) -> OpenSavepoint:
    """Open a savepoint. Data files are checked when they are read."""
    directory = directory.rstrip("/")
    text = text_of(spark, f"{directory}/{MANIFEST}")
    if text is None:
        state = "is incomplete" if is_savepoint(spark, directory) else "is not a savepoint"
        how = ""
        if Checkpoint(spark, directory).last_committed >= 0:
            how = f"; it is a checkpoint: write a savepoint of it with 'pillarbox savepoint {directory} DIRECTORY'"
        raise CheckpointMismatchError(f"{directory} {state}: the file {MANIFEST} is missing{how}")
    manifest = Manifest.from_json(text)
    manifest.check_files(directory, _lengths(spark, directory))
    return OpenSavepoint(spark, directory, manifest)


class OpenSavepoint:
    """A savepoint to read with Spark.

    Methods raise CheckpointMismatchError for damaged files, and for an operator without state.
    """

    def __init__(self, spark: SparkSession, directory: str, manifest: Manifest) -> None:
        self._spark = spark
        self.directory: str = directory
        self.manifest: Manifest = manifest
        self._verified: set[str] = set()

    def table(self, uid: str) -> Table:
        return Table(self.manifest.operator(uid))

    def frame(self, uid: str) -> DataFrame:
        schema = spark_schema(self.table(uid).schema)
        self._verify(table_folder(uid))
        return reader(self._spark).schema(schema).parquet(f"{self.directory}/{table_folder(uid)}")

    def rows(self, uid: str) -> int:
        read = reader(self._spark).schema(spark_schema(self.table(uid).schema))
        return unless_missing(lambda: read.parquet(f"{self.directory}/{table_folder(uid)}").count(), 0)

    def contents(self, uid: str) -> tuple[DataFrame, dict[str, FileDigest]]:
        """Return an operator's unchecked files (a DataFrame with ``path`` and ``content``), and their digests."""
        folder = table_folder(uid)
        digests = {
            name.rsplit("/", 1)[1]: file for name, file in self.manifest.files.items() if _folder(name) == folder
        }
        return _parquet(self._spark, f"{self.directory}/{folder}").select("path", "content"), digests

    @property
    def tasks(self) -> DataFrame:
        self._verify(_TASKS)
        return reader(self._spark).schema(spark_schema(TASKS)).parquet(f"{self.directory}/{_TASKS}")

    def own_states(self, uid: str, loads: Loads = loads_anything) -> list[OwnState]:
        table = self.table(uid)
        tasks = (row.asDict() for row in self.tasks.where("task IS NOT NULL").collect())
        batches: list[pa.RecordBatch] = []
        if table.operator.space_layout:
            batches = self.frame(uid).where("key_group IS NULL").toArrow().to_batches()
        return own_states(table.operator, tasks, (table.own_rows(batch, loads) for batch in batches), loads)

    def _verify(self, folder: str) -> None:
        if folder not in self._verified:
            expected = {name: file for name, file in self.manifest.files.items() if _folder(name) == folder}
            actual = _digests(self._spark, self.directory, [folder])
            replace(self.manifest, files=expected).check_files(self.directory, actual)
            self._verified.add(folder)


def spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
