"""The runtime in a Spark session."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from pillarbox._errors import ConfigurationError
from pillarbox._graph.program import Program
from pillarbox._graph.transformations import CollectionSource
from pillarbox._runtime.local import LocalRuntime
from pillarbox._runtime.spark.plan.plan import collect_objects, plan_outputs, write_for_each_batch
from pillarbox._runtime.spark.session.parallelism import default_parallelism, task_slots
from pillarbox._runtime.spark.session.session import session_of
from pillarbox._runtime.spark.session.session_settings import time_zone
from pillarbox._runtime.spark.starting.patched_writer import patch_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType


class SparkRuntime:
    """Runs programs in a Spark session. Programs whose sources are all collections run in this process instead."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    @property
    def parallelism(self) -> int:
        """Return the default number of partitions after a shuffle."""
        return default_parallelism(self._running_session)[0]

    @property
    def task_slots(self) -> int:
        return task_slots(self._running_session)

    @property
    def time_zone(self) -> str:
        return time_zone(self._session)

    def collect(self, program: Program, limit: int | None = None) -> Generator[list[Any], None, None]:
        if all(isinstance(source, CollectionSource) for source in program.sources.values()):
            return LocalRuntime().collect(program, limit)
        return collect_objects(program, self._session)

    def dataframe(self, program: Program, schema: StructType) -> DataFrame:
        return self._planned(program, {program.outputs[0]: schema})

    def for_each_batch(
        self,
        program: Program,
        schemas: dict[str, StructType],
        function: Callable[[dict[str, DataFrame], int], None],
    ) -> DataStreamWriter:
        return write_for_each_batch(self._planned(program, schemas), schemas, function)

    def _planned(self, program: Program, schemas: dict[str, StructType]) -> DataFrame:
        rows = plan_outputs(program, self._running_session, schemas)
        if rows.isStreaming:
            patch_writer(self._session)
        return rows

    @property
    def _running_session(self) -> SparkSession:
        if session_of(self._session).is_stopped:
            raise ConfigurationError(
                "the environment's SparkSession is stopped: get a new environment with"
                " StreamExecutionEnvironment.get_execution_environment(spark), and build the program in it"
            )
        return self._session
