"""Runs programs on Spark with random faults: ``python -m tests.faults.chaos.seeds --seed 7 --minutes 10``.

A seed determines the cluster's shape, programs, input and faults, but not the exact times of faults. Every row is
compared with the result of plain Python. Each seed prints a line of JSON, and the last line contains sums over all
seeds. The exit code is 0 if all results were right. Only faults that happened are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.chaos.faults import ChaosFaults
from tests.faults.chaos.run import EPOCHS, PATIENCE
from tests.faults.chaos.sinks import LoggedFiles
from tests.faults.parts.columns import frames_answer
from tests.faults.programs.second_job import WAITING

OF_HOMES = ("kill_home", "stop_home", "kill_starter")


class Chaos(ChaosFaults):
    # Faults that Spark handles; faults that need a restart of the query; and faults that need a new driver, which takes
    # longest.
    CHEAP = {
        "kill_worker": 3,
        "stop_worker": 1,
        "kill_daemon": 1,
        "kill_home": 5,
        "stop_home": 2,
        "kill_starter": 2,
        "set_the_clock": 3,
        "read_the_checkpoint": 3,
    }
    RESTARTING = {
        "damage_a_file": 3,
        "undo_a_commit": 3,
        "stop_in_the_sink": 2,
        "cross": 2,
        "rescale": 1,
        "move": 1,
        "end_of_work": 3,
        "fill_the_sink": 1,
        "fill_the_disk": 1,
    }
    COSTLY = {"kill_driver": 2, "die_in_the_sink": 2, "two_drivers": 1, "copy_the_checkpoint": 1}

    def draw(self) -> list[str]:
        if self.only:
            return list(self.only)
        costly = dict(self.COSTLY)
        if self.mode not in (None, "drain"):
            # Which rows a batch has is not settled beforehand, so with any sink two drivers may mix two versions of it.
            del costly["two_drivers"]
        restarting = dict(self.RESTARTING)
        if self.mode not in WAITING:
            del restarting["end_of_work"]
        cheap = dict(self.CHEAP)
        if self.shape["homes"] == "off":
            for kind in OF_HOMES:
                del cheap[kind]
        chosen = self._choices(cheap, round(6 * self.share)) + self._choices(restarting, round(3 * self.share))
        chosen += ["kill_executor", "kill_executor"] if self.is_cluster else self._choices(costly, 1)
        self.rng.shuffle(chosen)
        return chosen

    def _choices(self, weights: dict[str, int], count: int) -> list[str]:
        return self.rng.choices(list(weights), list(weights.values()), k=count)

    # -- all of it --

    def _next_of(self, kinds: Sequence[str]) -> int:
        if self.COSTLY.keys() & kinds[:3]:
            self.spare = self._new_driver()
        if kinds[0] in self.COSTLY and not (self.spare and self.spare.is_ready()):
            return next((index for index, kind in enumerate(kinds) if kind not in self.COSTLY), 0)
        return 0

    def run(self) -> None:
        left = list(enumerate(self.draw()))
        with self._stack:
            self.driver = self._new_driver()
            self.driver.order(f"start {self.place}")
            while left:
                if not self.go_on(1):
                    self.say(f"done before {[kind for _, kind in left]}")
                    break
                number, kind = left.pop(self._next_of([kind for _, kind in left]))
                rng = random.Random(f"{self.seed} {number} {kind}")
                time.sleep(rng.choice([0.0, rng.uniform(0, 0.3)]))
                if kind != "damage_a_file":
                    self.blows.append(time.time())
                if getattr(self, kind)(rng):
                    self.faults[kind] += 1
                if kind != "damage_a_file":
                    self.blows.append(time.time())
                self.say(f"{kind} after {self.batches()} batches")
            if self.settings_of_the_clock:
                self._set_clock(0)
            far = self.batches() + 10 * EPOCHS
            if self.until(lambda: self.batches() > far):
                self.say("it comes to no end")
            patience = time.monotonic() + PATIENCE
            while self.copied is not None:
                self.look_at_the_copy()
                if time.monotonic() > patience:
                    raise TimeoutError(f"a copy does not go on: {self.copied.log()}")
                time.sleep(0.05)
            if self.service is not None:
                self.answers = self.service.stats()["outcomes"]
            if self.archive is not None and not self.archive.exists():
                self.driver.leave()  # and its classes
        for name in os.listdir(self.home / "faults"):
            self.faults[name.split()[0] + " at a point"] += 1
        self.outcome.check(self.place / "out")
        frames = frames_answer(self.epochs, self.joined_frames)
        if self.shape["sinks"]["frames"] == "parquet":
            self.outcome.check_files(LoggedFiles(self.place / "frames"), frames)
        else:
            self.outcome.check_frames(self.place / "frames", frames)
        self.outcome.check_first_sums(self.home / "first sums")
        if self.mode is not None:
            self.outcome.check_squares(self.place / "squares", may_give_up=self.mode == "deadline")

    answers: dict[str, int] = {}

    def result(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "master": "local-cluster" if self.is_cluster else "local",
            "homes": self.shape["homes"],
            "second": self.mode,
            "faults": sum(self.faults.values()),
            "kinds": dict(sorted(self.faults.items())),
            "lost": self.outcome.lost,
            "doubled": self.outcome.doubled,
            "silent": self.outcome.silent,
            "unexplained": self.unexplained,
            "damages": [[damage.file, damage.how, damage.outcome(), damage.said] for damage in self.outcome.damages],
            "damage_noticed": sum(damage.noticed_at is not None for damage in self.outcome.damages),
            "failures": self.failures,
            "drivers": self.started,
            "service": {name: self.answers[name] for name in ("hung", "500", "twice") if name in self.answers},
            "given_up": self.outcome.given_up,
        }


def run_seed(
    seed: int,
    archive: Path | None = None,
    epochs: int = EPOCHS,
    only: Sequence[str] = (),
    homes: str | None = None,
) -> dict[str, Any]:
    """Run a seed. After an error, keep the run's files.

    Args:
        archive, epochs, only, homes: as in :class:`ChaosRun`.
    """
    began = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix=f"pillarbox-chaos-{seed}-"))
    chaos = Chaos(seed, home, archive, epochs, only, homes)
    error = ""
    try:
        chaos.run()
    except Exception:
        error = traceback.format_exc()
        chaos.say(f"FAILED: {error}")
    except BaseException:  # interrupted by a signal
        shutil.rmtree(home, ignore_errors=True)
        raise
    result = {**chaos.result(), "error": error, "seconds": round(time.monotonic() - began)}
    if is_right(result):
        shutil.rmtree(home, ignore_errors=True)
    else:
        chaos.say(f"look into {home}")
    print(json.dumps(result), flush=True)
    return result


BAD = ("lost", "doubled", "silent", "unexplained")


def is_right(result: dict[str, Any]) -> bool:
    return not result["error"] and not any(result[name] for name in BAD)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed; by default each is drawn by the clock")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--minutes", type=float, default=0, help="begin with further seeds for so long")
    kinds_of_faults = sorted(Chaos.CHEAP | Chaos.RESTARTING | Chaos.COSTLY)
    parser.add_argument("--only", nargs="+", default=(), choices=kinds_of_faults, help="these faults, in this order")
    parser.add_argument("--homes", choices=("fork", "spawn", "off"), help="by default the seed says which")
    options = parser.parse_args(arguments)
    # Ending this process also ends its drivers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    until = time.monotonic() + 60 * options.minutes
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="pillarbox-chaos-") as shared:
        archive = Path(shared) / "classes.jsa" if options.seeds > 1 or options.minutes else None
        while len(results) < options.seeds or time.monotonic() < until:
            seed = time.time_ns() // 1000 % 10**6 if options.seed is None else options.seed + len(results)
            print(f"seed {seed}; to do it again: make chaos SEED={seed}", flush=True)
            results.append(run_seed(seed, archive, only=options.only, homes=options.homes))
    kinds: Counter[str] = Counter()
    for result in results:
        kinds.update(result["kinds"])
    wrong = [result["seed"] for result in results if not is_right(result)]
    sums = {name: sum(result[name] for result in results) for name in ("faults", *BAD, "damage_noticed", "seconds")}
    print(json.dumps({"seeds": len(results), **sums, "wrong_seeds": wrong, "kinds": dict(sorted(kinds.items()))}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
