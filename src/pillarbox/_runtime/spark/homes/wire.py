"""Messages between a worker's relay and a home.

A connection lasts for many epochs, because Spark usually reassigns a state partition to the same worker. A relay sends
the executor's secret (a line), a ``Hello`` (JSON), and a ``HomeEpochRequest`` for each epoch. During an epoch, the
relay only answers, so that the two ends never block each other by both sending. The home sends:

- ``VALUE`` number: requests a broadcast variable's value.
- ``WELCOME``: the epoch is running. Sent only if there was no other message for a while.
- ``LATE``: refuses the epoch, because a newer attempt has begun.
- ``LEVEL``: requests the level's vertices.
- ``MORE``: requests the next list of buffers. The answer is None at the end.
- ``GET`` chunk, ``PUT`` chunk bytes, ``REMOVE`` chunk: access Spark's state.
- ``OUT`` buffers: emits buffers.
- ``DONE`` wake-up accumulators: the epoch has ended.
- ``FAILED`` kind text: the epoch has failed. The home closes the connection.

A starter sends an empty ``Hello``, then ``ASK`` any number of times. The home answers each with a ``HomeDescription``
(JSON).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pillarbox._runtime.spark.homes.worker_environment import WorkerEnvironment
    from pillarbox._runtime.spark.tasks.task_info import TaskInfo


class HomeMessageKind(IntEnum):
    """Kind of a message between a relay and its home."""

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


#: A starter's request for a home's description.
ASK = b"?"


class Hello(NamedTuple):
    """The first message to a home. Empty if sent by the starter."""

    place: str
    secret: str


class HomeEpochRequest(NamedTuple):
    """A request to run a subtask's epoch for a Spark task.

    Attributes:
        environment: the worker's environment, or None if unchanged since the previous request on this connection.
        head: the head of the subtask's state log, or None if the worker has not read it.
    """

    attempt: int
    epoch: int
    environment: WorkerEnvironment | None
    subtask: tuple[int, int]
    facts: TaskInfo
    head: bytes | None
    answers: list[bytes]


class HomeDescription(NamedTuple):
    """The description of a home. The starter passes it to a new home, which sends it in answer to ``ASK``.

    Attributes:
        idle: the home ends after this many seconds without an epoch.
        watched: (pid, start time) of processes. The home exits when one of them exits.
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
