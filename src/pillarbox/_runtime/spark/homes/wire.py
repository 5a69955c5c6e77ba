"""Messages between a relay and a home.

A worker stays connected with a home from epoch to epoch, since Spark will give it the state partition again. A home
asks for everything, and a relay sends nothing that was not asked for: so neither waits for the other to read while that
one writes. The exceptions are how a connection, a visit and an epoch begin.

| from    | message                                     | means                                                      |
| ------- | ------------------------------------------- | ---------------------------------------------------------- |
| relay   | the executor's secret, a line               | it is one of the executor's processes                      |
| relay   | ``Hello``, as JSON                          | which place it comes for, and that it knows the plan       |
| relay   | ``Visit``                                   | run an epoch for a task of Spark's                         |
| home    | ``VALUE``, number                           | give the value of a broadcast variable                     |
| home    | ``WELCOME``                                 | it runs, which is said only if nothing else is sent soon   |
| home    | ``LATE``                                    | it does not: a newer attempt has been here                 |
| home    | ``LEVEL``                                   | give the vertices of the level                             |
| home    | ``MORE``                                    | give the next buffers; the answer is a list; None: no more |
| home    | ``GET``, chunk                              | read from Spark's state; the answer is bytes, or None      |
| home    | ``PUT``, chunk, bytes                       | write to Spark's state                                     |
| home    | ``REMOVE``, chunk                           | remove from Spark's state                                  |
| home    | ``OUT``, buffers                            | emit them                                                  |
| home    | ``DONE``, next wake-up, accumulators        | the epoch's end                                            |
| home    | ``FAILED``, kind, text                      | the epoch's other end, and the connection's                |

The starter connects as well: its ``Hello`` has no place. That and each ``ASK`` is answered by the home's ``HomeFacts``,
as JSON.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pillarbox._runtime.spark.homes.surroundings import Surroundings
    from pillarbox._runtime.spark.tasks.task_facts import TaskFacts


class Kind(IntEnum):
    """The kinds of messages of a home."""

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


#: A starter's question to a home.
ASK = b"?"


class Hello(NamedTuple):
    """Who connects to a home.

    Attributes:
        place: the level and state partition whose tasks are asked for; empty: it is the starter.
        secret: of the plan; empty: it is the starter.
    """

    place: str
    secret: str


class Visit(NamedTuple):
    """An epoch of a subtask, for a task of Spark's.

    Attributes:
        attempt: the number of Spark's task; later tasks have higher ones.
        epoch: of its query.
        surroundings: of its worker; None: this connection's visit before had the same ones.
        subtask: vertex and subtask.
        facts: of Spark's task.
        head: the log's head, which the home asks for first; None: the relay has not read it.
        answers: to the first ``MORE``, pickled, if they are small.
    """

    attempt: int
    epoch: int
    surroundings: Surroundings | None
    subtask: tuple[int, int]
    facts: TaskFacts
    head: bytes | None
    answers: list[bytes]


class HomeFacts(NamedTuple):
    """What a home is told when it begins, and what it says of itself.

    Attributes:
        name: the name of its socket.
        secret: of the plan.
        idle: for how long it lives without an epoch (seconds).
        watched: number and start of the processes with whose end it ends.
        epoch: the last one that visited it.
        places: whose tasks live in it.
        pid: its process.
        since: the number of the first of Spark's tasks that visited it; None: none has.
        unused: for how long nobody has visited it (seconds).
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
