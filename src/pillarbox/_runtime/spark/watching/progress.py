"""The progress reports of a query, each once, in the order of its epochs.

They are asked for: a listener would be told of each, but PySpark makes Python objects of all fields by a call to Java
for each, in the callback server of the driver, which outlives the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pillarbox._runtime.spark.facts import new_progress

Progress = Mapping[str, Any]


class ProgressReader:
    """Reads the progress reports of a query. One thread uses it."""

    def __init__(self, query: Any) -> None:
        self._query = query
        self._seen: int | None = None

    def new(self) -> list[Progress | None]:
        """Return those that are new; None stands for the ones that Spark has let go meanwhile."""
        seen = self._seen
        found: list[Progress | None] = [*new_progress(self._query, seen)]
        if not found:
            return []
        first, last = found[0], found[-1]
        assert first is not None and last is not None
        self._seen = last["batchId"]
        return found if seen is None or first["batchId"] <= seen + 1 else [None, *found]
