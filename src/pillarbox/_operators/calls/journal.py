"""Stores recorded answers of service calls in files (a journal), which survive a failed epoch.

Files are ``<journal>/<query>/<uid>/<subtask>/<epoch>/<attempt>-<number>``. Records that arrive while a file is being
written go into the next file. A task reads the files of uncommitted epochs before its first call, and before it carries
elements over. Mailbox thread only, but another thread writes and removes files.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from pillarbox._errors import ConfigurationError, describe, place_of_task
from pillarbox._operators.async_io.loop.threads import DaemonThreads
from pillarbox._operators.calls.records import CallRecord, Name
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._unpickle import loads_plain

_log = logging.getLogger("pillarbox")

# Bytes of the digest at the beginning of a file.
_DIGEST = 16
# An element's identity, its call's name, and the record.
Entry = tuple[bytes, Name, tuple[Any, ...]]


class Journal:
    """One task's journal.

    Args:
        location: a folder in a file system, such as ``s3://bucket/prefix``.
        threads: a pool for writing and removing files, because user functions may exhaust the loop's pool.
    """

    def __init__(
        self, location: str, context: OperatorContext, loop: asyncio.AbstractEventLoop, threads: DaemonThreads
    ) -> None:
        self._location = location
        self._context = context
        self._loop = loop
        # Without a query id, no process can resume the task, and other runs must not find its files.
        self._place = _path_of(context.shared.query or uuid4().hex, context.uid, context.subtask)
        self._attempt = uuid4().hex[:12]
        self._threads = threads
        self._writing: asyncio.Task[None] | None = None
        self._is_open = False
        self._file_system: Any = None
        self._folder = ""
        self._has_folders = False
        # Records of earlier attempts, by element identity, until their elements take them.
        self._records: dict[bytes, dict[Name, CallRecord]] = {}
        self._last_epoch = 0
        self._waiting: list[tuple[Entry, asyncio.Future[None]]] = []
        self._number = 0
        # The last epoch with a complete snapshot, or -1.
        self._ended = -1
        # Epochs with files, and the epoch whose file is being written.
        self._epochs: set[int] = set()
        self._writes_to: int | None = None

    def open(self) -> None:
        """Read the records of earlier attempts at the epoch, unless they have already been read."""
        if not self._is_open:
            first = self._context.epoch
            with self._context.shared.resting(), self._errors("read"):
                self._read(first)
            self._is_open = True
            self.commit(first - 1)

    def _read(self, first: int) -> None:
        self._file_system, self._folder = _folder_at(self._location, self._place)
        self._has_folders = self._file_system.type_name == "local"
        for epoch, path in _files_in(self._file_system, self._folder):
            self._epochs.add(epoch)
            if epoch >= first:
                entries = _entries_in(self._file_system, path)
                if entries is None:
                    task = place_of_task(self._context.name)
                    _log.warning("the journal file %s is incomplete and will be ignored %s", path, task)
                self.add(epoch, entries or ())

    def add(self, epoch: int, entries: Iterable[Entry]) -> None:
        """Add records of earlier attempts, for elements that arrived in ``epoch`` or earlier."""
        for identity, name, content in entries:
            records, record = self._records.setdefault(identity, {}), CallRecord(*content)
            if name not in records or not records[name].is_answered:
                records[name] = record
            self._last_epoch = max(self._last_epoch, epoch)

    def take(self, identity: bytes) -> dict[Name, CallRecord]:
        return self._records.pop(identity, {})

    def snapshot(self, first_arrival: int | None) -> tuple[int, list[Entry]]:
        """Return the arguments for :meth:`add`: an arrival, and the calls of elements not yet replayed."""
        # Later records belong to the next epoch, because this epoch's commit removes its files.
        self._ended = self._context.epoch
        if first_arrival is None or first_arrival > self._last_epoch:
            self._records.clear()
        entries = [
            (identity, name, tuple(record))
            for identity, records in self._records.items()
            for name, record in records.items()
        ]
        return self._last_epoch, entries

    async def write(self, identity: bytes, name: Name, record: CallRecord) -> None:
        written: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(((identity, name, tuple(record)), written))
        if self._writing is None or self._writing.done():
            # Not created by the loop's factory, whose tasks belong to the running element.
            self._writing = asyncio.Task(self._write_waiting(), loop=self._loop)
        await written

    @property
    def is_writing(self) -> bool:
        return self._writing is not None and not self._writing.done()

    async def _write_waiting(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            content = pickle.dumps([entry for entry, _ in batch], 5)
            epoch, self._number = max(self._context.epoch, self._ended + 1), self._number + 1
            path = f"{self._folder}/{epoch}/{self._attempt}-{self._number}"
            self._epochs.add(epoch)
            self._writes_to = epoch
            failure: Exception | None = None
            try:
                with self._errors("write"):
                    await self._loop.run_in_executor(self._threads, self._put, path, content)
            except ConfigurationError as error:
                failure = error
            finally:
                self._writes_to = None
            for _, written in batch:
                if written.done():  # the element was cancelled
                    continue
                if failure is None:
                    written.set_result(None)
                else:
                    written.set_exception(failure)

    def _put(self, path: str, content: bytes) -> None:
        if self._has_folders:
            self._file_system.create_dir(path.rpartition("/")[0], recursive=True)
        with self._file_system.open_output_stream(path) as stream:
            stream.write(blake2b(content, digest_size=_DIGEST).digest() + content)

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise ConfigurationError(
                f"operator {self._context.name!r} cannot {action} the journal {self._location!r}: {describe(error)}:"
                " check the folder, and pyarrow's credentials on the machines of Spark's Python workers"
            ) from error

    def commit(self, epoch: int) -> None:
        """Remove the files of all epochs up to a committed epoch, in another thread."""
        committed = {number for number in self._epochs if number <= epoch and number != self._writes_to}
        self._epochs -= committed
        if committed:
            self._loop.run_in_executor(self._threads, self._remove, committed)

    def _remove(self, epochs: Iterable[int]) -> None:
        for epoch in epochs:
            folder = f"{self._folder}/{epoch}"
            try:
                # Not file by file, because an object store would create an empty object for the folder.
                self._file_system.delete_dir(folder)
            except FileNotFoundError:
                pass  # writing was interrupted
            except Exception as error:
                task = place_of_task(self._context.name)
                _log.warning("the journal folder %s could not be deleted: %s %s", folder, describe(error), task)


def read_entries(location: str, query: str, uid: str, subtask: int) -> dict[int, list[Entry]]:
    file_system, folder = _folder_at(location, _path_of(query, uid, subtask))
    entries: dict[int, list[Entry]] = {}
    for epoch, path in _files_in(file_system, folder):
        entries.setdefault(epoch, []).extend(_entries_in(file_system, path) or ())
    return entries


def _path_of(query: str, uid: str, subtask: int) -> str:
    return f"{quote(query, safe='')}/{quote(uid, safe='')}/{subtask}"


def _folder_at(location: str, path: str) -> tuple[Any, str]:
    from pyarrow import fs  # loading its libraries takes time, and few programs have a journal

    file_system, root = fs.FileSystem.from_uri(location)
    return file_system, f"{root.rstrip('/')}/{path}"


def _files_in(file_system: Any, folder: str) -> Iterator[tuple[int, str]]:
    from pyarrow import fs

    for info in file_system.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True)):
        if info.is_file:
            yield int(info.path.split("/")[-2]), info.path


def _entries_in(file_system: Any, path: str) -> list[Entry] | None:
    """Return the entries of a file, or None if it is incomplete.

    An incomplete file can be ignored, because the task died before it used the entries.
    """
    with file_system.open_input_stream(path) as stream:
        digest, content = stream.read(_DIGEST), stream.read()
    if blake2b(content, digest_size=_DIGEST).digest() != digest:
        return None
    entries: list[Entry] = loads_plain(content)
    return entries
