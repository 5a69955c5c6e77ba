# SPDX-License-Identifier: Apache-2.0
"""A made-up query with many tasks. Its model receives generated progress reports in Spark's form."""

from __future__ import annotations

from typing import Any

import numpy as np

from pillarbox._elements.task_report import TaskReport, text_of_report
from pillarbox._reports.plan import Plan, PlanEdge, PlanOperator, PlanVertex
from pillarbox_tools.model.query_model import QueryModel
from pillarbox_tools.model.snapshot import Snapshot, SnapshotRun

# The beginning of the first epoch (Unix time in ms), and the duration of each.
_FIRST = 1_767_225_600_000
_DURATION = 9_000
_PROGRAM = "pillarbox"
_MODEL: Any = QueryModel
# Operators per level.
_WIDE = 2


class MadeQuery:
    """A query of unchained operators, two per level, all with the same number of subtasks.

    Args:
        subtasks: number of each operator's subtasks.
        operators: number of operators.
        epochs: number of epochs that have ended.
    """

    id = "made"
    has_ended = False

    def __init__(self, subtasks: int, operators: int, epochs: int) -> None:
        self._subtasks = subtasks
        self._operators = operators
        self._number = 0
        self._random = np.random.default_rng(1)
        run = SnapshotRun(
            "run", _FIRST, settings={f"spark.sql.streaming.setting{number}": "true" for number in range(40)}
        )
        names, plan, make = (self.id, "made", "/checkpoints/made"), self._plan(), _MODEL
        try:
            self.model: QueryModel = make(Snapshot(*names, 0, True, plan, run))
        except TypeError:  # an older revision
            self.model = make(*names, plan, run)
        for _ in range(epochs):
            self.run_epoch()

    def refresh(self) -> int:
        """Return the model's version."""
        model: Any = self.model
        version: int = model.refresh() if hasattr(model, "refresh") else model.look()
        return version

    # The method's name in older revisions.
    look = refresh

    def snapshot(self) -> Snapshot:
        """Return the model's snapshot."""
        return self.model.snapshot()

    # There is no driver.
    heartbeat = None

    def key_life(self, uid: str, key: str) -> dict[str, Any]:
        """Refuse, because there is no state."""
        raise NotImplementedError

    def run_epoch(self) -> None:
        """Add an epoch that ends some minutes after the previous epoch, so that the history is long."""
        levels: dict[str, list[str]] = {}
        for number in range(self._operators):
            level = number // _WIDE
            texts = levels.setdefault(f"{_PROGRAM} level {level}" if level == 0 else _PROGRAM, [])
            texts += [text_of_report(self._report(number, level, subtask)) for subtask in range(self._subtasks)]
        began = np.datetime64(_FIRST + self._number * 180_000, "ms")
        self.model.progressed(
            {
                "batchId": self._number,
                "timestamp": f"{began}Z",
                "durationMs": {
                    "latestOffset": 50,
                    "walCommit": 100,
                    "addBatch": _DURATION - 300,
                    "commitOffsets": 50,
                    "triggerExecution": _DURATION,
                },
                "numInputRows": 1_000 * self._subtasks,
                "sources": [{"description": "Kafka", "numInputRows": 1_000, "startOffset": "{}", "endOffset": "{}"}],
                "observedMetrics": {name: {"tasks": texts} for name, texts in levels.items()},
            }
        )
        self._number += 1

    def _report(self, number: int, level: int, subtask: int) -> TaskReport:
        records, busy, waited = (int(value) for value in self._random.integers(100, 800, 3))
        began = _FIRST + self._number * 180_000
        keyed: dict[str, Any] = {
            "watermark": began - subtask,
            "keys": records,
            "event_time_timers": records,
            "processing_time_timers": 0,
            "state_bytes": 100 * records,
            "state_bytes_written": records,
            "held_by": [number - _WIDE, subtask],
            "key_sample": [1024, [[f"'key {subtask}'", 200]]],
        }
        return TaskReport(
            vertex=f"operator {number}",
            uid=f"operator-{number}" if level else "",
            level=level,
            subtask=subtask,
            epoch=self._number,
            records_in=records,
            records_out=records,
            bytes_out=50 * records,
            mails=3,
            busy_ms=busy,
            idle_ms=20,
            back_pressured_ms=waited // 10,
            state_ms=30,
            alignment_ms=5,
            counters={f"operator-{number}.late_records_dropped": 1} if level else {},
            host=f"worker-{subtask % 8}",
            process=subtask,
            process_bytes=200_000_000 + records,
            process_tasks=self._operators,
            attempt=0,
            number=number,
            started=began + 200 + level * (_DURATION - 1_000) // (self._operators // _WIDE),
            operators=[[records, records]],
            event_times=None if level else [began, began + 1_000, {"topic": "t", "partition": subtask, "offset": 5}],
            **(keyed if level else {}),
        )

    def _plan(self) -> Plan:
        vertices = [
            PlanVertex(
                *(_PROGRAM, number, number // _WIDE, "process" if number >= _WIDE else "", self._subtasks),
                is_keyed=number >= _WIDE,
                calls=[],
                operators=[PlanOperator(f"operator {number}", f"operator-{number}" if number >= _WIDE else "")],
            )
            for number in range(self._operators)
        ]
        edges = [
            PlanEdge(_PROGRAM, number, number + _WIDE, "", "key by column")
            if number + _WIDE < self._operators
            else PlanEdge(_PROGRAM, number, -1, "output", "rows")
            for number in range(self._operators)
        ]
        return Plan(vertices, edges)
