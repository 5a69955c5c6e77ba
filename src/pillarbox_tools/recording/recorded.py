"""A worker's side of a recording: the one task that is recorded sends its input and its state to the driver.

It does so instead of running. Of the other tasks, only those run that the recorded one gets records from, by the clock
that the driver tells. So the epoch ends without output, and without calls of those that come later.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pyarrow as pa

from pillarbox._elements import Buffer
from pillarbox._rows import batch_to_bytes
from pillarbox._runtime.spark.tasks.channel import Channel
from pillarbox._state.chunks.head import META, LogIdentity, open_head
from pillarbox._state.chunks.store import ChunkStore

_CONNECT_SECONDS = 60.0


class Part(IntEnum):
    """The parts of what a task sends to the driver: each message is a pair of its part and its content.

    FACTS: the task's own facts. CHUNK: a chunk of its log, with its number. PORTION: a portion of its input, as bytes.
    END: there is no more; the driver answers when it has all. CLOCK: another task says which one it is; the answer is
    the log of its clock, as bytes.
    """

    FACTS = 0
    CHUNK = 1
    PORTION = 2
    END = 3
    CLOCK = 4


@dataclass(frozen=True)
class RecordedTask:
    """The task that is recorded.

    Attributes:
        program: the id of its program.
        number: its vertex, and ``subtask``: its subtask, or the partition of a source.
        earlier: the vertices that it gets records from, also through others.
        host: where the driver listens, at ``port``.
        token: what the driver knows its workers by.
    """

    program: str
    number: int
    subtask: int
    earlier: list[int]
    host: str
    port: int
    token: str

    def setting(self) -> str:
        """Return the value of the setting that lets workers put this in the task's place."""
        return json.dumps((f"{RecordedTask.__module__}:{RecordedTask.__name__}", vars(self)))

    def is_task(self, program: str, number: int, subtask: int) -> bool:
        """Return whether a task is this one."""
        return (self.program, self.number, self.subtask) == (program, number, subtask)

    def is_left_out(self, program: str, number: int) -> bool:
        """Return whether a vertex has nothing to do: the recorded task gets no records from it."""
        return program == self.program and number not in self.earlier

    def clock(self, program: str, number: int, subtask: int) -> bytes | None:
        """Return the log of the clock that another task goes by, from the driver; None: by its machine's."""
        if program != self.program:
            return None
        with self._connected() as driver:
            log: bytes = driver.ask(Part.CLOCK, (number, subtask))
            return log

    @contextmanager
    def _connected(self) -> Iterator[Channel]:
        connected = socket.create_connection((self.host, self.port), _CONNECT_SECONDS)
        connected.settimeout(None)  # whatever default a function has set
        driver = Channel(connected)
        try:
            driver.send_bytes(self.token.encode())
            yield driver
        finally:
            driver.close()

    def send(self, facts: dict[str, Any], store: ChunkStore, portions: Iterable[list[Buffer]]) -> None:
        """Send all of a task after a shuffle to the driver, and wait until the driver has it.

        Args:
            facts: plain data.
            store: its log.
            portions: its input.
        """
        channels: set[int] = set()

        def pickled() -> Iterator[bytes]:
            for portion in portions:
                channels.update(buffer.channel for buffer in portion)
                yield pickle.dumps(list(map(tuple, portion)))

        self._send(facts, chunks_of(store), pickled(), lambda: {"channels": sorted(channels)})

    def send_source(self, facts: dict[str, Any], batches: Iterable[pa.RecordBatch]) -> None:
        """Send the input of a source's task, as :meth:`send` does."""
        rows = 0

        def pickled() -> Iterator[bytes]:
            nonlocal rows
            for batch in batches:
                rows += batch.num_rows
                yield pickle.dumps(batch_to_bytes(batch))

        self._send(facts, (), pickled(), lambda: {"rows": rows})

    def _send(
        self,
        facts: dict[str, Any],
        chunks: Iterable[tuple[int, bytes]],
        portions: Iterable[bytes],
        end: Callable[[], dict[str, Any]],
    ) -> None:
        with self._connected() as driver:
            driver.send((Part.FACTS, {**facts, "hash_seed": os.environ.get("PYTHONHASHSEED")}))
            for chunk in chunks:
                driver.send((Part.CHUNK, chunk))
            for portion in portions:
                driver.send((Part.PORTION, portion))
            driver.ask(Part.END, end())


def chunks_of(store: ChunkStore) -> Iterator[tuple[int, bytes]]:
    """Yield the values of a log with their numbers; of a new task there are none."""
    head = store.get(META)
    if head is None:
        return
    yield META, head
    log_head = open_head(head, LogIdentity("of a recording", 0, 1, 1))
    for number in range(log_head.first, log_head.following):
        payload = store.get(number)
        if payload is not None:
            yield number, payload
