"""Runs programs under many schedules.

``python -m tests.simulation --seeds 70`` runs each program under seeds 0 to 69 (10,000 schedules). ``--program
late-data --seed 17`` repeats one run, and prints its steps.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation.every_program import PROGRAMS
from tests.simulation.simulate import SimulatedRunMismatch, command, simulate

# A schedule takes some ten milliseconds; longer than this (seconds) is a hang.
HANGS_AFTER = 120
# Seconds between two progress lines.
SAYS_EVERY = 15


def run_seeds(name: str, seeds: Sequence[int]) -> tuple[str, int, list[tuple[int, str]]]:
    failed = []
    for seed in seeds:
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        try:
            simulate(name, seed)
        except SimulatedRunMismatch as error:
            failed.append((seed, str(error)))
        finally:
            faulthandler.cancel_dump_traceback_later()
    return name, len(seeds), failed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=70, help="the number of seeds for each program")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one only, and tell what happens")
    parser.add_argument("--program", choices=sorted(PROGRAMS), metavar="NAME", help="this program only")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    logging.getLogger("pillarbox").setLevel(logging.ERROR)  # batch mode logs dropped timers
    names = [options.program] if options.program else list(PROGRAMS)
    if options.seed is not None:
        for name in names:
            try:
                print(f"{name}, seed {options.seed}:", *simulate(name, options.seed).lines, sep="\n  ")
            except SimulatedRunMismatch as error:
                print(f"{name}, seed {options.seed}: {error}")
                return 1
        return 0
    began = printed = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    portions = [(name, seeds[start : start + 25]) for start in range(0, len(seeds), 25) for name in names]
    schedules, failures = 0, 0
    # Objects from before the first run are frozen, so that the collector need not visit them.
    with ProcessPoolExecutor(options.processes, initializer=gc.freeze) as pool:
        outcomes = {pool.submit(run_seeds, *portion): portion for portion in portions}
        for done in as_completed(outcomes):
            try:
                name, count, failed = done.result()
            except Exception as error:
                name, these = outcomes[done]
                print(
                    f"{name}, one of the seeds {these[0]} to {these[-1]}: {type(error).__name__}: {error}", flush=True
                )
                return 1
            schedules += count
            if time.monotonic() - printed >= SAYS_EVERY:
                printed = time.monotonic()
                print(f"{schedules} of {len(seeds) * len(names)} schedules, {failures} failed", flush=True)
            for seed, text in failed:
                failures += 1
                if failures <= 10:
                    print(f"FAILED: {name}, seed {seed}; to do it again: {command(name, seed)}\n{text}\n", flush=True)
    seconds = time.monotonic() - began
    print(f"{schedules} schedules of {len(names)} programs in {seconds:.0f} s: {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
