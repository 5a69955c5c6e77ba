"""Savepoints on Spark: written from a checkpoint, and opened, by Spark's readers and writers alone.

So a savepoint can be wherever Spark writes. How it is written, step by step, is in docs/savepoint-format.md: the
manifest comes last, and without it there is no savepoint.
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
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.checkpoint.copy import removed
from pillarbox._runtime.spark.checkpoint.look import look_at
from pillarbox._runtime.spark.checkpoint.state import CheckpointState, Stateful, each_log
from pillarbox._runtime.spark.failures import unwrapped_failures
from pillarbox._runtime.spark.rows.any_names import map_in_arrow
from pillarbox._runtime.spark.session.folders import is_savepoint, reader, text_of, unless_missing
from pillarbox._runtime.spark.session.places import check_session, place_of
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
# A file of at most so many bytes may be in memory as a whole, several times over, to be proved and read. So no file
# gets larger, unless a single row is.
_BYTES_IN_FILE = 64 * 1024 * 1024
_ROWS_IN_FILE = 200_000


def savepoint(spark: SparkSession, checkpoint: str, directory: str, *, epoch: int | None = None) -> None:
    """Write a savepoint: all state of a query as plain Parquet, from which a query with other parallelism can start.

    It is written from the checkpoint of a query that is stopped, or running, of one epoch that was committed; the
    program and its classes are not needed. All state is read, and proved, once; a task has the log of one subtask in
    memory. The format is described in docs/savepoint-format.md.

    If it is interrupted, there is no savepoint: the same call starts from scratch, and overwrites the incomplete one.

    Args:
        spark: the session that reads the checkpoint and writes the savepoint.
        checkpoint: the ``checkpointLocation`` of the query.
        directory: where to write it, anywhere that Spark writes; it must not exist.
        epoch: the number of a micro-batch whose state Spark still has; None: the last one that was committed.

    Raises:
        CheckpointMismatchError: there is no such checkpoint or epoch, it cannot be read, or Spark removes it; or there
            is something in the directory.
        ProgramError: ``epoch`` is no number of a micro-batch.

    Example:
        >>> savepoint(spark, "/checkpoints/flights", "/savepoints/flights-1")  # doctest: +SKIP
    """
    check_session(spark, "savepoint()")
    checkpoint = place_of(checkpoint, "savepoint(): the checkpoint")
    directory = place_of(directory, "savepoint(): the place of the savepoint")
    look_at(spark, checkpoint, epoch, partial(_write, directory))


def _write(directory: str, files: CheckpointState) -> None:
    spark, stateful = files.spark, files.stateful
    if not stateful and files.checkpoint.binding() is None:
        raise CheckpointMismatchError(
            f"checkpoint {files} has no state of pillarbox: does it belong to another query of Spark's?"
        )
    check_new(spark, directory)
    # Before the tables: Spark removes the offsets, too.
    programs, sources = files.checkpoint.programs_at(files.epoch), _sources(files)
    with unwrapped_failures():
        begin(spark, directory)
        operators, tasks = _write_tables(files, stateful, directory)
        write_tasks(spark, tasks, directory)
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
    """Check that a savepoint can be written into a directory: it is new, or has one that was not completed.

    Raises:
        CheckpointMismatchError: it contains something else.
    """
    directory = directory.rstrip("/")
    is_half = text_of(spark, f"{directory}/{STARTED}") is not None and text_of(spark, f"{directory}/{MANIFEST}") is None
    if is_half or _is_empty(spark, directory):
        return
    what = "is a savepoint already" if is_savepoint(spark, directory) else "contains something else"
    raise CheckpointMismatchError(f"{directory} exists, and {what}: give a new directory for the savepoint")


# -- writing --


def begin(spark: SparkSession, directory: str) -> None:
    """Begin a savepoint, or begin again one that was not completed."""
    if text_of(spark, f"{directory}/{STARTED}") is None:
        # Overwriting it would remove it first: who is killed then would leave files that nobody knows.
        _write_text(spark, BEGUN, f"{directory}/{STARTED}")
    # Overwriting a folder removes all that an incomplete earlier savepoint has in it.
    _write_text(spark, "a folder for each operator", f"{directory}/{_STATE}")


def write_table(rows: DataFrame, directory: str, uid: str) -> None:
    """Write the table of an operator; where rows are so large that its files are, too, once more with fewer in each."""
    place, most = f"{directory}/{table_folder(uid)}", _ROWS_IN_FILE
    while True:
        rows.write.mode("overwrite").option("maxRecordsPerFile", str(most)).parquet(place)
        largest = max(
            (row["length"] for row in _parquet(rows.sparkSession, place).select("length").collect()), default=0
        )
        if largest <= _BYTES_IN_FILE or most == 1:
            return
        most = max(1, most * _BYTES_IN_FILE // (2 * largest))


def complete(spark: SparkSession, directory: str, manifest: Manifest) -> None:
    """Write the manifest, with the digests of all files written so far: the savepoint is complete by that.

    The tables that the manifest has digests of keep these: what was damaged since is not taken for good.
    """
    tasks = f"{_TASKS}/"
    known = {name: digest for name, digest in manifest.files.items() if not name.startswith(tasks)}
    folders = sorted({*(table_folder(each.uid) for each in manifest.operators), _TASKS} - set(map(_folder, known)))
    whole = replace(manifest, files={**known, **_digests(spark, directory, folders)})
    _write_text(spark, whole.to_json(), f"{directory}/{MANIFEST}")


def _write_tables(
    files: CheckpointState, stateful: Iterable[Stateful], directory: str
) -> tuple[list[OperatorTable], list[dict[str, Any]]]:
    """Write the tables of all operators; return what the manifest says of them, and the rows of ``tasks``."""
    operators: list[OperatorTable] = []
    tasks: list[dict[str, Any]] = []
    for operator in stateful:
        by_uid: dict[str, dict[int, LogView]] = {}
        for code, view in files.views(operator).items():
            by_uid.setdefault(view.head.operator, {})[code] = view
        for uid, views in sorted(by_uid.items()):
            if any(uid == other.uid for other in operators):
                raise CheckpointMismatchError(
                    f"checkpoint {files}: several programs of the query have an operator {uid!r}, and a savepoint has"
                    " one state for each uid: give operators of all programs in a query uids of their own"
                )
            logs = files.logs(operator).where(f"code IN ({', '.join(map(str, sorted(views)))})")
            table, rows = table_of_logs(logs, [view.head for view in views.values()])
            write_table(rows, directory, uid)
            operators.append(table)
            tasks += map(task_row, views.values())
    return sorted(operators, key=lambda each: each.uid), tasks


def table_of_logs(logs: DataFrame, heads: Sequence[LogHead]) -> tuple[OperatorTable, DataFrame]:
    """Return the table of an operator's state, and its rows.

    Args:
        logs: the values of the logs of all its subtasks.
        heads: the heads of these.
    """
    table = Table(OperatorTable.of(heads))
    if parts_slot(table.operator.layout, table.operator.space_layout) is not None:
        table = Table(OperatorTable.of(heads, _parts(logs)))
    return table.operator, map_in_arrow(logs, "savepoint", partial(_rows, table.operator), spark_schema(table.schema))


def _rows(operator: OperatorTable, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the rows of the table, from the values of logs."""
    table = Table(operator)

    def rows(code: int, store: MemoryChunkStore) -> Iterator[pa.RecordBatch]:
        view = LogView(store, code)
        with collector_paused():
            yield from table.encode(view.rows(), view.head.subtask)

    return each_log(rows, batches)


def _parts(logs: DataFrame) -> dict[str, pa.Schema]:
    """Return the Arrow schemas of an operator by columns."""
    found: dict[str, pa.Schema] = {}
    schemas = map_in_arrow(logs, "savepoint", partial(each_log, _schemas), "part STRING, content BINARY")
    for row in schemas.collect():
        found.setdefault(row["part"], pa.ipc.read_schema(pa.py_buffer(bytes(row["content"]))))
    return found


def _schemas(code: int, store: MemoryChunkStore) -> Iterator[pa.RecordBatch]:
    found = schemas_of(LogView(store, code))
    if found:
        contents = [schema.serialize().to_pybytes() for schema in found.values()]
        yield pa.RecordBatch.from_pydict({"part": [*found], "content": contents})


def write_tasks(spark: SparkSession, rows: list[dict[str, Any]], directory: str) -> None:
    """Write what subtasks keep besides the rows of keys, of all operators."""
    values = [tuple(row[name] for name in TASKS.names) for row in rows]
    schema = spark_schema(TASKS)
    frame = spark.createDataFrame(values, schema)
    frame.coalesce(1).write.mode("overwrite").parquet(f"{directory}/{_TASKS}")


def _write_text(spark: SparkSession, text: str, folder: str) -> None:
    frame = spark.createDataFrame([(text,)], "value STRING")
    frame.coalesce(1).write.mode("overwrite").option("compression", "none").text(folder)


# -- sources --


def _sources(files: CheckpointState) -> Sources:
    """Return how far the sources had been read as of the epoch."""
    entry = files.checkpoint.offsets([files.epoch])[files.epoch]
    if not entry.lines:
        raise removed(str(files), files.epoch)
    last = max(entry.files.values(), default=None)
    if last is None:
        return Sources(entry.lines)
    # A source that is read twice has two lines, and one folder: which folder is whose, the program tells. So for each
    # there is more than it may need.
    seen = {name: _files_seen(files.spark, f"{files}/sources/{name}", last) for name in entry.sources}
    return Sources(entry.lines, {name: log for name, log in seen.items() if log})


def _files_seen(spark: SparkSession, folder: str, last: int) -> tuple[str, ...]:
    """Return the lines of a file source's log up to a number; compact files repeat the lines of others."""
    rows: list[Any] = unless_missing(
        lambda: reader(spark).text(folder).where("value LIKE '{%'").distinct().collect(), []
    )
    seen = [
        (found, row[0]) for row in rows if "path" in (found := json_object(row[0])) and found.get("batchId", 0) <= last
    ]
    return tuple(line for _, line in sorted(seen, key=lambda each: (each[0].get("batchId", 0), each[0]["path"])))


# -- reading --


def _digests(spark: SparkSession, directory: str, folders: Iterable[str]) -> dict[str, FileDigest]:
    """Return what the data files in some folders are, by their place in the directory."""
    found: dict[str, FileDigest] = {}
    for folder in folders:
        rows = _parquet(spark, f"{directory}/{folder}").selectExpr("path", "length", "sha2(content, 256)")
        for path, length, digest in rows.collect():
            found[_place(path, folder)] = FileDigest(length, digest)
    return found


def _lengths(spark: SparkSession, directory: str) -> dict[str, FileDigest | int]:
    """Return the lengths of all data files, by their place in the directory: they are listed, and not read."""
    return {
        "/".join([name, *path.split("/")[-depth:]]): length
        for name, depth in ((_STATE, 2), (_TASKS, 1))
        for path, length in _parquet(spark, f"{directory}/{name}").select("path", "length").collect()
    }


def _place(path: str, folder: str) -> str:
    return f"{folder}/{path.rsplit('/', 1)[1]}"


def _folder(place: str) -> str:
    return place.rsplit("/", 1)[0]


def _parquet(spark: SparkSession, directory: str) -> DataFrame:
    """Return the files of tables as rows."""
    read = reader(spark).format("binaryFile").option("recursiveFileLookup", "true")
    return read.option("pathGlobFilter", "*.parquet").load(directory)


def _is_empty(spark: SparkSession, directory: str) -> bool:
    """Return whether a directory does not exist, or has no files."""
    read = reader(spark).format("binaryFile").option("recursiveFileLookup", "true")
    return unless_missing(lambda: read.load(directory).select("path").limit(1).count(), 0) == 0


def open_savepoint(spark: SparkSession, directory: str) -> OpenSavepoint:
    """Return a savepoint whose files exist and have their lengths; their content is checked when it is read.

    Args:
        directory: where it lies.

    Raises:
        CheckpointMismatchError: it is none, or not complete, or not as it was written.
    """
    directory = directory.rstrip("/")
    text = text_of(spark, f"{directory}/{MANIFEST}")
    if text is None:
        state = "was begun, and not completed" if is_savepoint(spark, directory) else "is no savepoint"
        how = ""
        if Checkpoint(spark, directory).last_committed >= 0:
            how = f"; it is a checkpoint, of which 'pillarbox savepoint {directory} DIRECTORY' writes one"
        raise CheckpointMismatchError(f"{directory} {state}: it has no manifest{how}")
    manifest = Manifest.from_json(text)
    manifest.check_files(directory, _lengths(spark, directory))
    return OpenSavepoint(spark, directory, manifest)


class OpenSavepoint:
    """A savepoint as Spark reads it.

    Attributes:
        directory: where it lies.
        manifest: its manifest.
    """

    def __init__(self, spark: SparkSession, directory: str, manifest: Manifest) -> None:
        self._spark = spark
        self.directory: str = directory
        self.manifest: Manifest = manifest
        self._proved: set[str] = set()

    def table(self, uid: str) -> Table:
        """Return the table of an operator, which reads its rows.

        Raises:
            CheckpointMismatchError: there is no state of it.
        """
        return Table(self.manifest.operator(uid))

    def frame(self, uid: str) -> DataFrame:
        """Return the rows of an operator's table.

        Raises:
            CheckpointMismatchError: there is no state of it, or it is not as it was written.
        """
        schema = spark_schema(self.table(uid).schema)
        self._prove(table_folder(uid))
        return reader(self._spark).schema(schema).parquet(f"{self.directory}/{table_folder(uid)}")

    def rows(self, uid: str) -> int:
        """Return the number of rows of an operator's table. It is not checked."""
        read = reader(self._spark).schema(spark_schema(self.table(uid).schema))
        return unless_missing(lambda: read.parquet(f"{self.directory}/{table_folder(uid)}").count(), 0)

    def contents(self, uid: str) -> tuple[DataFrame, dict[str, FileDigest]]:
        """Return the files of an operator's table, each a row with ``path`` and ``content``, and their digests by name.

        The caller has to check them.
        """
        folder = table_folder(uid)
        wanted = {name.rsplit("/", 1)[1]: file for name, file in self.manifest.files.items() if _folder(name) == folder}
        return _parquet(self._spark, f"{self.directory}/{folder}").select("path", "content"), wanted

    @property
    def tasks(self) -> DataFrame:
        """What subtasks keep besides the rows of keys, pickled: a row for each.

        Raises:
            CheckpointMismatchError: it is not as it was written.
        """
        self._prove(_TASKS)
        return reader(self._spark).schema(spark_schema(TASKS)).parquet(f"{self.directory}/{_TASKS}")

    def own_states(self, uid: str, loads: Loads = loads_anything) -> list[OwnState]:
        """Return what the operator's subtasks keep besides the rows of keys, by subtask; all of it is in memory.

        Args:
            loads: unpickles it.

        Raises:
            CheckpointMismatchError: there is no state of it, or it cannot be read, or is not as it was written.
        """
        table = self.table(uid)
        tasks = (row.asDict() for row in self.tasks.where("task IS NOT NULL").collect())
        batches: list[pa.RecordBatch] = []
        if table.operator.space_layout:
            batches = self.frame(uid).where("key_group IS NULL").toArrow().to_batches()
        return own_states(table.operator, tasks, (table.own_rows(batch, loads) for batch in batches), loads)

    def _prove(self, folder: str) -> None:
        """Prove, once, that the files in a folder are those that were written.

        Raises:
            CheckpointMismatchError: they are not.
        """
        if folder not in self._proved:
            wanted = {name: file for name, file in self.manifest.files.items() if _folder(name) == folder}
            found = _digests(self._spark, self.directory, [folder])
            replace(self.manifest, files=wanted).check_files(self.directory, found)
            self._proved.add(folder)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the columns of an Arrow schema as Spark has them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
