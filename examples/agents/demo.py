"""Agents answer 2,000 lines of support chats. The driver is killed once, and no answer is billed twice.

python -m examples.agents.demo [--files 20] [--latency 60] [--no-kill] [--out build/demo-agent]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from examples.agents.chart import draw
from examples.agents.oracle import Expected
from examples.agents.service import running_service
from examples.flights.demo import positive, shown
from examples.service_process import ROOT, RunningService
from pillarbox.examples import examples

PRICE = 0.01  # dollars for 1,000 tokens


def main() -> int:
    """Run the demo. The exit code is 0 if results and bill equal the oracle's."""
    arguments = parse()
    out: Path = arguments.out.resolve()
    started = time.monotonic()
    shutil.rmtree(out, ignore_errors=True)
    lines = split(out / "chats", arguments.files)
    expected = Expected(out / "chats")
    requests = expected.billed.total()
    with running_service(latency=arguments.latency) as service:
        print(f"{lines:,} lines of chats with {requests:,} requests to the model at {service.url},")
        print("which accepts 120 a second. It will be overloaded once, and dead once. Starting Spark ...\n", flush=True)
        service.control(refuse_after=requests // 4, die_after=3 * requests // 4)
        killed = None
        if not arguments.no_kill:
            killed = run_until(out, service, requests // 2)
            print("\nThe driver is killed. It starts again, on the same checkpoint ...\n", flush=True)
        process = start(out, service)
        if process.wait() != 0:
            raise SystemExit(f"the query failed with exit code {process.returncode}: see {shown(out / 'spark.log')}")
        stats = service.stats()
    epochs = [json.loads(line) for line in (out / "epochs.jsonl").read_text().splitlines()]
    draw(stats, epochs, killed, out / "agents.svg")
    summary(stats, epochs, out)
    equal = check(expected, stats, out)
    print(f"Took {time.monotonic() - started:.0f} s. The picture of requests over time: {shown(out / 'agents.svg')}")
    return 0 if equal else 1


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=positive, default=20, help="files, and so micro-batches, of the chats")
    parser.add_argument(
        "--latency", type=float, default=60.0, help="milliseconds that half of the answers take at most"
    )
    parser.add_argument("--no-kill", action="store_true", help="do not kill the driver")
    parser.add_argument("--out", type=Path, default=Path("build/demo-agent"), help="folder for all output")
    return parser.parse_args()


def split(folder: Path, files: int, copies: int = 1) -> int:
    """Write the chats of the example ``support_chats`` as several files. Returns their number of lines.

    Args:
        copies: number of customers with the same chats, for each customer of the example.
    """
    (chats,) = (examples()["support_chats"] / "chats").glob("*.csv")
    header, *lines = chats.read_text().splitlines(keepends=True)
    lines = [line.replace("customer-", f"customer-{copy}-") for line in lines for copy in range(copies)]
    folder.mkdir(parents=True)
    size = -(-len(lines) // files)
    for number in range(files):
        path = folder / f"{number:03}.csv"
        path.write_text(header + "".join(lines[number * size : (number + 1) * size]))
        modified = 1_700_000_000 + number  # a stream reads files in the order of their times
        os.utime(path, (modified, modified))
    return len(lines)


def start(
    out: Path, service: RunningService, program: str = "examples.agents.run", arguments: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start the query in its own process group. Spark's messages go to a file."""
    command = [sys.executable, "-m", program, str(out), service.url, *arguments]
    with (out / "spark.log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, stderr=log, start_new_session=True)


def run_until(out: Path, service: RunningService, requests: int) -> float:
    """Run the query, and kill its driver after a number of requests. Returns the time of the kill."""
    process = start(out, service)
    while service.stats()["requests"] < requests:
        if process.poll() is not None:
            raise SystemExit(f"the query ended with exit code {process.returncode}: see {shown(out / 'spark.log')}")
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return time.time()


def summary(stats: dict[str, Any], epochs: list[dict[str, Any]], out: Path) -> None:
    """Print the outcomes of the requests, and the bill."""
    outcomes = Counter(stats["outcomes"])
    print(f"\n{stats['requests']:,} requests reached the model:")
    print(f"  {stats['answers']:6,} answers, which are billed: {stats['tokens']:,} tokens, {dollars(stats['tokens'])}")
    print(
        f"  {outcomes['repeated']:6,} answers for a key that was billed before:"
        f" {stats['saved']:,} tokens, {dollars(stats['saved'])} saved"
    )
    print(f"  {outcomes['429']:6,} refused with 429, {outcomes['dead']:,} unanswered, {outcomes['422']:,} with 422")
    carried = [epoch["carried"] for epoch in epochs]
    print(f"{len(epochs)} epochs; at most {max(carried):,} lines and timers were carried from one epoch to the next.")


def dollars(tokens: int) -> str:
    """Return the price of a number of tokens."""
    return f"${tokens / 1000 * PRICE:.2f}"


def check(expected: Expected, stats: dict[str, Any], out: Path) -> bool:
    """Compare results and bill with the oracle, and print the outcome."""
    rows = [row for path in sorted((out / "answers").glob("epoch=*")) for row in pq.read_table(path).to_pylist()]
    lines = Counter((row["customer"], row["number"], row["kind"], row["text"]) for row in rows)
    letters = [row for path in sorted((out / "refused").glob("epoch=*")) for row in pq.read_table(path).to_pylist()]
    chats = sum(kind == "summary" for _, _, kind, _ in lines.elements())
    print(f"{lines.total() - chats:,} answers, {chats:,} summaries of chats, {len(letters)} dead letters.")
    problems = []
    if lines != expected.lines:
        problems.append(f"missing {list(expected.lines - lines)[:3]}, unexpected {list(lines - expected.lines)[:3]}")
    if Counter((letter["customer"], letter["number"]) for letter in letters) != expected.refused:
        problems.append(f"dead letters: {sorted(letter['number'] for letter in letters)}")
    if (stats["answers"], stats["tokens"]) != (expected.billed.total(), expected.tokens):
        problems.append(f"the bill: {expected.billed.total()} requests and {expected.tokens} tokens expected")
    for problem in problems:
        print(f"NOT equal to the oracle: {problem}")
    if not problems:
        print(f"equal to the oracle: each line answered once, and each of {stats['answers']:,} requests billed once")
    return not problems


if __name__ == "__main__":
    sys.exit(main())
