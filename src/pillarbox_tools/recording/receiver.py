"""The driver's side of a recording, which receives the recorded task's data and sends clocks to other tasks."""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pillarbox._errors import ConfigurationError
from pillarbox._runtime.spark.tasks.channel import Channel, LostError
from pillarbox_tools.recording.recorded import MessageType

_HELLO_SECONDS = 30.0


class Receiver:
    """A server that receives a recorded task from workers. Uses one thread, plus one for each connected worker.

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
            kind, content = worker.receive()
            if kind is MessageType.CLOCK:
                worker.send(self._clocks.get(content, b""))
                return
            worker.set_timeout(None)
            self._take(worker, content)
        except LostError:
            worker.close()
        except Exception as error:
            self.error = error
            self._done.set()

    def _take(self, worker: Channel, facts: dict[str, Any]) -> None:
        self.facts, self.state, self.bytes = facts, {}, 0
        with self._place.open("wb") as file:
            while True:
                kind, content = worker.receive()
                if kind is MessageType.CHUNK:
                    number, chunk = content
                    self.state[number] = chunk
                elif kind is MessageType.PORTION:
                    self.bytes += len(content)
                    if self.bytes > self._limit:
                        raise ConfigurationError(
                            f"the task's input has more than {self._limit:,} bytes: raise limit= of record(), or"
                            " --limit of 'pillarbox record'"
                        )
                    file.write(content)
                elif kind is MessageType.END:
                    break
                else:
                    raise AssertionError(f"a worker sent a message of the unknown kind {kind}")
        self._done.set()
        worker.send(None)
