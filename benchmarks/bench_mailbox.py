# SPDX-License-Identifier: Apache-2.0
"""What the mailbox costs: rounds of the loop with no mail, and mails from another thread.

The yardstick for mails is asyncio: N callbacks posted by one other thread with
``loop.call_soon_threadsafe``, measured from before the first is posted until the last has run. Both
sides do the same work, in the same process, in alternating rounds; what counts is the median.

Run it with ``python benchmarks/bench_mailbox.py``. The last line of the output is one JSON object;
``ratio`` is mails per second through :meth:`MailboxExecutor.execute` over callbacks per second
through asyncio.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

try:
    from pillarbox.mailbox import MailboxController, MailboxProcessor
except ImportError:  # from a checkout that is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
    from pillarbox.mailbox import MailboxController, MailboxProcessor


class Countdown:
    """The trivial work of a mail: count, and say when all have come."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self.left = count
        self.done = done

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.done()


def empty_rounds(count: int) -> float:
    """Rounds of the loop per second where no mail comes."""
    left = count

    def action(controller: MailboxController) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            controller.all_actions_completed()

    processor = MailboxProcessor(action)
    start = time.perf_counter()
    processor.run_mailbox_loop()
    elapsed = time.perf_counter() - start
    processor.close()
    return count / elapsed


def bare_calls(count: int) -> float:
    """The same function called by a bare ``while``: what no loop can beat."""
    left = count
    going = True

    def action(_controller: object) -> None:
        nonlocal left, going
        left -= 1
        if left == 0:
            going = False

    start = time.perf_counter()
    while going:
        action(None)
    return count / (time.perf_counter() - start)


def mails(count: int) -> float:
    """Mails per second from another thread, into a loop that waits for them."""
    processor = MailboxProcessor(lambda controller: controller.suspend_default_action())
    execute = processor.get_main_mailbox_executor().execute
    work = Countdown(count, processor.all_actions_completed)
    go = threading.Event()
    started = 0.0

    def post() -> None:
        nonlocal started
        go.wait()
        started = time.perf_counter()
        for _ in range(count):
            execute(work, "count down")

    thread = threading.Thread(target=post)
    thread.start()
    processor.get_main_mailbox_executor().execute(go.set, "go")
    processor.run_mailbox_loop()
    elapsed = time.perf_counter() - started
    thread.join()
    assert work.left == 0
    processor.close()
    return count / elapsed


def asyncio_calls(count: int) -> float:
    """Callbacks per second from another thread, into an asyncio loop that waits for them."""
    loop = asyncio.new_event_loop()
    work = Countdown(count, loop.stop)
    go = threading.Event()
    started = 0.0

    def post() -> None:
        nonlocal started
        go.wait()
        started = time.perf_counter()
        call = loop.call_soon_threadsafe
        for _ in range(count):
            call(work)

    thread = threading.Thread(target=post)
    thread.start()
    loop.call_soon(go.set)
    loop.run_forever()
    elapsed = time.perf_counter() - started
    thread.join()
    assert work.left == 0
    loop.close()
    return count / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mails", type=int, default=50_000, help="mails per round")
    parser.add_argument("--loops", type=int, default=1_000_000, help="empty rounds per round")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count")
    arguments = parser.parse_args()

    cases: dict[str, tuple[Callable[[int], float], int]] = {
        "bare_calls_per_s": (bare_calls, arguments.loops),
        "empty_loops_per_s": (empty_rounds, arguments.loops),
        "mails_per_s": (mails, arguments.mails),
        "asyncio_calls_per_s": (asyncio_calls, arguments.mails),
    }
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for index in range(arguments.rounds + 1):
        # Alternating, and every other round backwards, so that neither gains by its place.
        order = list(cases.items())
        for name, (run, count) in order if index % 2 else reversed(order):
            gc.collect()
            rate = run(count)
            if index > 0:  # round 0 warms up
                rates[name].append(rate)

    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio = medians["mails_per_s"] / medians["asyncio_calls_per_s"]
    print(f"{'':24}{'median/s':>14}{'lowest/s':>14}{'highest/s':>14}{'ns each':>10}")
    for name, values in rates.items():
        print(
            f"{name.removesuffix('_per_s'):24}{medians[name]:14,.0f}{min(values):14,.0f}"
            f"{max(values):14,.0f}{1e9 / medians[name]:10,.0f}"
        )
    print(f"{'mails over asyncio':24}{ratio:14.2f}")
    print(
        json.dumps(
            {
                "name": "mailbox",
                "ratio": round(ratio, 3),
                **{name: round(value) for name, value in medians.items()},
                "rounds": {name: [round(value) for value in values] for name, values in rates.items()},
                "mails": arguments.mails,
                "loops": arguments.loops,
                "python": platform.python_version(),
                "implementation": platform.python_implementation(),
                "machine": platform.machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
