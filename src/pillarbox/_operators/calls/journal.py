"""The journal of an operator's calls: their records, in files that outlive a failed epoch (R30).

Files are ``<journal>/<query>/<uid>/<subtask>/<epoch>/<attempt>-<number>``. Records that arrive during a write are in
the next file. A task reads the files of uncommitted epochs at its first call, and removes files when their epoch is
committed. The event loop's thread uses a journal; threads write and read files.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

from pyarrow import fs

from pillarbox._errors import ConfigurationError, describe, place_of_task
from pillarbox._operators.async_io.loop.threads import DaemonThreads
from pillarbox._operators.calls.records import Name, Record
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._unpickle import loads_plain

_log = logging.getLogger("pillarbox")

R = TypeVar("R")

# Bytes of the digest at the beginning of a file.
_DIGEST = 16
_Entry = tuple[bytes, Name, tuple[Any, ...]]


class Journal:
    """The journal of one task.

    Args:
        location: a folder of a file system, such as ``s3://bucket/prefix``.
        threads: write and read files. Not the loop's threads, which the function's calls may fill.
    """

    def __init__(
        self, location: str, context: OperatorContext, loop: asyncio.AbstractEventLoop, threads: DaemonThreads
    ) -> None:
        self._location = location
        self._context = context
        self._loop = loop
        # Without a query's id no other process can resume the task, and another run must not find its files.
        query = context.shared.query or uuid4().hex
        self._folder = f"{quote(query, safe='')}/{quote(context.uid, safe='')}/{context.subtask}"
        self._attempt = uuid4().hex[:12]
        self._threads = threads
        self._opening: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._file_system: Any = None
        self._records: dict[bytes, dict[Name, Record]] = {}
        self._waiting: list[tuple[_Entry, asyncio.Future[None]]] = []
        self._number = 0
        # The last epoch whose snapshot is complete, or -1.
        self._ended = -1
        # Epochs with files.
        self._epochs: set[int] = set()

    async def open(self) -> None:
        """Read the records of the epoch's earlier attempts. Only the first call reads."""
        if self._opening is None:
            # Not by the loop's factory, whose tasks belong to the element that runs.
            self._opening = asyncio.Task(self._open(), loop=self._loop)
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        entries = await self._in_thread("read", self._read, self._context.epoch)
        for identity, name, content in entries:
            records, record = self._records.setdefault(identity, {}), Record(*content)
            if name not in records or not records[name].is_answered:
                records[name] = record
        self.commit(self._context.epoch - 1)

    def _read(self, first: int) -> list[_Entry]:
        """Return the entries of all epochs from ``first`` on."""
        self._file_system, path = fs.FileSystem.from_uri(self._location)
        self._folder = f"{path.rstrip('/')}/{self._folder}"
        selector = fs.FileSelector(self._folder, allow_not_found=True, recursive=True)
        entries: list[_Entry] = []
        for info in self._file_system.get_file_info(selector):
            if info.is_file:
                epoch = int(info.path.split("/")[-2])
                self._epochs.add(epoch)
                if epoch >= first:
                    entries += self._entries_of(info.path)
        return entries

    def _entries_of(self, path: str) -> list[_Entry]:
        with self._file_system.open_input_stream(path) as stream:
            digest, content = stream.read(_DIGEST), stream.read()
        if blake2b(content, digest_size=_DIGEST).digest() != digest:
            # Its task died while it wrote the file, so none of these records was used.
            _log.warning("the journal's file %s is incomplete, and ignored %s", path, place_of_task(self._context.name))
            return []
        entries: list[_Entry] = loads_plain(content)
        return entries

    def take(self, identity: bytes) -> dict[Name, Record]:
        return self._records.pop(identity, {})

    def end_epoch(self) -> None:
        """Write later records for the next epoch: the snapshot is complete, and its commit removes this one's files."""
        self._ended = self._context.epoch

    async def write(self, identity: bytes, name: Name, record: Record) -> None:
        """Write a record; return when it outlives this process."""
        written: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(((identity, name, tuple(record)), written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.Task(self._write_waiting(), loop=self._loop)
        await written

    async def _write_waiting(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            content = pickle.dumps([entry for entry, _ in batch], 5)
            epoch, self._number = max(self._context.epoch, self._ended + 1), self._number + 1
            path = f"{self._folder}/{epoch}/{self._attempt}-{self._number}"
            self._epochs.add(epoch)
            failure: Exception | None = None
            try:
                await self._in_thread("write", self._put, path, content)
            except ConfigurationError as error:
                failure = error
            for _, written in batch:
                if written.done():  # its element was cancelled
                    continue
                if failure is None:
                    written.set_result(None)
                else:
                    written.set_exception(failure)

    def _put(self, path: str, content: bytes) -> None:
        if isinstance(self._file_system, fs.LocalFileSystem):  # others have no folders
            self._file_system.create_dir(path.rpartition("/")[0], recursive=True)
        with self._file_system.open_output_stream(path) as stream:
            stream.write(blake2b(content, digest_size=_DIGEST).digest() + content)

    async def _in_thread(self, action: str, function: Callable[..., R], *args: Any) -> R:
        try:
            return await self._loop.run_in_executor(self._threads, function, *args)
        except Exception as error:
            raise ConfigurationError(
                f"operator {self._context.name!r} cannot {action} the journal {self._location!r}: {describe(error)}:"
                " check the folder, and the credentials that pyarrow finds where Spark's Python workers run"
            ) from error

    def commit(self, epoch: int) -> None:
        """Remove the files of all epochs up to a committed epoch, in a thread."""
        committed = {number for number in self._epochs if number <= epoch}
        self._epochs -= committed
        if committed:
            self._loop.run_in_executor(self._threads, self._remove, committed)

    def _remove(self, epochs: Iterable[int]) -> None:
        for epoch in epochs:
            folder = f"{self._folder}/{epoch}"
            try:
                # Not file by file: an object store would get an empty object for each folder.
                self._file_system.delete_dir(folder)
            except Exception as error:
                task = place_of_task(self._context.name)
                _log.warning("the journal's folder %s remains: %s %s", folder, describe(error), task)
