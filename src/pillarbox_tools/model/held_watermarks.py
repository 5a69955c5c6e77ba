"""Why event time is where it is: from each operator whose watermark lags, the way to the input that holds it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from pillarbox._elements import TaskReport
from pillarbox._reports.plan import PlanVertex
from pillarbox._time.timestamps import MAX_WATERMARK, MIN_TIMESTAMP
from pillarbox_tools.model.snapshot import Snapshot

_UNKNOWN_PLACE = (
    "to see which record it is, keep its place in the DataFrame: the columns topic, partition and offset of Kafka, or"
    " _metadata of files"
)


@dataclass(frozen=True)
class HeldWatermark:
    """The watermark of a vertex, and the input that holds it.

    Attributes:
        program: the name of the program's metrics, ``vertex``: the number of the vertex, and ``subtask``: the one whose
            watermark is the lowest.
        watermark: the watermark (epoch ms); None: there is none yet.
        way: the vertices and subtasks from there to the input, each as two numbers.
        source: the number of the source's vertex; None: it was not found, as its task has not run lately.
        partition: the partition of the source; None: the source had no records.
        latest: the largest timestamp of a record of that partition in its last epoch (epoch ms).
        place: where that record is in the source, as far as its columns tell.
        message: all of that for people.
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
    """Return for each vertex after a shuffle what holds its watermark, as of the last epoch in which it ran."""
    tasks = _latest_tasks(snapshot)
    vertices = {} if snapshot.plan is None else {(each.program, each.number): each for each in snapshot.plan.vertices}
    lowest: dict[tuple[str, int], TaskReport] = {}
    for task in tasks.values():
        if task.watermark is None or task.watermark == MAX_WATERMARK:
            continue
        known = lowest.get((task.program, task.number))
        if known is None or known.watermark is None or task.watermark < known.watermark:
            lowest[task.program, task.number] = task
    return [_held(task, tasks, vertices) for _, task in sorted(lowest.items())]


def _latest_tasks(snapshot: Snapshot) -> dict[tuple[str, int, int], TaskReport]:
    """Return the newest run of each task that is known."""
    return {(task.program, task.number, task.subtask): task for epoch in snapshot.epochs for task in epoch.tasks}


def _held(
    task: TaskReport, tasks: dict[tuple[str, int, int], TaskReport], vertices: dict[tuple[str, int], PlanVertex]
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
    found = HeldWatermark(
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
    names = {key: each.name for key, each in vertices.items()}
    message = _message(found, names.get((task.program, number), f"vertex {number}"), is_source=is_source)
    return replace(found, message=message)


def _message(held: HeldWatermark, name: str, *, is_source: bool) -> str:
    if not held.way:
        return "no input holds it: all are idle, or have ended"
    if not is_source:
        return f"subtask {held.way[-1][1]} of {name!r} holds it, which has not run lately"
    if held.partition is None:
        return (
            f"the source of {name!r} had no records: its watermark stays until it has some; with_idleness(...) lets the"
            " others go on"
        )
    where = f"partition {held.partition} of the source of {name!r} holds it"
    if held.latest is None:
        return f"{where}, which has given no timestamps"
    if held.place:
        place = ", ".join(f"{name} {value}" for name, value in held.place.items())
        return f"{where}: its newest record is {place}"
    return f"{where}; {_UNKNOWN_PLACE}"
