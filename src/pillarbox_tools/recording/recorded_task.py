"""Transfers a recorded task from its worker to the driver.

The recorded task sends its input and state to the driver instead of running. Only tasks that supply its input run, with
their recorded clocks, which the driver sends. So the epoch has no output, and no later task calls a service.
"""

from __future__ import annotations

import hmac
import json
import os
import pickle
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pillarbox._errors import ConfigurationError
from pillarbox._runtime.spark.tasks.channel import Channel, ChannelLostError
from pillarbox._state.chunks.chunk import large_values
from pillarbox._state.chunks.head import META, LogIdentity, open_head
from pillarbox._state.chunks.store import ChunkStore

_CONNECT_SECONDS = 60.0
_HELLO_SECONDS = 30.0


@dataclass(frozen=True)
class RecordedTask:
    """The task to record.

    The recorded task sends its description (a dict), then the chunks of its log as (number, chunk), then portions of
    its input as (None, bytes), and finally None, which the driver answers when it has stored everything. Another task
    sends (vertex, subtask), and receives its clock log.

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
            log: bytes = driver.ask(number, subtask)
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
            driver.send({**facts, "hash_seed": os.environ.get("PYTHONHASHSEED")})
            for chunk in () if store is None else chunks_of(store):
                driver.send(chunk)
            for portion in portions:
                driver.send((None, pickle.dumps(portion)))
            driver.send(None)
            driver.receive()


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


class RecordedTaskReceiver:
    """A server that receives a recorded task from workers. Uses a thread, plus one per connected worker.

    Args:
        host: the address to listen on, which workers must be able to reach.
        limit: maximum size of the input (bytes).
        clocks: other tasks' clock logs, by vertex and subtask.

    Attributes:
        facts: the recorded task's description of itself.
        state: the chunks of its state log.
    """

    def __init__(self, host: str, folder: Path, limit: int, clocks: Mapping[tuple[int, int], bytes]) -> None:
        self._socket = socket.create_server((host, 0))
        self._socket.settimeout(None)  # the user's program may set a default timeout
        self.port: int = self._socket.getsockname()[1]
        self.token: str = secrets.token_hex(16)
        self._place = folder
        self._limit = limit
        self._clocks = clocks
        self.facts: dict[str, Any] = {}
        self.state: dict[int, bytes] = {}
        self.bytes: int = 0
        self.error: Exception | None = None
        self._done = threading.Event()
        self._connections: list[Channel] = []
        threading.Thread(target=self._serve, name="pillarbox recording", daemon=True).start()

    def is_done(self, timeout: float) -> bool:
        """Wait for the end of the recording. Returns False after ``timeout`` seconds."""
        return self._done.wait(timeout)

    def close(self) -> None:
        self._socket.close()
        for connection in self._connections:
            connection.cut()

    def _serve(self) -> None:
        while not self._done.is_set():
            try:
                connected, _ = self._socket.accept()
            except OSError:
                return
            worker = Channel(connected)
            self._connections.append(worker)
            threading.Thread(target=self._talk, args=(worker,), name="pillarbox recording", daemon=True).start()

    def _talk(self, worker: Channel) -> None:
        try:
            worker.set_timeout(_HELLO_SECONDS)
            if not hmac.compare_digest(worker.receive_bytes(most=len(self.token)), self.token.encode()):
                worker.close()
                return
            first = worker.receive()
            if isinstance(first, tuple):
                worker.send(self._clocks.get(first, b""))
                return
            worker.set_timeout(None)
            self._take(worker, first)
        except ChannelLostError:
            worker.close()
        except Exception as error:
            self.error = error
            self._done.set()

    def _take(self, worker: Channel, facts: dict[str, Any]) -> None:
        self.facts, self.state, self.bytes = facts, {}, 0
        with self._place.open("wb") as file:
            while (message := worker.receive()) is not None:
                number, content = message
                if number is not None:
                    self.state[number] = content
                    continue
                self.bytes += len(content)
                if self.bytes > self._limit:
                    raise ConfigurationError(
                        f"the task's input has more than {self._limit:,} bytes: raise limit= of record(), or --limit of"
                        " 'pillarbox record'"
                    )
                file.write(content)
        self._done.set()
        worker.send(None)
