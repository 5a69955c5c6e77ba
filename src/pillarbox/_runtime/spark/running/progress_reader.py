"""The progress reports of a query, each once, in their order.

They are asked for: a listener would be told of each, but PySpark makes Python objects of all fields by a call to Java
for each, in the callback server of the driver, which outlives the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pillarbox._reports.progress import is_idle
from pillarbox._runtime.spark.session.queries import ProgressMark, new_progress
from pillarbox._runtime.spark.tools import Progress


class ProgressReader:
    """Reads the progress reports of a query. One thread uses it."""

    def __init__(self, query: Any) -> None:
        self._query = query
        # The newest report, and the newest epoch.
        self._mark: ProgressMark | None = None
        self._seen: int | None = None

    def new(self) -> list[Progress]:
        """Return the new reports, also those that there was nothing to do."""
        reports = new_progress(self._query, self._mark)
        if reports:
            self._mark = ProgressMark.of(reports[-1])
        return reports

    def epochs_in(self, reports: Sequence[Progress]) -> list[Progress | None]:
        """Return the reports of epochs; None stands for reports that Spark has let go meanwhile."""
        seen = self._seen
        found: list[Progress] = [each for each in reports if not is_idle(each)]
        if not found:
            return []
        self._seen = found[-1]["batchId"]
        return [*found] if seen is None or found[0]["batchId"] <= seen + 1 else [None, *found]
