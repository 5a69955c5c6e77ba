"""Messages between a relay and a home.

A worker keeps its connection between epochs, since Spark usually gives it the same state partition again. A relay sends
the executor's secret (a line), a ``Hello`` (JSON), and an ``EpochRequest`` for each epoch. During an epoch it only
answers requests, so both ends never block by sending at the same time. The home sends:

- ``VALUE`` number: requests a broadcast variable's value.
- ``WELCOME``: the epoch is running; sent only after a silence.
- ``LATE``: refuses the epoch, since a newer attempt has begun.
- ``LEVEL``: requests the level's vertices.
- ``MORE``: requests the next buffers, a list, or None at the end.
- ``GET`` chunk, ``PUT`` chunk bytes, ``REMOVE`` chunk: access Spark's state.
- ``OUT`` buffers: emits them.
- ``DONE`` wake-up accumulators: the epoch has ended.
- ``FAILED`` kind text: the epoch has failed; the connection ends.

A starter connects with a ``Hello`` without a place. The home answers this and each ``ASK`` with a ``HomeDescription``
(JSON).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pillarbox._runtime.spark.homes.worker_environment import WorkerEnvironment
    from pillarbox._runtime.spark.tasks.task_info import TaskInfo


class Kind(IntEnum):
    """Kinds of messages between a relay and its home."""

    MORE = 0
    GET = 1
    PUT = 2
    REMOVE = 3
    OUT = 4
    DONE = 5
    FAILED = 6
    WELCOME = 7
    LATE = 8
    LEVEL = 9
    VALUE = 10


#: A starter's question for a home's facts.
ASK = b"?"


class Hello(NamedTuple):
    """A client's first message to a home. Empty for a starter."""

    place: str
    secret: str


class EpochRequest(NamedTuple):
    """A request to run a subtask's epoch for a Spark task.

    Attributes:
        environment: the worker's environment, or None if unchanged since the connection's previous request.
        head: the log's head, or None if unread.
    """

    attempt: int
    epoch: int
    environment: WorkerEnvironment | None
    subtask: tuple[int, int]
    facts: TaskInfo
    head: bytes | None
    answers: list[bytes]


class HomeDescription(NamedTuple):
    """Facts about a home: the starter's parameters for a new one, and its own answer.

    Attributes:
        idle: lifetime without an epoch (seconds).
        watched: (pid, start time) of processes. The home ends with any of them.
    """

    name: str
    run: str
    query: str
    secret: str
    idle: float
    watched: list[list[int]]
    epoch: int
    places: list[str]
    pid: int = 0
    since: int | None = None
    unused: float = 0.0
