"""From the progress that Spark reports of an epoch to an :class:`EpochRun`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pillarbox._reports.operator_report import by_operator
from pillarbox._reports.progress import millis, tasks_of
from pillarbox_tools.model.snapshot import EpochRun, SourceProgress


def epoch_of(progress: Mapping[str, Any]) -> EpochRun:
    """Return the epoch of a progress, as ``lastProgress`` has it, or a dictionary of its JSON."""
    reports = tasks_of(progress)
    placed = [each for each in reports if each.number >= 0]
    parts = {name: int(value) for name, value in (progress.get("durationMs") or {}).items()}
    commits = [each["commitTimeMs"] for each in progress.get("stateOperators") or () if each.get("commitTimeMs")]
    written = (progress.get("sink") or {}).get("numOutputRows")
    sources = [_source(each) for each in progress.get("sources") or ()]
    rows = progress.get("numInputRows")  # under Spark Connect it is left out
    return EpochRun(
        number=int(progress["batchId"]),
        began=millis(progress["timestamp"]),
        duration=parts.pop("triggerExecution", sum(parts.values())),
        parts=parts,
        rows=sum(each.rows for each in sources) if rows is None else int(rows),
        sources=sources,
        vertices=sorted(by_operator(placed), key=lambda each: (each.program, each.number)),
        tasks=reports,
        state_commit=sum(commits) if commits else None,
        output_rows=written if isinstance(written, int) and written >= 0 else None,
    )


# A source in Python is described as a Java object, whose address is another one in each run.
_JAVA_OBJECT = re.compile(r"^(?:\w+\.)*(\w+)@[0-9a-f]+$")


def _source(progress: Mapping[str, Any]) -> SourceProgress:
    return SourceProgress(
        description=_JAVA_OBJECT.sub(r"\1", str(progress.get("description", ""))),
        rows=int(progress.get("numInputRows") or 0),
        end=_offsets(progress.get("endOffset")),
        latest=_offsets(progress.get("latestOffset")),
        metrics={str(name): str(value) for name, value in (progress.get("metrics") or {}).items()},
    )


def _offsets(value: Any) -> Any:
    """Return offsets as JSON: Spark gives JSON, or a text of it, or a text of its own."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def rows_left(epoch: EpochRun) -> int | None:
    """Return how many rows the sources had after an epoch; None: one of them does not tell."""
    left = [backlog(source) for source in epoch.sources]
    known = [rows for rows in left if rows is not None]
    return sum(known) if left and len(known) == len(left) else None


def backlog(source: SourceProgress) -> int | None:
    """Return how many rows a source had after an epoch; None: it does not tell.

    Offsets are a number, or Kafka's: numbers by topic and partition. A partition that was not read yet begins at 0, as
    one that is new does.
    """
    end, latest = source.end, source.latest
    if _is_number(end) and _is_number(latest):
        return max(0, int(latest - end))
    if not isinstance(end, dict) or not isinstance(latest, dict):
        return None
    total = 0
    for topic, partitions in latest.items():
        known = end.get(topic) or {}
        if not isinstance(partitions, dict) or not isinstance(known, dict):
            return None
        for partition, offset in partitions.items():
            if not partition.isdigit() or not _is_number(offset):
                return None
            total += max(0, offset - known.get(partition, 0))
    return total


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
