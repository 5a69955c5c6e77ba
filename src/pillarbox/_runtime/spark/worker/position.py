"""A streaming source that has a position but no rows.

Spark writes the position into its offset log, and the query's real source later resumes there. Spark requests the
position in a Python process without the application's files, so these classes are pickled by value and do not refer to
pillarbox.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition


class Position(DataSource):
    """A source without rows, at the position in its option ``position`` (JSON)."""

    @classmethod
    def name(cls) -> str:
        return "pillarbox_position"

    def schema(self) -> str:
        return "value STRING"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
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
