"""A worker's side of a recording: the one task that is recorded sends its input and its state to the driver, and waits.

The driver ends the query when it has all of it, so the task never runs, and nothing is written anywhere.
"""

from __future__ import annotations

import json
import pickle
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pillarbox._runtime.spark.tasks.task_facts import local_property
from pillarbox._state.chunks.head import META, LogIdentity, open_head
from pillarbox._state.chunks.store import ChunkStore

#: The setting that says which task is recorded, and where the driver listens.
RECORD = "spark.pillarbox.record"

_LENGTH = struct.Struct(">Q")
#: Kinds of frames: what the task knows, a chunk of its log, a portion of its input, the end.
FACTS, CHUNK, PORTION, END = b"f", b"c", b"p", b"e"


@dataclass(frozen=True)
class RecordedTask:
    """The task that is recorded.

    Attributes:
        program: the id of its program.
        number: its vertex, and ``subtask``: its subtask, or the partition of a source.
        host: where the driver listens, at ``port``.
        token: what the driver knows its workers by.
    """

    program: str
    number: int
    subtask: int
    host: str
    port: int
    token: str

    @staticmethod
    def here() -> RecordedTask | None:
        """Return the task that is recorded by the query that runs here; None: none is."""
        said = local_property(RECORD)
        return None if not said else RecordedTask(**json.loads(said))

    def setting(self) -> str:
        """Return the value of the setting."""
        return json.dumps(vars(self))

    def is_task(self, program: str, number: int, subtask: int) -> bool:
        """Return whether a task is this one."""
        return (self.program, self.number, self.subtask) == (program, number, subtask)

    def send(self, facts: dict[str, Any], store: ChunkStore | None, portions: Iterable[Any]) -> None:
        """Send all of the task to the driver, then wait until the driver ends the query.

        Args:
            facts: plain data.
            store: its log; None: it has none.
            portions: its input: bytes, or lists of buffers.
        """
        with socket.create_connection((self.host, self.port)) as driver:
            driver.sendall(self.token.encode())
            _send(driver, FACTS, json.dumps(facts).encode())
            for number, payload in chunks_of(store):
                _send(driver, CHUNK, pickle.dumps((number, payload)))
            for portion in portions:
                _send(
                    driver, PORTION, pickle.dumps(portion if isinstance(portion, bytes) else list(map(tuple, portion)))
                )
            _send(driver, END, b"")
            driver.recv(1)


def _send(driver: socket.socket, kind: bytes, payload: bytes) -> None:
    driver.sendall(kind + _LENGTH.pack(len(payload)))
    driver.sendall(payload)


def receive(worker: socket.socket) -> tuple[bytes, bytes]:
    """Return kind and content of the next frame.

    Raises:
        EOFError: the worker has closed the connection.
    """
    head = read_exactly(worker, 1 + _LENGTH.size)
    return head[:1], read_exactly(worker, _LENGTH.unpack(head[1:])[0])


def read_exactly(worker: socket.socket, size: int) -> bytes:
    """Return so many bytes.

    Raises:
        EOFError: the worker has closed the connection.
    """
    found = bytearray()
    while len(found) < size:
        part = worker.recv(min(1 << 20, size - len(found)))
        if not part:
            raise EOFError
        found += part
    return bytes(found)


def chunks_of(store: ChunkStore | None) -> Iterator[tuple[int, bytes]]:
    """Yield the values of a log with their numbers; of a new task there are none."""
    head = None if store is None else store.get(META)
    if store is None or head is None:
        return
    yield META, head
    known = open_head(head, LogIdentity("of a recording", 0, 1, 1))
    for number in range(known.first, known.following):
        payload = store.get(number)
        if payload is not None:
            yield number, payload
