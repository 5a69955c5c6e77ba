# SPDX-License-Identifier: Apache-2.0
"""The cost of the mailbox: mails from another thread.

Mails are compared with asyncio: N callbacks that another thread posts with ``loop.call_soon_threadsafe``. The clock
starts before the first post, and stops when the last callback has run. Both sides do the same work, in the same
process, in alternating rounds. The results are medians.

In the last line, ``ratio`` is mails per second through :meth:`MailboxExecutor.execute` divided by callbacks per second
through asyncio.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness.case import Block, Outcome, Result, Results
from benchmarks.harness.turns import extent, medians, rounded, table, turns
from pillarbox.mailbox import MailboxProcessor

SMALL = {"mails": 10_000, "rounds": 3}


class Countdown:
    """The work of a mail, which counts mails and signals the last."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self.left = count
        self.done = done

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.done()


def posted(count: int, post_all: Callable[[], None], loop: Callable[[], None], go: threading.Event) -> float:
    """Return how many calls per second a loop runs if another thread posts them.

    Args:
        post_all: posts all calls, in that thread.
        loop: runs until all calls have run. Sets ``go`` when it begins.
    """
    started = 0.0

    def post() -> None:
        nonlocal started
        go.wait()
        started = time.perf_counter()
        post_all()

    thread = threading.Thread(target=post)
    thread.start()
    loop()
    elapsed = time.perf_counter() - started
    thread.join()
    return count / elapsed


def mails(count: int) -> float:
    """Mails per second from another thread, into a loop that waits for them."""
    processor = MailboxProcessor(lambda controller: controller.suspend_default_action())
    execute = processor.get_main_mailbox_executor().execute
    work, go = Countdown(count, processor.all_actions_completed), threading.Event()

    def post_all() -> None:
        for _ in range(count):
            execute(work, "count down")

    execute(go.set, "go")
    rate = posted(count, post_all, processor.run_mailbox_loop, go)
    assert work.left == 0
    processor.close()
    return rate


def asyncio_calls(count: int) -> float:
    """Callbacks per second from another thread, into an asyncio loop that waits for them."""
    loop = asyncio.new_event_loop()
    call = loop.call_soon_threadsafe
    work, go = Countdown(count, loop.stop), threading.Event()

    def post_all() -> None:
        for _ in range(count):
            call(work)

    loop.call_soon(go.set)
    rate = posted(count, post_all, loop.run_forever, go)
    assert work.left == 0
    loop.close()
    return rate


SIDES: dict[str, Callable[[int], float]] = {
    "mails_per_s": mails,
    "asyncio_calls_per_s": asyncio_calls,
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mails", type=int, default=50_000, help="mails per round")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    rates: dict[str, list[float]] = {name: [] for name in SIDES}
    for index, name in turns(SIDES, arguments.rounds):
        gc.collect()
        rate = SIDES[name](arguments.mails)
        if index >= 0:
            rates[name].append(rate)
    middle = medians(rates)
    figures = {
        **rounded(middle),
        "rounds": rounded(rates),
        "mails": arguments.mails,
        "implementation": platform.python_implementation(),
    }
    return Outcome("mailbox", middle["mails_per_s"] / middle["asyncio_calls_per_s"], figures)


def present(result: Result, charts: Path | None) -> str:
    rows = [
        [name.removesuffix("_per_s").replace("_", " "), f"{result[name]:,}", extent(all_), f"{1e9 / result[name]:,.0f}"]
        for name, all_ in result["rounds"].items()
    ]
    return table(["", "a second", "rounds", "ns each"], rows)


def mechanisms(results: Results) -> str:
    ratio = results["mailbox"]["ratio"]
    rows = [["mails from another thread, over asyncio's call_soon_threadsafe", f"{ratio:.2f}"]]
    for yardstick, ratios in results["timers"]["ratios"].items():
        rows += [
            [f"timers registered, deleted and fired, {times}, over {yardstick}", f"{ratio:.2f}"]
            for times, ratio in ratios.items()
        ]
    return table(["operations per second", "ratio"], rows)


BLOCKS = {"mechanisms": Block(mechanisms, ("mailbox", "timers"), commands=True)}
