"""Messages between a relay and a home.

A worker keeps its connection to a home between epochs, since Spark will probably give it the same state partition
again. A home requests everything, and a relay sends only answers: so the two never block each other by sending at the
same time. Exceptions are the first messages of a connection, a visit and an epoch.

| from    | message                              | meaning                                                        |
| ------- | ------------------------------------ | -------------------------------------------------------------- |
| relay   | the executor's secret, a line        | it is one of the executor's processes                          |
| relay   | ``Hello``, as JSON                   | the place that it visits, and the plan's secret                |
| relay   | ``EpochRequest``                     | run an epoch for a Spark task                                  |
| home    | ``VALUE``, number                    | request the value of a broadcast variable                      |
| home    | ``WELCOME``                          | the epoch is running; sent only if nothing else is sent soon   |
| home    | ``LATE``                             | the visit is refused, since a newer attempt has been here      |
| home    | ``LEVEL``                            | request the level's vertices                                   |
| home    | ``MORE``                             | request the next buffers; the answer is a list, or None at end |
| home    | ``GET``, chunk                       | read from Spark's state; the answer is bytes, or None          |
| home    | ``PUT``, chunk, bytes                | write to Spark's state                                         |
| home    | ``REMOVE``, chunk                    | remove from Spark's state                                      |
| home    | ``OUT``, buffers                     | emit them                                                      |
| home    | ``DONE``, next wake-up, accumulators | the epoch has ended                                            |
| home    | ``FAILED``, kind, text               | the epoch has failed; the connection ends                      |

The starter connects, too: its ``Hello`` has no place. The home answers that and each ``ASK`` with its
``HomeDescription``, as JSON.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pillarbox._runtime.spark.homes.worker_environment import WorkerEnvironment
    from pillarbox._runtime.spark.tasks.task_info import TaskInfo


class Kind(IntEnum):
    """The kinds of a home's messages."""

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


#: A starter's request for a home's facts.
ASK = b"?"


class Hello(NamedTuple):
    """A client's first message to a home.

    Attributes:
        place: the place that a relay visits; empty for a starter.
        secret: the plan's secret; empty for a starter.
    """

    place: str
    secret: str


class EpochRequest(NamedTuple):
    """A request to run an epoch of a subtask for a Spark task.

    Attributes:
        attempt: the Spark task's number, which rises with each task.
        epoch: the query's epoch.
        environment: the worker's environment, or None if unchanged since the connection's previous visit.
        subtask: (vertex, subtask).
        facts: the facts of the Spark task.
        head: the log's head, which the home needs first, or None if the relay has not read it.
        answers: the first answers to ``MORE``, pickled, if they are small.
    """

    attempt: int
    epoch: int
    environment: WorkerEnvironment | None
    subtask: tuple[int, int]
    facts: TaskInfo
    head: bytes | None
    answers: list[bytes]


class HomeDescription(NamedTuple):
    """The starter's parameters for a new home, and the home's description of itself.

    Attributes:
        name: its socket's name.
        secret: the plan's secret.
        idle: how long it lives without an epoch (seconds).
        watched: pid and start time of processes: it ends with any of them.
        epoch: the epoch of its last visit.
        places: the places that it serves.
        pid: its process.
        since: the number of the first Spark task that visited it, or None.
        unused: seconds since its last visit.
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
