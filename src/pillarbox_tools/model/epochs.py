"""Converts Spark's progress reports to :class:`SnapshotEpoch` objects."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pillarbox._reports.operator_report import by_operator
from pillarbox._reports.progress import millis, tasks_of
from pillarbox_tools.model.snapshot import SnapshotEpoch, SnapshotSource, vertex_id


def epoch_of(progress: Mapping[str, Any]) -> SnapshotEpoch:
    reports = tasks_of(progress)
    placed = [report for report in reports if report.number >= 0]
    parts = {name: int(value) for name, value in (progress.get("durationMs") or {}).items()}
    commits = [
        operator["commitTimeMs"] for operator in progress.get("stateOperators") or () if operator.get("commitTimeMs")
    ]
    written = (progress.get("sink") or {}).get("numOutputRows")
    sources = [_source(source) for source in progress.get("sources") or ()]
    rows = progress.get("numInputRows")  # missing under Spark Connect
    return SnapshotEpoch(
        number=int(progress["batchId"]),
        began=millis(progress["timestamp"]),
        duration=parts.pop("triggerExecution", sum(parts.values())),
        parts=parts,
        rows=sum(source.rows for source in sources) if rows is None else int(rows),
        sources=sources,
        vertices=sorted(by_operator(placed), key=vertex_id),
        tasks=reports,
        state_commit=sum(commits) if commits else None,
        output_rows=written if isinstance(written, int) and written >= 0 else None,
    )


# Spark describes a Python source by a Java object and its address, which changes in each run.
_JAVA_OBJECT = re.compile(r"^(?:\w+\.)*(\w+)@[0-9a-f]+$")


def _source(progress: Mapping[str, Any]) -> SnapshotSource:
    return SnapshotSource(
        description=_JAVA_OBJECT.sub(r"\1", str(progress.get("description", ""))),
        rows=int(progress.get("numInputRows") or 0),
        end=_offsets(progress.get("endOffset")),
        latest=_offsets(progress.get("latestOffset")),
        metrics={str(name): str(value) for name, value in (progress.get("metrics") or {}).items()},
    )


def _offsets(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def rows_left(epoch: SnapshotEpoch) -> int | None:
    left = [backlog(source) for source in epoch.sources]
    numbers = [rows for rows in left if rows is not None]
    return sum(numbers) if left and len(numbers) == len(left) else None


def backlog(source: SnapshotSource) -> int | None:
    """Return a source's backlog after an epoch (rows), or None if unknown.

    An offset is a number, or for Kafka, numbers by topic and partition. Missing numbers count as 0.
    """
    end, latest = source.end, source.latest
    if _is_number(end) and _is_number(latest):
        return max(0, int(latest - end))
    if not isinstance(end, dict) or not isinstance(latest, dict):
        return None
    total = 0
    for topic, partitions in latest.items():
        ends = end.get(topic) or {}
        if not isinstance(partitions, dict) or not isinstance(ends, dict):
            return None
        for partition, offset in partitions.items():
            if not partition.isdigit() or not _is_number(offset):
                return None
            total += max(0, offset - ends.get(partition, 0))
    return total


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
