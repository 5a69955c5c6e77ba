"""A bounded program whose reader stops after the first results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from pillarbox import StreamExecutionEnvironment
from tests.faults.programs.job import HEARTBEAT, Epoch, Faults

__all__ = ["first_sums", "first_sums_answer"]

LIMIT = 100


class Passing:
    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def __call__(self, event: Any) -> list[int]:
        self.faults.pass_by("limited", (event.key, event.id))
        return [event.key, event.id]


def first_sums(events: DataFrame, faults: Faults) -> list[list[int]]:
    env = StreamExecutionEnvironment.get_execution_environment(events.sparkSession).set_parallelism(1)
    sums = (
        env.from_dataframe(events.coalesce(1))
        .filter(lambda event: event.key != HEARTBEAT)
        .key_by("key")
        .sum("id")
        .map(Passing(faults))
    )
    return sums.execute_and_collect(limit=LIMIT)


def first_sums_answer(epochs: Sequence[Epoch]) -> list[list[int]]:
    sums: defaultdict[int, int] = defaultdict(int)
    results = []
    for event in (event for parts in epochs for part in parts for event in part if event.key != HEARTBEAT):
        sums[event.key] += event.id
        results.append([event.key, sums[event.key]])
    return results[:LIMIT]
