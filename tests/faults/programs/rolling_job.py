"""Folds of a key's records beside the program of the fault tests, what is dropped as a repetition, and a flat map.

And a bounded program, of which no more than the first results are wanted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from pillarbox import DataStream, DeadLetter, OutputTag, ReduceFunction, StreamExecutionEnvironment
from tests.faults.programs.job import HEARTBEAT, Event, Faults, Out

__all__ = ["LIMIT", "WITHIN", "first_sums", "has_no_key", "mixed", "name_of", "rolling"]

WITHIN = 3_000  # milliseconds
LIMIT = 100
NO_KEY = OutputTag[DeadLetter]("no key")


def has_no_key(event: Any) -> bool:
    return bool(event.id % 11 == 5)


def key_of(event: Any) -> int:
    if has_no_key(event):
        raise ValueError(f"{event.id} has no key")
    return int(event.key)


def name_of(event: Any) -> tuple[int, int]:
    return event.key, event.id % 2


def mixed(so_far: int, number: int) -> int:
    """Return a number that depends on all before it, and their order."""
    return (31 * so_far + number) % 1_000_003


class Mixed(ReduceFunction):
    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def reduce(self, one: Any, other: Any) -> Event:
        self.faults.pass_by("reduced", other.id)
        return Event(mixed(one.id, other.id), other.key, other.ts)


def thirds(event: Any) -> Iterator[Out]:
    for part in range(event.id % 3):
        yield Out(34, event.key, event.ts, json.dumps([event.id, part]), os.getpid(), 0)


def letter_of(letter: DeadLetter) -> Out:
    state = [letter.value.id, letter.key, letter.error]
    return Out(36, letter.value.key, letter.value.ts, json.dumps(state), os.getpid(), 0)


def _said_by(level: int) -> Any:
    return lambda event: Out(level, event.key, event.ts, json.dumps(event.id), os.getpid(), 0)


def rolling(stamped: DataStream, faults: Faults) -> list[DataStream]:
    """Return what comes of each record at once."""
    with_keys = stamped.key_by(key_of, on_error=NO_KEY)
    return [
        stamped.flat_map(thirds),
        with_keys.reduce(Mixed(faults)).uid("mixed").map(_said_by(35)),
        with_keys.get_side_output(NO_KEY).map(letter_of),
        stamped.key_by("key").max_by("ts").uid("latest").map(_said_by(37)),
        stamped.key_by(name_of).deduplicate(WITHIN).uid("fresh").map(_said_by(38)),
    ]


class Passing:
    """Returns key and sum, if nothing comes between."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def __call__(self, event: Any) -> list[int]:
        self.faults.pass_by("limited", (event.key, event.id))
        return [event.key, event.id]


def first_sums(events: DataFrame, faults: Faults) -> list[list[int]]:
    """Run a bounded program; return key and sum of its first results: in their order, as there is one task a level."""
    env = StreamExecutionEnvironment.get_execution_environment(events.sparkSession).set_parallelism(1)
    sums = (
        env.from_dataframe(events.coalesce(1))
        .filter(lambda event: event.key != HEARTBEAT)
        .key_by("key")
        .sum("id")
        .map(Passing(faults))
    )
    return sums.execute_and_collect(limit=LIMIT)
