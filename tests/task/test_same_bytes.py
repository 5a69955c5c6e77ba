"""A retried task sends the same bytes again, because Spark compares the input of shuffles."""

from __future__ import annotations

import datetime as dt
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor, WatermarkStrategy
from pillarbox._elements.buffers import Buffer, decode
from pillarbox._elements.elements import WatermarkStatus
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._graph.program import Program
from pillarbox._graph.transformations import SinkTransformation
from pillarbox._runtime.shipping import ship
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._task.source_stream_task import SourceStreamTask
from pillarbox._task.vertex import REPORT_TARGET
from pillarbox._time.manual_clock import ManualProcessingTimeService

COUNT = 3000


class Last(KeyedProcessFunction):
    def open(self, runtime_context):
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, value, ctx):
        yield {"key": ctx.get_current_key(), "last": self.last.value(), "now": value["name"]}
        self.last.update(value["name"])
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 500)

    def on_timer(self, timestamp, ctx):
        yield {"key": ctx.get_current_key(), "at": timestamp}


def program(columnar: bool) -> Program:
    env = StreamExecutionEnvironment().set_parallelism(2)
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    rows = env.from_collection([]).assign_timestamps_and_watermarks(at)
    if not columnar:
        rows = rows.map(lambda row: {"key": row.key, "name": row.name, "at": row.at})
    last = rows.key_by("key" if columnar else itemgetter("key")).process(Last()).uid("last")
    counted = last.key_by(len).reduce(lambda a, b: b).uid("counted")
    sink = SinkTransformation(env._next(), "out", [counted._plain_step()], output="out", uid="out")
    return env._compile("test", [sink])


def rows_of(epoch: int) -> list[Records]:
    runs: list[Records] = []
    for run in range(2):
        ids = np.arange(COUNT) + (2 * epoch + run) * COUNT
        batch = pa.RecordBatch.from_pydict(
            {
                "key": pa.array(ids % 7),
                "name": pa.array([f"name {i}" * (epoch + 1) if i % 5 else None for i in ids.tolist()]),
                "at": pa.array(ids),
                "day": pa.array([dt.date(2024, 1, 1) if i % 3 else None for i in ids.tolist()]),
            }
        )
        runs.append(ArrowRecords(batch.slice(1)))
    return runs


def sent_by_source(task: SourceStreamTask, epoch: int) -> list[Buffer]:
    parts = task.run_epoch(rows_of(epoch), subtask=1, checkpoint_id=epoch, bounded=False)
    return [buffer for part in parts for buffer in part if buffer.target != REPORT_TARGET]


def sent_by_keyed(task: MultipleInputStreamTask, buffers: list[Buffer], store: MemoryChunkStore) -> list[Buffer]:
    assert task.restore(store)
    return [buffer for part in task.run_epoch([buffers], store) for buffer in part if buffer.target != REPORT_TARGET]


@pytest.mark.slow("epochs of many attempts")
@pytest.mark.parametrize("columnar", [True, False])
def test_an_attempt_sends_what_the_one_before_it_sent(columnar):
    compiled = program(columnar)
    source, keyed = (ship(vertex) for vertex in compiled.vertices[:2])
    (code,) = (code for code, subtask in compiled.subtasks.items() if subtask == (1, 0))

    def new_source(clock: int) -> SourceStreamTask:
        task = SourceStreamTask(source.load(), 0, clock=ManualProcessingTimeService(clock))
        task.restore()
        return task

    def new_keyed(clock: int) -> MultipleInputStreamTask:
        return MultipleInputStreamTask(keyed.load(), 0, clock=ManualProcessingTimeService(clock))

    warm, store, resident = new_source(1), MemoryChunkStore(), new_keyed(1)
    for epoch in range(3):
        first = sent_by_source(warm, epoch)
        assert len(first) > 4 and first == sent_by_source(new_source(1000 + epoch), epoch)
        before: Any = store.copy()
        arrived = [buffer for buffer in first if buffer.target == code]
        out = sent_by_keyed(resident, arrived, store)
        assert len(out) > 4 and out == sent_by_keyed(new_keyed(2000 + epoch), arrived, before)


class Same(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


def streams_that_meet() -> Program:
    env = StreamExecutionEnvironment().set_parallelism(2)
    passed = env.from_collection([]).key_by(itemgetter(0)).process(Same()).uid("same")
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(itemgetter(1))
    parts = [
        passed.filter(lambda value, n=n: value[1] % 3 == n).assign_timestamps_and_watermarks(at.with_idleness(timeout))  # type: ignore[misc]
        for n, timeout in enumerate((100, 250, 400))
    ]
    counted = parts[0].union(*parts[1:]).key_by(itemgetter(0)).reduce(lambda a, b: b).uid("counted")
    sink = SinkTransformation(env._next(), "out", [counted._plain_step()], output="out", uid="out")
    return env._compile("test", [sink])


def test_a_task_made_anew_says_of_event_time_what_the_one_before_would_have_said():
    compiled = streams_that_meet()
    source, keyed = (ship(vertex) for vertex in compiled.vertices[:2])
    (code,) = (code for code, subtask in compiled.subtasks.items() if subtask == (1, 0))
    reader = SourceStreamTask(source.load(), 0, clock=ManualProcessingTimeService(0))
    reader.restore()

    def new_keyed() -> MultipleInputStreamTask:
        return MultipleInputStreamTask(keyed.load(), 0, clock=ManualProcessingTimeService(0))

    store, resident, statuses = MemoryChunkStore(), new_keyed(), 0
    for epoch, times in enumerate([[30, 61, 92], [120], [], [33, 151], [], [], [], [182, 300], [212], []]):
        runs = [Records([(key, time) for key in range(9) for time in times])]
        parts = reader.run_epoch(runs, subtask=0, checkpoint_id=epoch, bounded=False)
        arrived = [buffer for part in parts for buffer in part if buffer.target == code]
        before = store.copy()
        outputs = []
        for task, restored in ((resident, store), (new_keyed(), before)):
            assert task.restore(restored)
            sent = [buffer for part in task.run_epoch([arrived], restored, 1000 + 110 * epoch) for buffer in part]
            outputs.append([buffer for buffer in sent if buffer.target != REPORT_TARGET])
        assert outputs[0] == outputs[1]
        statuses += sum(isinstance(decode(buffer.payload), WatermarkStatus) for buffer in outputs[0])
    assert statuses > 0
