"""Finds the inputs that hold watermarks back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from pillarbox._elements.task_report import TaskReport
from pillarbox._reports.plan import PlanVertex
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP
from pillarbox_tools.model.snapshot import Snapshot, VertexId, by_vertex, vertex_id

_UNKNOWN_PLACE = (
    "to identify the record, keep its position in the DataFrame: Kafka's columns topic, partition and offset, or"
    " _metadata of files"
)


@dataclass(frozen=True)
class HeldWatermark:
    """A vertex whose watermark lags, and the input that holds it back.

    Attributes:
        subtask: the vertex's subtask with the lowest watermark.
        watermark: Unix time in ms, or None before the first watermark.
        way: (vertex, subtask) pairs from this subtask up to the input.
        source: the source's vertex number, or None if its task has not run recently.
        partition: the source's partition, or None if the source had no records.
        latest: largest timestamp in that partition's last epoch (Unix time in ms).
        place: the source position of the record with this timestamp.
    """

    program: str
    vertex: int
    subtask: int
    watermark: int | None
    way: list[list[int]]
    source: int | None
    partition: int | None = None
    latest: int | None = None
    place: dict[str, Any] = field(default_factory=dict)
    message: str = ""


def held_watermarks(snapshot: Snapshot) -> list[HeldWatermark]:
    tasks = {(task.program, task.number, task.subtask): task for epoch in snapshot.epochs for task in epoch.tasks}
    vertices = {vertex_id(vertex): vertex for vertex in snapshot.vertices}
    return [_held(task, tasks, vertices) for task in sorted(lowest_tasks(tasks.values()), key=vertex_id)]


def lowest_tasks(tasks: Iterable[TaskReport]) -> list[TaskReport]:
    """Return each vertex's task with the lowest watermark, among tasks whose event time has not ended."""
    groups = by_vertex(task for task in tasks if task.watermark not in (None, MAX_WATERMARK))
    return [min(group, key=lambda task: task.watermark or 0) for group in groups.values()]


def _held(
    task: TaskReport, tasks: dict[tuple[str, int, int], TaskReport], vertices: dict[VertexId, PlanVertex]
) -> HeldWatermark:
    way: list[list[int]] = []
    holder: TaskReport | None = task
    number, subtask = task.number, task.subtask
    while holder is not None and holder.held_by is not None and holder.held_by not in way:
        way.append(holder.held_by)
        number, subtask = holder.held_by
        holder = tasks.get((task.program, number, subtask))
    vertex = vertices.get((task.program, number))
    is_source = bool(way) and (vertex is None or vertex.level == 0)
    times = None if holder is None else holder.event_times
    held = HeldWatermark(
        task.program,
        task.number,
        task.subtask,
        None if task.watermark == MIN_TIMESTAMP else task.watermark,
        way,
        number if is_source else None,
        subtask if is_source and subtask >= 0 else None,
        None if times is None else times[1],
        {} if times is None else dict(times[2]),
    )
    name = f"vertex {number}" if vertex is None else vertex.name
    return replace(held, message=_message(held, name))


def _message(held: HeldWatermark, name: str) -> str:
    if not held.way:
        return "no input holds it back: all are idle or have ended"
    if held.source is None:
        return f"subtask {held.way[-1][1]} of {name!r} holds it back, and has not run recently"
    if held.partition is None:
        return (
            f"the source of {name!r} had no records, so its watermark stays; with_idleness(...) lets the other sources"
            " advance"
        )
    where = f"partition {held.partition} of the source of {name!r} holds it back"
    if held.latest is None:
        return f"{where}: its records have no timestamps"
    if held.place:
        position = ", ".join(f"{name} {value}" for name, value in held.place.items())
        return f"{where}: its newest record is {position}"
    return f"{where}; {_UNKNOWN_PLACE}"
