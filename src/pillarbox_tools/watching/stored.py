"""Reads a query's history and notes from its checkpoint, without its driver."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pillarbox._errors import describe
from pillarbox._reports.plan import Plan, PlanEdge, PlanOperator, PlanVertex
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.reading.key_life import key_life
from pillarbox._runtime.spark.running.heartbeat import FRESH_MS, newest_heartbeat
from pillarbox_tools.model.condition import last_report_at
from pillarbox_tools.model.query_model import StaticQueryModel, now_ms
from pillarbox_tools.model.snapshot import Snapshot, SnapshotRun
from pillarbox_tools.watching.history import read_history, with_earlier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Maximum age of the snapshot (seconds). The driver writes once a minute.
_FRESH = 15.0


class StoredQuery(StaticQueryModel):
    """A checkpoint's query, which runs elsewhere or has stopped. Thread-safe."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._known = stored_snapshot(spark, checkpoint)
        super().__init__(self._known)
        self._spark = spark
        self._checkpoint = checkpoint
        self._reading = threading.Lock()
        self._read_at = time.monotonic()

    def refresh(self) -> int:
        with self._reading:
            if time.monotonic() - self._read_at >= _FRESH:
                try:
                    snapshot = self._known = stored_snapshot(self._spark, self._checkpoint)
                except Exception as error:
                    why = f"The checkpoint could not be read again, so the data is old: {describe(error)}."
                    snapshot = replace(self._known, missing=[*self._known.missing, why])
                self._version += snapshot != self._snapshot
                self._snapshot, self._read_at = snapshot, time.monotonic()
            return self._version

    def key_life(self, uid: str, key: str) -> dict[str, Any]:
        return key_life(self._spark, self._checkpoint, uid, key)


def stored_snapshot(spark: SparkSession, checkpoint: str) -> Snapshot:
    notes = Checkpoint(spark, checkpoint)
    query_id = notes.started_query("a query, or the file of a bundle")
    history = read_history(spark, checkpoint)
    if history:
        now, beat = now_ms(), newest_heartbeat(spark, checkpoint)
        snapshot = replace(with_earlier(history[0], history), checkpoint=checkpoint, read_at=now)
        if beat is not None and beat.run == snapshot.run.id and snapshot.run.ended is None:
            snapshot = replace(snapshot, heartbeat=beat)
        return replace(snapshot, missing=[*snapshot.missing, *_what_is_old(snapshot, now)])
    described = notes.newest()
    run = SnapshotRun(id="", began=0, status="unknown")
    missing = [
        "No history: the query was not started with pillarbox.start(), or its driver died while it started.",
        *([] if described else ["The checkpoint has no description of its program either."]),
        f"The last committed epoch is {notes.last_committed}.",
    ]
    plan = None if described is None else plan_of_notes(described["programs"])
    return Snapshot(query_id, "", checkpoint, now_ms(), False, plan, run, missing=missing)


def _what_is_old(snapshot: Snapshot, now: int) -> list[str]:
    if snapshot.run.ended is not None:
        return []
    minutes = (now - last_report_at(snapshot)) / 60_000
    if now - last_report_at(snapshot) <= FRESH_MS:
        return [f"The query runs in another process; its driver wrote this data {minutes:.1f} minutes ago."]
    return [
        f"The query's driver wrote this data {minutes:,.0f} minutes ago, and has not reported the query's end: it died,"
        " or it cannot write."
    ]


def plan_of_notes(programs: list[dict[str, Any]]) -> Plan:
    """Return the plan from a checkpoint's notes, which contain no edges."""
    vertices: list[PlanVertex] = []
    edges: list[PlanEdge] = []
    for index, program in enumerate(programs):
        name = "pillarbox" if not index else f"pillarbox {index + 1}"
        numbers = {operator["number"] for operator in program["operators"]}
        free = (number for number in range(len(numbers) + len(program["sources"])) if number not in numbers)
        for number, source in zip(free, program["sources"]):
            vertices.append(PlanVertex(name, number, 0, "", 0, False, [], [PlanOperator(str(source.get("name")), "")]))
        for operator in program["operators"]:
            chain = [PlanOperator(uid, uid) for uid in operator.get("chain") or ()]
            head = PlanOperator(str(operator.get("name") or operator["uid"]), operator["uid"])
            facts = str(operator.get("kind") or ""), int(operator.get("parallelism") or 0)
            is_keyed = operator.get("key") is not None
            vertices.append(
                PlanVertex(name, operator["number"], operator["level"], *facts, is_keyed, [], [head, *chain])
            )
    return Plan(vertices, edges)
