"""A streaming source of Spark's without rows, whose position is one that another source had.

Spark writes it into its offset log, from which the other source then resumes. Spark's driver asks for positions in a
Python process of its own, which sees no files that were shipped with the application: so these classes are pickled
by value, and refer to nothing of pillarbox's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition


class Position(DataSource):
    """The source; its option ``position`` is the position, as JSON."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pillarbox_position"

    def schema(self) -> str:
        """Return the columns."""
        return "value STRING"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the reader."""
        return _Reader(self.options["position"])


class _Reader(DataSourceStreamReader):
    def __init__(self, position: str) -> None:
        self._position = json.loads(position)

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def latestOffset(self) -> Any:  # type: ignore[override]
        return self._position

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: Any) -> Iterator[Any]:
        return iter(())


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
