"""A fake Spark made of dictionaries, with micro-batches, grouping keys, map state, timers and commits."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import TaskContext

from pillarbox._datastream.environment.environment import StreamExecutionEnvironment
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._elements.buffers import decode
from pillarbox._elements.task_report import TaskReport, report_of_text
from pillarbox._graph.targets import output_target, spark_hash
from pillarbox._graph.transformations import SinkTransformation
from pillarbox._runtime.shipping import ship
from pillarbox._runtime.spark.homes.relay import RelaySettings
from pillarbox._runtime.spark.homes.settings import MODE
from pillarbox._runtime.spark.rows.buffer_rows import BUFFER_COLUMNS, BufferRows
from pillarbox._runtime.spark.rows.output import BATCH_TIMESTAMP, BufferOutput
from pillarbox._runtime.spark.session.spark_names import JOB_GROUP, QUERY_ID
from pillarbox._runtime.spark.tasks.task_info import DRAIN, TaskLayout
from pillarbox._runtime.spark.worker.processor import Processor
from pillarbox._runtime.spark.worker.source_host import SourceHost
from pillarbox._runtime.spark.worker.task_host import TaskHost


def context_of_task(partition: int, attempt: int, properties: dict[str, str]) -> TaskContext:
    context = object.__new__(TaskContext)
    context._partitionId, context._taskAttemptId, context._localProperties = partition, attempt, properties
    return context


_attempts = count()


class MapState:
    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @property
    def _values(self) -> dict[int, bytes]:
        return self._handle.state[self._handle.key]

    def containsKey(self, key: tuple[int]) -> bool:
        return key[0] in self._values

    def getValue(self, key: tuple[int]) -> tuple[bytes] | None:
        value = self._values.get(key[0])
        self._handle.missed += value is None
        return None if value is None else (value,)

    def updateValue(self, key: tuple[int], value: tuple[bytes]) -> None:
        self._values[key[0]] = value[0]

    def removeKey(self, key: tuple[int]) -> None:
        del self._values[key[0]]


class Times:
    def __init__(self, now: int) -> None:
        self._now = now

    def getCurrentProcessingTimeInMs(self) -> int:
        return self._now

    def getCurrentWatermarkInMs(self) -> int:
        return -1


class Handle:
    """A fake of the handle that Spark passes to the stateful operator of a level.

    Attributes:
        missed: number of reads of absent values. Spark would log a warning for each.
    """

    def __init__(self) -> None:
        self.missed = 0
        self.state: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
        self.timers: defaultdict[int, set[int]] = defaultdict(set)
        self.key = 0

    def getMapState(self, name: str, key: Any, value: Any) -> MapState:
        return MapState(self)

    def listTimers(self) -> Iterator[int]:
        return iter(sorted(self.timers[self.key]))

    def registerTimer(self, timestamp: int) -> None:
        self.timers[self.key].add(timestamp)

    def deleteTimer(self, timestamp: int) -> None:
        # Spark logs a warning for a missing timer.
        self.timers[self.key].remove(timestamp)


class Query:
    """A fake streaming query of a program with one output.

    Args:
        stream: the stream to observe. Batches replace its collection sources.

    Attributes:
        handles: the committed state of each level after a shuffle.
        reports: metrics of the last batch's tasks.
    """

    def __init__(self, env: StreamExecutionEnvironment, stream: DataStream, **settings: str) -> None:
        self.settings = {MODE: "off", **settings}
        sink = SinkTransformation(env._next(), "out", [stream._plain_step()], output="out", uid="out")
        self.program = env._compile("test", [sink])
        self.timers = self.program.uses_processing_time
        for vertex in self.program.vertices:
            vertex.fires_processing_time = self.timers
        self.shipped = [ship(vertex) for vertex in self.program.vertices]
        self.handles = [Handle() for _ in self.program.levels[1:]]
        self.reports: list[TaskReport] = []

    def host(self, level: int) -> TaskHost:
        vertices = {vertex.number: self.shipped[vertex.number] for vertex in self.program.levels[level]}
        layout = TaskLayout.of(self.program)
        homes = RelaySettings.of(vertices, "secret", self.program.parallelism)
        return TaskHost(vertices, layout, BufferOutput("report"), self.timers, homes)

    def run_batch(
        self, *partitions: list[Any], now: int = 0, commit: bool = True, source: int = 0, last: bool = False
    ) -> list[Any]:
        host = SourceHost(
            self.shipped[list(self.program.sources)[source]],
            TaskLayout.of(self.program),
            BufferOutput("report"),
            bounded=False,
            columns=["value"],
        )
        properties = {"streaming.sql.batchId": "7", DRAIN: "7" if last else "6", **self.settings}
        self.reports = []
        buffers: list[tuple[Any, ...]] = []
        with pytest.MonkeyPatch.context() as patch:
            for partition, values in enumerate(partitions):
                batch = pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], names=["0"])
                patch.setattr(TaskContext, "_taskContext", context_of_task(partition, next(_attempts), properties))
                buffers += self._observed(host(iter([batch])))
            handles = copy.deepcopy(self.handles)
            for level, handle in enumerate(handles, start=1):
                patch.setattr(TaskContext, "_taskContext", context_of_task(level, next(_attempts), properties))
                buffers = self._run_level(level, handle, buffers, now)
        if commit:
            self.handles = handles
        out: list[Any] = []
        rows = BufferRows()
        for buffer in rows.take(list(zip(*buffers))):
            assert buffer.target == output_target(0)
            out += decode(buffer.payload).values  # type: ignore[union-attr]
        rows.end()
        return out

    def _partition(self, code: int) -> int:
        return spark_hash(code) % self.program.parallelism

    def _observed(self, batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
        rows = rows_of(list(batches))
        self.reports += [report_of_text(row[-1]) for row in rows if row[-1] is not None]
        return [row[:-1] for row in rows if row[-1] is None]

    def _run_level(self, level: int, handle: Handle, buffers: list[tuple[Any, ...]], now: int) -> list[tuple[Any, ...]]:
        frames: list[pd.DataFrame] = []
        arrived: dict[int, dict[int, list[tuple[Any, ...]]]] = {}
        for buffer in buffers:
            arrived.setdefault(self._partition(buffer[0]), {}).setdefault(buffer[0], []).append(buffer)
        expired = [(at, code) for code, timers in handle.timers.items() for at in timers if at < now]
        for partition in sorted({*arrived, *(self._partition(code) for _, code in expired)}):
            processor = Processor(self.host(level))
            processor.init(handle)
            for code, rows in arrived.get(partition, {}).items():
                handle.key = code
                frame = pd.DataFrame(rows, columns=[*BUFFER_COLUMNS])
                if not self.timers:
                    frame[BATCH_TIMESTAMP] = now
                frames += processor.handleInputRows((code,), iter([frame]), Times(now))
            expired = [(at, code) for code, timers in handle.timers.items() for at in timers if at < now]
            for at, code in sorted(expired):
                if self._partition(code) != partition:
                    continue
                handle.key = code
                frames += processor.handleExpiredTimer((code,), Times(now), None)
                # Spark deletes it after the call, even if it was registered again.
                handle.deleteTimer(at)
            processor.close()
        return self._observed(
            pa.RecordBatch.from_arrays([pa.array(frame[name]) for name in frame.columns], names=list(frame.columns))
            for frame in frames
        )


def keyed_query(
    function: Any,
    parallelism: int,
    max_parallelism: int | None = None,
    run: str = "run",
    query: str = "query",
    settings: dict[str, str] | None = None,
    **options: Any,
) -> Query:
    env = StreamExecutionEnvironment().set_parallelism(parallelism)
    env.set_max_parallelism(max_parallelism or parallelism)
    rows: Any = env.from_collection([0])  # replaced by Spark's batches
    stream = rows.map(lambda row: row[0]).key_by(lambda value: value).process(function, **options)
    return Query(env, stream.uid("function"), **{JOB_GROUP: run, QUERY_ID: query, MODE: "fork", **(settings or {})})


def rows_of(batches: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
