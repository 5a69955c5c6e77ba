"""Reads each progress report of a query once, in order.

It polls, because PySpark's listeners call Java for each field of each report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pillarbox._reports.progress import is_idle
from pillarbox._runtime.spark.session.queries import QueryProgressMark, new_progress
from pillarbox._runtime.spark.tools import Progress


class ProgressReader:
    """Reads a query's progress reports. Not thread-safe."""

    def __init__(self, query: Any) -> None:
        self._query = query
        self._mark: QueryProgressMark | None = None
        self._seen: int | None = None

    def new(self) -> list[Progress]:
        reports = new_progress(self._query, self._mark)
        if reports:
            self._mark = QueryProgressMark.of(reports[-1])
        return reports

    def epochs_in(self, reports: Sequence[Progress]) -> list[Progress | None]:
        """Return the epochs' reports, with None for reports that Spark has dropped."""
        seen = self._seen
        epochs: list[Progress] = [report for report in reports if not is_idle(report)]
        if not epochs:
            return []
        self._seen = epochs[-1]["batchId"]
        return [*epochs] if seen is None or epochs[0]["batchId"] <= seen + 1 else [None, *epochs]
