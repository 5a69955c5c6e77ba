"""Operators that record their calls, and functions that run a task and inspect its output."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from pillarbox._elements.buffers import Buffer, channel_code, decode, encode
from pillarbox._elements.elements import Barrier
from pillarbox._elements.records import Records
from pillarbox._elements.task_report import TaskReport
from pillarbox._graph.targets import output_target
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import StreamOperator
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._task.network.partitioner import KeyGroupPartitioner, OutputPartitioner
from pillarbox._task.source_stream_task import SourceStreamTask
from pillarbox._task.vertex import (
    REPORT_TARGET,
    InputEdge,
    Vertex,
    VertexChainInput,
    VertexConsumers,
    VertexEdge,
    edge_id,
)
from pillarbox._time.manual_clock import ManualProcessingTimeService

OUTPUT = output_target(0)
UPSTREAM = channel_code(0, 0)
Notes = list[tuple[Any, ...]]


class Noting(StreamOperator):
    """Records its calls in a list that a test's operators share."""

    def __init__(self, context, notes, **behaviour):
        super().__init__(context)
        self.notes = notes
        self.behaviour = behaviour
        self.thread = None

    def note(self, what, *details):
        assert self.thread in (None, threading.get_ident())
        self.notes.append((what, self.name, *details))
        do = self.behaviour.get(what)
        if isinstance(do, BaseException):
            raise do
        return do(self, *details) if do is not None else None

    def open(self):
        self.note("open")

    def process_records(self, records):
        for value in records.values:
            self.note("record", value)
        self.output.process_records(records)

    def process_watermark(self, timestamp):
        self.note("watermark", timestamp)
        super().process_watermark(timestamp)

    def finish(self):
        self.note("finish")

    def close(self):
        self.note("close")

    def prepare_snapshot_pre_barrier(self, checkpoint_id):
        self.note("prepare", checkpoint_id)

    def snapshot_state(self, checkpoint_id):
        return self.note("snapshot", checkpoint_id)

    def restore_state(self, state):
        self.note("restore", state)

    def notify_checkpoint_complete(self, checkpoint_id):
        self.note("complete", checkpoint_id)


def vertex_of(*nodes, shuffled=False, uses_processing_time=False):
    chain = [
        replace(node, output=VertexConsumers([VertexChainInput(index + 1)], [])) for index, node in enumerate(nodes)
    ]
    chain[-1].output = VertexConsumers([], [0, 1])
    inputs = [InputEdge(0, 0)] if shuffled else []
    number, parallelism = (1, 2) if shuffled else (0, 0)
    edges = [
        VertexEdge("rows", 0, edge_id(number), [OUTPUT], OutputPartitioner(), 128),
        VertexEdge(2, 0, edge_id(number), [5], KeyGroupPartitioner(Keying(lambda value: 0, "next")), 128),
    ]
    return Vertex(
        number,
        "vertex",
        "uid" if shuffled else "",
        number,
        parallelism,
        128,
        chain,
        edges,
        inputs,
        uses_processing_time,
    )


def threaded(node):
    return replace(node, factory=replace(node.factory, wakes_up=True))


def source_task(*nodes, **options):
    return SourceStreamTask(vertex_of(*nodes), 0, **options)


def run_source(task, *runs, epoch=1, bounded=False, subtask=0):
    parts = task.run_epoch(map(Records, runs), subtask=subtask, checkpoint_id=epoch, bounded=bounded)
    return [buffer for part in parts for buffer in part]


def shuffled_task(*nodes, **options):
    options.setdefault("clock", ManualProcessingTimeService())
    return MultipleInputStreamTask(vertex_of(*nodes, shuffled=True), 0, **options)


def share(*elements, channel=UPSTREAM, end=()):
    elements = (*elements, *end, Barrier(1))
    return [Buffer(9, channel, seq, encode(element)) for seq, element in enumerate(elements)]


def run_shuffled(task, store, *elements, end=()):
    assert task.restore(store)
    parts = task.run_epoch([share(*elements, end=end)] if elements or end else [], store)
    return [buffer for part in parts for buffer in part]


def sent(buffers, target=OUTPUT):
    got: list[Any] = []
    for buffer in buffers:
        if buffer.target == target:
            element = decode(buffer.payload)
            got += element.values if isinstance(element, Records) else [element]
    return got


def report_of(buffers):
    (report,) = sent(buffers, REPORT_TARGET)
    assert isinstance(report, TaskReport)
    return vars(report)


def kinds(notes, *selected):
    return [note for note in notes if note[0] in selected]
