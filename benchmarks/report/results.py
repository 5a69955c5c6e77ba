# SPDX-License-Identifier: Apache-2.0
"""The runs whose figures the pages show, and their results in ``docs/benchmarks``."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.case import Results
from benchmarks.harness.machine import machine
from benchmarks.harness.process import ROOT

RESULTS = ROOT / "docs" / "benchmarks"
# (case, arguments) of each run, by name.
RUNS: dict[str, tuple[str, str]] = {
    "keyed": ("keyed", ""),
    "keyed-10k-keys": ("keyed", "--keys 10000 --peers rows,identity"),
    "keyed-1m-keys": ("keyed", "--keys 1000000 --peers rows,identity"),
    "keyed-100k-rows": ("keyed", "--rows 100000 --peers rows,identity"),
    "sessions": ("sessions", ""),
    "windows": ("windows", ""),
    "join": ("join", ""),
    "stateless": ("stateless", ""),
    "batch": ("batch", ""),
    "epoch": ("epoch", ""),
    "start": ("start", ""),
    "latency": ("latency", ""),
    "slots": ("slots", ""),
    "async": ("async", ""),
    "recovery": ("recovery", "--spark-keys 100000 1000000 5000000"),
    "operate": ("operate", ""),
    "growth": ("growth", ""),
    "state": ("state", ""),
    "state-spark": ("state", "--spark"),
    "memory": ("memory", ""),
    "memory-async": ("memory", "--async"),
    "key-cost": ("key-cost", ""),
    "mailbox": ("mailbox", ""),
    "timers": ("timers", ""),
}
# Runs with checkpoints in memory, because the times of a slow disk would be larger and vary more than the results.
IN_MEMORY = {"epoch", "latency", "growth", "windows", "join", "operate", "slots"}
MEMORY = Path("/dev/shm")


def read_results(folder: Path = RESULTS, charts: Path | None = RESULTS) -> Results:
    """Read the results in a folder, in the order of ``RUNS``."""
    paths = {name: folder / f"{name}.json" for name in RUNS}
    return Results({name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}, charts)


def command(name: str) -> str:
    """Return a run's command."""
    case, arguments = RUNS[name]
    in_memory = f"TMPDIR={MEMORY} " if name in IN_MEMORY and MEMORY.is_dir() else ""
    return f'{in_memory}make bench-{case} ARGS="{arguments}"' if arguments else f"{in_memory}make bench-{case}"


def describe_machine() -> dict[str, Any]:
    """Describe the machine, including details that Linux provides."""
    facts = machine()
    try:
        model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        facts["processor"] = model[1] if model else "unknown"
        facts["memory_gib"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)
    except (OSError, ValueError):
        pass
    return facts


def run(names: Sequence[str]) -> None:
    """Run benchmarks, and store their results."""
    RESULTS.mkdir(exist_ok=True)
    failed = []
    for name in names:
        case, arguments = RUNS[name]
        print(f"\n== {name}: {command(name)}", flush=True)
        begun = time.monotonic()
        environment = {"TMPDIR": str(MEMORY)} if name in IN_MEMORY and MEMORY.is_dir() else {}
        with subprocess.Popen(
            ["make", "-C", str(ROOT), f"bench-{case}", f"ARGS={arguments}"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        ) as process:
            assert process.stdout is not None
            last = ""
            for line in process.stdout:
                print(line, end="", flush=True)
                last = line if line.startswith("{") else last
        if process.returncode or not last:
            failed.append(name)
            continue
        record = {
            "command": command(name),
            "date": datetime.date.today().isoformat(),
            "seconds": round(time.monotonic() - begun),
            "machine": describe_machine(),
            "result": json.loads(last),
        }
        (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    if failed:
        raise SystemExit(f"these failed: {', '.join(failed)}")
