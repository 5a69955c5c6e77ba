"""The place where a program runs, as the program needs it: while it is built, and when it is run."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

from pillarbox._graph.program import Program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType


class Runtime(Protocol):
    """This process, or a Spark session."""

    @property
    def parallelism(self) -> int:
        """The number of subtasks after a shuffle where the program does not set it."""

    @property
    def task_slots(self) -> int:
        """The number of tasks of a source that run at a time."""

    @property
    def time_zone(self) -> str | None:
        """The time zone of naive datetimes; None: they are no points in time."""

    def collect(self, program: Program, limit: int | None = None) -> Generator[list[Any], None, None]:
        """Run a bounded program; return the records of its one output in portions, as they come.

        It ends, and its functions are closed, when the iterator ends or is closed.

        Args:
            limit: about how many records are asked for; None: all.
        """

    def dataframe(self, program: Program, schema: StructType) -> DataFrame:
        """Return the one output of a program as a DataFrame."""

    def for_each_batch(
        self,
        program: Program,
        schemas: dict[str, StructType],
        function: Callable[[dict[str, DataFrame], int], None],
    ) -> DataStreamWriter:
        """Return the writer of a query that calls ``function`` with the outputs of each micro-batch, by name."""
