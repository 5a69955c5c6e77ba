# SPDX-License-Identifier: Apache-2.0
"""Jobs over a batch DataFrame, side by side in one Spark, in turn.

The time is from building the query to the end of the job, whose sink is ``noop``. The sides share warm Python workers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Observation

from benchmarks.harness.machine import cpu_seconds
from benchmarks.harness.turns import medians, rounded, turns


class Jobs:
    """The measurements of jobs, in rounds.

    Args:
        sides: functions that build the queries, by name.
        sums: sums over a side's results.
        expected: the expected sums, by side. Other sides' sums are not checked.
        rows: number of rows that each side reads.

    Attributes:
        rates: rows per second of each side in each round that counts.
        wrong: a line for each job with unexpected results.
    """

    def __init__(
        self,
        sides: Mapping[str, Callable[[], DataFrame]],
        sums: Callable[[str], Sequence[Column]],
        expected: Mapping[str, Sequence[int]],
        rows: int,
    ) -> None:
        self._sides = sides
        self._sums = sums
        self._expected = expected
        self._rows = rows
        self.rates: dict[str, list[float]] = {side: [] for side in sides}
        self._used: dict[str, list[float]] = {side: [] for side in sides}
        self.wrong: list[str] = []

    def run(self, rounds: int) -> None:
        """Run all sides in turn, in a first round, which does not count, and in ``rounds`` more."""
        for index, side in turns(self._sides, rounds):
            observation, before, started = Observation(), cpu_seconds(os.getpid()), time.perf_counter()
            first, *more = self._sums(side)
            result = self._sides[side]().observe(observation, first, *more)
            result.write.format("noop").mode("overwrite").save()
            seconds, used = time.perf_counter() - started, cpu_seconds(os.getpid()) - before
            values = list(observation.get.values())
            if side in self._expected and values != list(self._expected[side]):
                self.wrong.append(f"{side}: {values}, not {self._expected[side]}")
            print(f"  {side:28}  {self._rows / seconds:>12,.0f} rows/s" + " (warm-up)" * (index < 0), flush=True)
            if index >= 0:
                self.rates[side].append(self._rows / seconds)
                self._used[side].append(used / self._rows * 1e6)

    def figures(self) -> dict[str, Any]:
        """Return figures for the last line."""
        return {
            "rows_per_s": rounded(medians(self.rates)),
            "cpu_s_per_1m_rows": rounded(medians(self._used), 2),
            "rounds": rounded(self.rates),
        }
