# SPDX-License-Identifier: Apache-2.0
"""The benchmarks that there are, and the results that are kept of them in ``docs/benchmarks``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.support import ROOT

RESULTS = ROOT / "docs" / "benchmarks"
# What to run under each name: a target of the Makefile, and arguments.
RUNS: dict[str, tuple[str, str]] = {
    "keyed": ("bench-keyed", ""),
    "keyed-10k-keys": ("bench-keyed", "--keys 10000 --peers rows,identity"),
    "keyed-1m-keys": ("bench-keyed", "--keys 1000000 --peers rows,identity"),
    "keyed-100k-rows": ("bench-keyed", "--rows 100000 --peers rows,identity"),
    "sessions": ("bench-sessions", ""),
    "windows": ("bench-windows", ""),
    "join": ("bench-join", ""),
    "stateless": ("bench-stateless", ""),
    "epoch": ("bench-epoch", ""),
    "start": ("bench-start", ""),
    "latency": ("bench-latency", ""),
    "slots": ("bench-slots", ""),
    "async": ("bench-async", ""),
    "recovery": ("bench-recovery", "--large"),
    "operate": ("bench-operate", ""),
    "growth": ("bench-growth", ""),
    "state": ("bench-state", ""),
    "state-spark": ("bench-state", "--spark"),
    "memory": ("bench-memory", ""),
    "memory-async": ("bench-memory", "--async"),
    "key-cost": ("bench-key-cost", ""),
    "mailbox": ("bench-mailbox", ""),
    "timers": ("bench-timers", ""),
}
# Their checkpoints are in memory: what they measure is small compared with what a slow disk takes, and how much that
# varies.
IN_MEMORY = {"epoch", "latency", "growth", "windows", "join", "operate", "slots"}
MEMORY = Path("/dev/shm")

Result = dict[str, Any]


@dataclass(frozen=True)
class Report:
    """What the benchmarks said.

    Attributes:
        kept: of each benchmark that was run its command, date, machine and result.
        charts: the folder into which charts are drawn.
    """

    kept: Mapping[str, dict[str, Any]]
    charts: Path

    @classmethod
    def read(cls, folder: Path = RESULTS, charts: Path = RESULTS) -> Report:
        """Read the results of a folder, in the order of their names in ``RUNS``."""
        paths = {name: folder / f"{name}.json" for name in RUNS}
        return cls({name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}, charts)

    def __getitem__(self, name: str) -> Result:
        """Return the object with which a benchmark ended."""
        result: Result = self.kept[name]["result"]
        return result

    def __contains__(self, name: object) -> bool:
        """Whether a benchmark was run."""
        return name in self.kept
