"""Kills processes of ``make demo-agent``. Run it as ``python -m tests.faults.chaos.billing --kills 50 --seed 7``.

The demo's agents ask a language model about each line of a chat. The seed determines when Python workers, home
processes and drivers are killed, and when the model is down. The answers must equal the results of plain Python, and
each request must be billed once. With ``--share 0.5``, the budget's ceiling is half of the tokens of all answers. Then
the bill must not exceed the ceiling, and each line must be answered or refused. The last line of the output is a JSON
object.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark

from examples.agents.demo import check, split, start
from examples.agents.oracle import Expected
from examples.agents.service import running_service
from examples.service_process import RunningService
from tests.faults.chaos.agents_query import add_session_arguments
from tests.faults.processes import kill, members

# Weights of the faults.
FAULTS = {"process": 6, "driver": 1, "model": 1}
# Kills for each copy of the chats, which takes half a minute of requests.
KILLS_EACH = 10
# The number of a summary.
SUMMARY = -1
PATIENCE = 300  # seconds without a request


class Billing:
    """A run of ``make demo-agent`` with faults.

    Args:
        session: arguments that describe the session.
    """

    def __init__(self, out: Path, service: RunningService, seed: int, session: Sequence[str]) -> None:
        self.out, self.service = out, service
        self.session = session
        self.rng = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.drivers = 0
        self.failed = 0
        self.start()

    def start(self) -> None:
        self.process = start(self.out, self.service, "tests.faults.chaos.agents_query", self.session)
        self.drivers += 1

    def await_requests(self, count: int) -> bool:
        asked, since = -1, time.monotonic()
        while True:
            now = self.service.stats()["requests"]
            if now >= count:
                return True
            if now > asked:
                asked, since = now, time.monotonic()
            if self.process.poll() == 0:
                return False
            if self.process.poll() is not None:  # Spark tries a task four times
                self.failed += 1
                self.start()
            assert time.monotonic() < since + PATIENCE, (self.out / "spark.log").read_text()[-3000:]
            time.sleep(0.05)

    def inject(self) -> None:
        fault = self.rng.choices([*FAULTS], [*FAULTS.values()])[0]
        if fault == "driver":
            kill(self.process.pid, "all")
            self.process.wait()
            self.start()
        elif fault == "model":
            self.service.control(die_after=1, dead_seconds=self.rng.uniform(0.5, 3))
        else:
            processes = [
                pid for pid, name in members(self.process.pid).items() if "java" not in name and pid != self.process.pid
            ]
            if not processes:
                return
            with suppress(ProcessLookupError):
                os.kill(self.rng.choice(sorted(processes)), signal.SIGKILL)
        self.faults[fault] += 1

    def end(self) -> None:
        while (code := self.process.wait()) != 0:
            self.failed += 1
            assert self.failed < 100, f"exit code {code}: {(self.out / 'spark.log').read_text()[-3000:]}"
            self.start()


def holds(ceiling: int, stats: dict[str, Any], out: Path, least: float) -> bool:
    """Return whether each line has one outcome, and the bill is from ``least`` times the ceiling up to the ceiling."""
    lines: Counter[tuple[str, int]] = Counter()
    for path in (out / "chats").glob("*.csv"):
        with path.open(newline="") as file:
            lines.update((line["customer"], int(line["number"])) for line in csv.DictReader(file))
    outcomes = [path for name in ("answers", "refused") for path in out.glob(f"{name}/epoch=*")]
    rows = [row for path in outcomes for row in pq.read_table(path).to_pylist()]
    ended = Counter((row["customer"], row["number"]) for row in rows if row["number"] not in (None, SUMMARY))
    print(
        f"{stats['tokens']:,} tokens were billed, and {ceiling:,} allowed."
        f" Of {lines.total():,} lines {(lines - ended).total():,} have no outcome, {(ended - lines).total():,} two."
    )
    return least * ceiling <= stats["tokens"] <= ceiling and ended == lines


def main() -> int:
    """Run the command line. The exit code is 0 if results and bill equal the oracle's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="number of faults (%(default)s)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of the faults; else the clock")
    parser.add_argument("--keep", type=Path, help="a new folder for all files; else a temporary one")
    parser.add_argument("--share", type=float, help="the ceiling, as a share of the tokens that all lines need")
    add_session_arguments(parser)
    arguments = parser.parse_args()
    session = [f"--slots={arguments.slots}", *(["--connect"] if arguments.connect else [])]
    session += [] if arguments.homes is None else [f"--homes={arguments.homes}"]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, running_service() as service:
        out = arguments.keep or Path(folder)
        lines = split(out / "chats", 20, copies=max(1, -(-arguments.kills // KILLS_EACH)))
        expected = Expected(out / "chats")
        requests = expected.billed.total()
        ceiling = None if arguments.share is None else int(arguments.share * expected.tokens)
        if ceiling is not None:
            session.append(f"--ceiling={ceiling}")
            requests = int(arguments.share * requests)
        billing = Billing(out, service, arguments.seed, session)
        for number in range(arguments.kills):
            if not billing.await_requests(requests * (number + 1) // (arguments.kills + 2)):
                break
            billing.inject()
            print(f"seed {arguments.seed}, {time.monotonic() - began:.0f} s: {dict(billing.faults)}", flush=True)
        billing.end()
        stats = service.stats()
        if ceiling is None:
            is_equal = check(expected, stats, out)
        else:
            is_equal = holds(ceiling, stats, out, least=0 if billing.faults else 0.9)
    result = {
        "seed": arguments.seed,
        "session": session,
        "spark": pyspark.__version__,
        "is_equal": is_equal,
        "lines": lines,
        "requests": stats["requests"],
        "billed": stats["answers"],
        "repeated": stats["outcomes"].get("repeated", 0),
        "faults": billing.faults,
        "drivers": billing.drivers,
        "failed_queries": billing.failed,
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(result))
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
