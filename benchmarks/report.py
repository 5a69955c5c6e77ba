# SPDX-License-Identifier: Apache-2.0
"""All benchmarks in turn, and the pages that show what they said.

``run`` runs them one after the other, all or those that are named, and keeps the JSON that each ends with, its command
and a description of the machine in ``docs/benchmarks/NAME.json``. Nothing else should run meanwhile: three hours.

``write`` draws the charts of ``docs/benchmarks`` from these files, and fills in the blocks of README.md and of the
pages of ``docs``: what stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` is written here, all else is by
hand. Every figure that was measured stands in such a block, so the pages show what the last run said.

Run them with ``make bench-all`` (``ARGS="keyed latency"`` for some) and ``make bench-report``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.reporting.pages import write
from benchmarks.reporting.results import IN_MEMORY, MEMORY, RESULTS, RUNS
from benchmarks.support import ROOT, machine


def command(name: str) -> str:
    """Return the command of a run."""
    target, arguments = RUNS[name]
    in_memory = f"TMPDIR={MEMORY} " if name in IN_MEMORY and MEMORY.is_dir() else ""
    return f'{in_memory}make {target} ARGS="{arguments}"' if arguments else f"{in_memory}make {target}"


def describe_machine() -> dict[str, Any]:
    """Describe the machine, with what Linux tells of it."""
    said = machine()
    del said["load"]
    try:
        model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        said["processor"] = model[1] if model else "unknown"
        said["memory_gib"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)
    except (OSError, ValueError):
        pass
    return said


def run(names: Sequence[str]) -> None:
    """Run benchmarks, and keep what they say."""
    RESULTS.mkdir(exist_ok=True)
    failed = []
    for name in names:
        target, arguments = RUNS[name]
        print(f"\n== {name}: {command(name)}", flush=True)
        begun = time.monotonic()
        environment = {"TMPDIR": str(MEMORY)} if name in IN_MEMORY and MEMORY.is_dir() else {}
        with subprocess.Popen(
            ["make", "-C", str(ROOT), target, f"ARGS={arguments}"],
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
        kept = {
            "command": command(name),
            "date": datetime.date.today().isoformat(),
            "seconds": round(time.monotonic() - begun),
            "machine": describe_machine(),
            "result": json.loads(last),
        }
        (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
    if failed:
        raise SystemExit(f"these failed: {', '.join(failed)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("run", "write"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to run: {', '.join(RUNS)}; all by default")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(RUNS):
        parser.error(f"{', '.join(sorted(unknown))}: known are {', '.join(RUNS)}")
    if arguments.what == "run":
        run(arguments.names or list(RUNS))
    write()


if __name__ == "__main__":
    main()
