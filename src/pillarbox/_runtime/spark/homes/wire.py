"""Messages between a relay and a home: tuples, of which the first element says what they are.

A home asks for everything, and a relay sends nothing that was not asked for: so neither waits for the other to read
while that one writes. The exception is how an epoch begins.

| from  | message                                     | means                                                        |
| ----- | ------------------------------------------- | ------------------------------------------------------------ |
| relay | ``secret`` (bytes, not pickled)             | it may talk to the home                                      |
| relay | ``Visit``                                   | who comes                                                    |
| home  | ``WELCOME``, whether it has the level       | it comes in, and sends the level if it is asked for          |
| home  | ``LATE``                                    | it does not: a newer attempt has been here                   |
| home  | ``VALUE``, number                           | give a broadcast variable's pickled value (bytes)            |
| relay | subtask, ``TaskFacts``                      | run an epoch                                                 |
| home  | ``MORE``                                    | give the next buffers; the answer is a list, or None at last |
| home  | ``GET``, chunk, whether it may be missing   | read from Spark's state; the answer is bytes, or None        |
| home  | ``PUT``, chunk, bytes                       | write to Spark's state                                       |
| home  | ``REMOVE``, chunk                           | remove from Spark's state                                    |
| home  | ``OUT``, buffers                            | emit them                                                    |
| home  | ``DONE``, next wake-up, accumulators        | the epoch's end                                              |
| home  | ``FAILED``, kind, text                      | the epoch's other end                                        |
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from pillarbox._runtime.spark.homes.surroundings import Surroundings


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
    VALUE = 9


class Visit(NamedTuple):
    """A caller that comes to a home.

    Attributes:
        place: the level and state partition whose tasks are asked for, with the digest of the level's host.
        attempt: the task of Spark's; later ones have higher numbers.
        surroundings: of its worker.
    """

    place: str
    attempt: int
    surroundings: Surroundings
