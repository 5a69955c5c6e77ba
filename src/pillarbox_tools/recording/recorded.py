"""The worker's side of a recording. The recorded task sends its input and state to the driver instead of running.

Only the tasks that supply its input run. They use their recorded clocks, which the driver sends. So the epoch has no
output, and no later task calls a service.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from pillarbox._runtime.spark.tasks.channel import Channel
from pillarbox._state.chunks.chunk import large_values
from pillarbox._state.chunks.head import META, LogIdentity, open_head
from pillarbox._state.chunks.store import ChunkStore

_CONNECT_SECONDS = 60.0


class MessageType(IntEnum):
    """Types of messages. A message is (type, content).

    METADATA contains the task's description, CHUNK a chunk of its log with the chunk's number, and PORTION a portion of
    its input as bytes. The driver answers END, the last message, when it has stored everything. CLOCK names another
    task as (vertex, subtask); the answer is that task's clock log as bytes.
    """

    METADATA = 0
    CHUNK = 1
    PORTION = 2
    END = 3
    CLOCK = 4


@dataclass(frozen=True)
class RecordedTask:
    """The task to record.

    Attributes:
        subtask: its subtask, or a source's partition.
        earlier: the upstream vertices.
    """

    program: str
    number: int
    subtask: int
    earlier: list[int]
    host: str
    port: int
    token: str

    def setting(self) -> str:
        return json.dumps((f"{RecordedTask.__module__}:{RecordedTask.__name__}", vars(self)))

    def is_task(self, program: str, number: int, subtask: int) -> bool:
        return (self.program, self.number, self.subtask) == (program, number, subtask)

    def is_left_out(self, program: str, number: int) -> bool:
        return program == self.program and number not in self.earlier

    def clock(self, program: str, number: int, subtask: int) -> bytes | None:
        if program != self.program:
            return None
        with self._connected() as driver:
            log: bytes = driver.ask(MessageType.CLOCK, (number, subtask))
            return log

    @contextmanager
    def _connected(self) -> Iterator[Channel]:
        connected = socket.create_connection((self.host, self.port), _CONNECT_SECONDS)
        connected.settimeout(None)
        driver = Channel(connected)
        try:
            driver.send_bytes(self.token.encode())
            yield driver
        finally:
            driver.close()

    def send(self, facts: dict[str, Any], portions: Iterable[Any], store: ChunkStore | None = None) -> None:
        with self._connected() as driver:
            driver.send((MessageType.METADATA, {**facts, "hash_seed": os.environ.get("PYTHONHASHSEED")}))
            for chunk in () if store is None else chunks_of(store):
                driver.send((MessageType.CHUNK, chunk))
            for portion in portions:
                driver.send((MessageType.PORTION, pickle.dumps(portion)))
            driver.ask(MessageType.END, None)


def chunks_of(store: ChunkStore) -> Iterator[tuple[int, bytes]]:
    head = store.get(META)
    if head is None:
        return
    yield META, head
    log_head = open_head(head, LogIdentity("of a recording", 0, 1, 1))
    for number in range(log_head.first, log_head.following):
        payload = store.get(number)
        if payload is not None:
            yield number, payload
            yield from ((large, value) for large in large_values(payload) if (value := store.get(large)) is not None)
