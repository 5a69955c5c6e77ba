# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="import-not-found, misc, valid-type"
"""Pathway's side of the windows. Runs in its own virtual environment, without pillarbox and Spark.

A graph in streaming mode over a directory into which micro-batches are moved, as CSV files, with two workers (Rust
threads). Tumbling and sliding windows have ``exactly_once_behavior``: each is emitted once, when the time is past its
end by the watermark's delay. Pathway's sessions have no such behavior: they are emitted with their first row and
updated with each further row, and all rows are kept forever.

Pathway itself counts and sums the results, and only these numbers reach Python. A micro-batch ends when they have the
expected values. Its time begins when the file is moved in, and so includes the polling of the directory. Nothing is
persisted.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pathway as pw

from benchmarks.harness.machine import cpu_seconds

PATIENCE = 120


class Rows(pw.Schema):
    key: int
    ts: int
    amount: int


class Numbers:
    """The output so far: number of rows and sum of their totals."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._last = [0, 0]
        self.error = ""

    def on_change(self, key, row, time, is_addition):
        if is_addition:
            with self._changed:
                self._last = [row["rows"], row["total"]]
                self._changed.notify_all()

    def fail(self, error: str) -> None:
        with self._changed:
            self.error = error
            self._changed.notify_all()

    def wait_for(self, expected: list[int]) -> list[int]:
        """Wait for the expected numbers while output continues. Returns the current numbers."""
        with self._changed:
            while self._last != expected and not self.error:
                if not self._changed.wait(PATIENCE):
                    break
            return self._last


def run(spec: dict[str, Any], source: str, numbers: Numbers, commit: int) -> None:
    rows = pw.io.csv.read(source, schema=Rows, mode="streaming", autocommit_duration_ms=commit)
    behavior = None
    if spec["session"]:
        window = pw.temporal.session(max_gap=spec["size"])
    else:
        behavior = pw.temporal.exactly_once_behavior(shift=spec["delay"])
        if spec["slide"]:
            window = pw.temporal.sliding(hop=spec["slide"], duration=spec["size"])
        else:
            window = pw.temporal.tumbling(duration=spec["size"])
    windowed = rows.windowby(rows.ts, window=window, behavior=behavior, instance=rows.key)
    result = windowed.reduce(
        key=pw.this._pw_instance,
        start=pw.this._pw_window_start,
        n=pw.reducers.count(),
        total=pw.reducers.sum(pw.this.amount),
    )
    summary = result.reduce(rows=pw.reducers.count(), total=pw.reducers.sum(pw.this.total))
    pw.io.subscribe(summary, on_change=numbers.on_change)
    try:
        pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    except Exception:
        numbers.fail(traceback.format_exc())


class Windows:
    """A graph that runs as long as the process.

    Args:
        spec: the windows.
        folder: the directory into which files are moved.
        commit: milliseconds between commits.
    """

    def __init__(self, spec: dict[str, Any], folder: str, commit: int = 1_000) -> None:
        self._folder = Path(folder)
        self._numbers = Numbers()
        self._batches = 0
        threading.Thread(target=run, args=(spec, folder, self._numbers, commit), daemon=True).start()

    def step(self, batch: str, expected: list[int]) -> dict[str, Any]:
        """Move a micro-batch's file in, and wait for the expected numbers."""
        before, begun = cpu_seconds(os.getpid()), time.perf_counter()
        os.rename(batch, self._folder / f"{self._batches:03}.csv")
        self._batches += 1
        results = self._numbers.wait_for(expected)
        seconds = time.perf_counter() - begun
        if self._numbers.error:
            raise RuntimeError(self._numbers.error)
        return {"ms": 1000 * seconds, "cpu": cpu_seconds(os.getpid()) - before, "results": results}

    def close(self) -> None:
        """End the process, because the graph runs forever."""
        os._exit(0)
