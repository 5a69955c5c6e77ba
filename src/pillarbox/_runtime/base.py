"""The interface that both runtimes implement."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

from pillarbox._graph.program import Program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType


class Runtime(Protocol):
    """Runs programs, in this process or in a Spark session."""

    @property
    def parallelism(self) -> int: ...

    @property
    def task_slots(self) -> int:
        """The number of source tasks that can run concurrently."""

    @property
    def time_zone(self) -> str | None:
        """The time zone of naive datetimes, or None if naive datetimes are refused."""

    def collect(self, program: Program, limit: int | None = None) -> Generator[list[Any], None, None]:
        """Run a bounded program with one output. Yields chunks of records as they arrive."""

    def dataframe(self, program: Program, schema: StructType) -> DataFrame: ...

    def for_each_batch(
        self,
        program: Program,
        schemas: dict[str, StructType],
        function: Callable[[dict[str, DataFrame], int], None],
    ) -> DataStreamWriter:
        """Return the writer of a query that calls ``function`` with each micro-batch's outputs, by name."""
