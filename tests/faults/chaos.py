"""Programs on Spark under faults drawn from a seed: ``python -m tests.faults.chaos --seed 7 --minutes 10``.

A seed says the shape of a cluster, programs, their input and the faults: what is killed, stopped, filled up, set or
damaged. The moments are those of a real run: a seed repeats its faults, not the microsecond at which they come. At the
end every row is compared with what plain Python works out. One seed follows the other; without a first one, each is
drawn by the clock. A line of JSON says what became of a seed, the last one sums them up, and the exit code says whether
all was right. A fault is counted when it has happened, not when it was wanted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark

from tests.faults.chaos_cluster import reason
from tests.faults.chaos_run import EPOCHS, HOUR, PATIENCE, SECOND, ChaosRun
from tests.faults.chaos_sinks import LoggedFiles
from tests.faults.columns_oracle import frames_answer
from tests.faults.damage import damage

CAN_RESCALE = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
READERS = {"inspect": 2, "read_state": 4, "savepoint": 1}  # the last one takes as long as many batches
# What a reader may say of a checkpoint whose query runs on and keeps few batches.
CLEANED_AWAY = ("was cleaned away", "is not there any more")


class Chaos(ChaosRun):
    """The faults of one seed."""

    # Faults after which Spark goes on by itself; those after which a query has to start again; and those for which a
    # driver has to start, which takes the longest.
    CHEAP = {"kill_worker": 5, "stop_worker": 2, "kill_daemon": 2, "set_the_clock": 3, "read_the_checkpoint": 3}
    RESTARTING = {
        "damage_a_file": 3,
        "undo_a_commit": 3,
        "stop_in_the_sink": 2,
        "cross": 2,
        "rescale": 1,
        "move": 1,
        "fill_the_sink": 1,
        "fill_the_disk": 1,
    }
    COSTLY = {"kill_driver": 2, "die_in_the_sink": 2, "two_drivers": 1, "copy_the_checkpoint": 1}

    def draw(self) -> list[str]:
        """Draw the faults of a run, in their order."""
        if self.only:
            return list(self.only)
        costly = dict(self.COSTLY)
        if self.mode not in (None, "drain"):
            # Which rows a batch has is not settled beforehand, so with any sink two drivers may mix two versions of it.
            del costly["two_drivers"]
        chosen = self._choices(self.CHEAP, round(6 * self.share)) + self._choices(
            self.RESTARTING, round(3 * self.share)
        )
        chosen += ["kill_executor", "kill_executor"] if self.is_cluster else self._choices(costly, 1)
        self.rng.shuffle(chosen)
        return chosen

    def _choices(self, weights: dict[str, int], count: int) -> list[str]:
        return self.rng.choices(list(weights), list(weights.values()), k=count)

    # -- faults: each tells whether it has happened --

    def send(self, processes: Callable[[], Sequence[int]], number: int, rng: random.Random) -> bool:
        """Send a signal to one of the processes, when there are any."""
        if not self.until(processes):
            return False
        victims = processes()
        if not victims:
            return False
        victim = rng.choice(list(victims))
        try:
            os.kill(victim, number)
            if number == signal.SIGSTOP:
                time.sleep(rng.uniform(0.1, 1))
                os.kill(victim, signal.SIGCONT)
        except ProcessLookupError:
            return False
        return True

    def kill_worker(self, rng: random.Random) -> bool:
        return self.send(lambda: self.driver.workers()[1], signal.SIGKILL, rng)

    def stop_worker(self, rng: random.Random) -> bool:
        return self.send(lambda: self.driver.workers()[1], signal.SIGSTOP, rng)

    def kill_daemon(self, rng: random.Random) -> bool:
        return self.send(lambda: self.driver.workers()[0], signal.SIGKILL, rng)

    def kill_executor(self, rng: random.Random) -> bool:
        return self.send(lambda: self.driver.java()[1:], signal.SIGKILL, rng)

    def kill_driver(self, rng: random.Random) -> bool:
        self.driver.end(rng.choice(["all", "all", "jvm", "driver"]))
        self.start_again()
        return True

    def set_the_clock(self, rng: random.Random) -> bool:
        """The workers' wall clock is set, once to the right time again, else forth or back."""
        far = 4 * SECOND if self.mode == "timers" else HOUR  # timers may wait for as long as it was set back
        return self._set_clock(rng.choice([to for to in (-far, far, rng.randrange(-far, far), 0) if to != self.ahead]))

    def fill_the_sink(self, rng: random.Random) -> bool:
        """The next batch finds the sink's disk full."""
        wanted = self.home / f"sink is full {self.faults['fill_the_sink']}"
        wanted.touch()
        return self.until(lambda: not wanted.exists())

    def fill_the_disk(self, rng: random.Random) -> bool:
        """No file of the driver's JVM may grow, until one could not, or even until the query has died of it."""
        found, until_it_dies = self.driver.java(), rng.random() < 0.5
        if not found:
            return False
        process = found[0]
        limits, before = resource.prlimit(process, resource.RLIMIT_FSIZE), self.driver.refused
        resource.prlimit(process, resource.RLIMIT_FSIZE, (rng.choice([0, 100]), limits[1]))
        try:
            self.until(
                lambda: self.driver.failure() or (self.driver.refused > before and not until_it_dies), recovering=False
            )
        finally:
            with suppress(ProcessLookupError):
                resource.prlimit(process, resource.RLIMIT_FSIZE, limits)
        return self.driver.refused > before

    def stop_in_the_sink(self, rng: random.Random) -> bool:
        """A query is stopped when its sink has written a batch, and Spark does not know that yet."""
        return self._in_the_sink("stop", rng)

    def die_in_the_sink(self, rng: random.Random) -> bool:
        """The driver dies when a sink has written a batch, and Spark does not know that yet."""
        return self._in_the_sink("die in", rng)

    def _in_the_sink(self, what: str, rng: random.Random) -> bool:
        name = rng.choice(["first"] if self.shape["sinks"]["frames"] == "parquet" else ["first", "frames"])
        wanted = self.home / f"{what} {name} {self.faults.total()}"
        wanted.touch()
        happened = self.until(lambda: not wanted.exists())
        wanted.unlink(missing_ok=True)
        return happened

    def undo_a_commit(self, rng: random.Random) -> bool:
        """Between two runs of the queries, Spark forgets that it has committed the last batch of one of them.

        A driver that dies between the sink's commit and Spark's leaves just that.
        """
        if not self.stopped():
            return False
        self.order(f"finish {self.place}")
        names = [str(self.shape["checkpoint"]), "frames checkpoint", "squares checkpoint"]
        undone = [name for name in rng.sample(names, rng.choice([1, 3])) if self._undo(self.place / name)]
        if rng.random() < 0.5:
            self.driver.end()
        self.say(f"not committed any more: {undone}")
        self.start_again()
        return bool(undone)

    def _undo(self, checkpoint: Path) -> bool:
        begun, last = (self._newest(log, checkpoint) for log in ("offsets", "commits"))
        if last < 0 or begun > last or (checkpoint.name, last) in self.without_input:
            return False
        for name in (f"{last}", f".{last}.crc"):
            (checkpoint / "commits" / name).unlink(missing_ok=True)
        return True

    def read_the_checkpoint(self, rng: random.Random) -> bool:
        """While the first program runs on, somebody reads its checkpoint: there is an epoch, and all of its state."""
        if not self.until(lambda: self._newest("commits") >= 0):
            return False
        driver, said, reader = (
            self.driver,
            len(self.driver.said()),
            rng.choices(list(READERS), list(READERS.values()))[0],
        )
        order = f"read-{reader} {self.place}"
        driver.order(order)
        if not self.until(lambda: driver.has_answered(order, said)):
            return False
        found = next((json.loads(why) for what, why in driver.said()[said:] if what == "read"), None)
        if found is None:
            return False
        self.say(f"{reader}: {found.get('error', 'epoch {}'.format(found.get('epoch')))[:3000]}")
        if error := found.get("error"):
            is_fair = error.startswith("CheckpointMismatchError") and any(said in error for said in CLEANED_AWAY)
            if not is_fair and ("FileNotFound" in error or not self._is_explained()):
                self.unexplained += 1
                self.say(f"UNEXPLAINED: {reader}")
        elif found["totals"] is not None:
            totals = {int(key): total for key, total in found["totals"].items()}
            self.outcome.compare_totals(found["epoch"] + self.shape["shift"], totals, reader)
        return True

    def damage_a_file(self, rng: random.Random) -> bool:
        """Between two runs of the queries, cut or change a checkpoint file. Once that is noticed, put it back."""
        if not self.stopped():
            return False
        self.driver.kill_workers()
        done = damage(self.checkpoint, rng, self.shape["shift"])
        self.recovered_at = time.time()
        if done is not None:
            self.outcome.damages.append(done)
            self.say(f"{done.how}: {done.file}")
        self.start_again()
        if done is None:
            return False
        self.go_on(2)
        wrong = self.outcome.wrong_batches(self.place / "out", done)
        if wrong:
            self.say(f"SILENT: batches {wrong} are wrong right after {done.how}: {done.file}")
        return True

    def rescale(self, rng: random.Random) -> bool:
        """Between two runs of the queries, change the first one to another parallelism; or be killed meanwhile."""
        present, most = self.shape["parallelism"], min(8, self.shape["max_parallelism"])
        if most == 1 or not CAN_RESCALE or not self._stopped_with_state():
            return False
        wanted = rng.choice([number for number in range(1, most + 1) if number != present])

        def begin() -> None:
            self._write_shape(parallelism=wanted)
            self.before = self._newest("commits")

        def done() -> None:
            # The batch that did it, which has no epoch of the program's.
            last = self._newest("commits")
            self._write_shape(shift=self.shape["shift"] - (last - self.before))
            self.without_input.add((self.checkpoint.name, last))

        self._go_through([("finish", begin), ("rescale", done)], self._is_rescaling, rng)
        self.say(f"from {present} to {wanted} tasks at a time{', which is not done yet' if self.pending else ''}")
        return not self.pending

    def move(self, rng: random.Random) -> bool:
        """Between two runs of the queries, have the first one go on from a savepoint, on a new checkpoint."""
        return self._move(rng, crossing=False)

    def cross(self, rng: random.Random) -> bool:
        """The same, while another thread of the driver writes savepoints of the old checkpoint."""
        crossed = self.crossed
        return self._move(rng, crossing=True) and self.crossed > crossed

    def _move(self, rng: random.Random, *, crossing: bool) -> bool:
        if not self._stopped_with_state():
            return False
        self.moves += 1
        savepoint = self.home / f"savepoint-{self.moves}"
        parallelism = rng.choice([1, 2, 3])
        self._write_shape(**{"next savepoint": str(savepoint)})

        def done() -> None:
            # Batch 0 of the new checkpoint takes the state; batch 1 has the epoch behind that of the savepoint.
            if crossing:
                to = str(self.home / f"crossed-{self.moves}")
                self._write_shape(crossing={"checkpoint": str(self.checkpoint), "savepoint": to})
            self.without_input.add((f"checkpoint-{self.moves}", 0))
            self._write_shape(
                shift=self.shape["shift"] + self._newest("commits"),
                checkpoint=f"checkpoint-{self.moves}",  # Spark reads no state where there is a space in the path
                savepoint=str(savepoint),
                parallelism=parallelism,
                max_parallelism=parallelism * rng.choice([1, 2, 5]),
            )

        self._go_through([("savepoint", done)], lambda: any(files for _, _, files in os.walk(savepoint / "state")), rng)
        self.say(f"through a savepoint{', which is not done yet' if self.pending else ''}")
        return not self.pending

    def _stopped_with_state(self) -> bool:
        if not self.stopped():
            return False
        if self._newest("commits") < 0:
            self.start_again()
            return False
        return True

    def _is_rescaling(self) -> bool:
        return self._newest("offsets") > self._newest("commits")

    def _go_through(
        self, orders: list[tuple[str, Callable[[], None]]], is_half: Callable[[], Any], rng: random.Random
    ) -> None:
        """Have orders carried out before queries are started again; half of the time the driver is killed meanwhile.

        Args:
            is_half: whether the last one is half done.
        """
        self.pending += orders
        if rng.random() < 0.5 and self._carry_out(leave=1):
            order, said = self.pending[0][0], len(self.driver.said())
            self.driver.order(f"{order} {self.place}")
            self.until(lambda: is_half() or self.driver.has_answered(order, said), recovering=False)
            time.sleep(rng.choice([0.0, rng.uniform(0, 1)]))
            done = self.driver.has_done(order, said)
            self.driver.end(rng.choice(["all", "all", "jvm", "driver"]))
            self.say(f"killed {'behind' if done else 'in the middle of'} {order}")
        if self.driver.failure() is None or not self.driver.is_alive():
            self.start_again()

    def two_drivers(self, rng: random.Random) -> bool:
        """Another driver on the same checkpoint: one of them must give way."""
        other = self._new_driver()
        if not self.until(other.is_ready) or not self.until(self.driver.is_running):
            other.end()
            return False
        # It takes longer to begin: so that not too much is done by then, this one begins anew.
        if not self.stopped():
            other.end()
            return False
        other.order(f"start {self.place}")
        self.until(lambda: other.has_answered("start", 1), recovering=False)
        self.order(f"start {self.place}")
        # Each is let alone until the other one has given way: one that is started again would make the next one fail.
        one_gave_way = self.until(lambda: other.failure() or self.driver.failure(), recovering=False)
        if other.failure() is None and one_gave_way:
            self.driver, other = other, self.driver
        self.say(f"two drivers, one has given way: {reason(other.failure() or 'no: all was done')}")
        other.end()
        return one_gave_way

    def copy_the_checkpoint(self, rng: random.Random) -> bool:
        """Copy the checkpoint while it is written, and start from the copy: that fails clearly, or goes on."""
        copy = self.home / "copy"
        copy.mkdir()
        with suppress(shutil.Error):  # files that went meanwhile
            shutil.copytree(self.checkpoint, copy / self.checkpoint.name)
        # It goes on as the first one does now, whatever becomes of that.
        (copy / "shape.json").write_text(json.dumps(self.shape))
        self.copied = self._new_driver()
        self.copied.order(f"start-first {copy}")
        return True

    # -- all of it --

    def _next_of(self, kinds: Sequence[str]) -> int:
        """Return the place of the next fault. One that needs another driver lets others go first until there is one."""
        if self.COSTLY.keys() & kinds[:3]:
            self.spare = self._new_driver()
        if kinds[0] in self.COSTLY and not (self.spare and self.spare.is_ready()):
            return next((place for place, kind in enumerate(kinds) if kind not in self.COSTLY), 0)
        return 0

    def run(self) -> None:
        """Run the programs to their end, through all faults."""
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
        frames = frames_answer(self.epochs, self.shape["bounds"], self.shape["how"])
        if self.shape["sinks"]["frames"] == "parquet":
            self.outcome.check_files(LoggedFiles(self.place / "frames"), frames)
        else:
            self.outcome.check_frames(self.place / "frames", frames)
        self.outcome.check_first_sums(self.home / "first sums")
        if self.mode is not None:
            self.outcome.check_squares(self.place / "squares", may_give_up=self.mode == "deadline")

    answers: dict[str, int] = {}

    def result(self) -> dict[str, Any]:
        """Return what has happened."""
        return {
            "seed": self.seed,
            "master": "local-cluster" if self.is_cluster else "local",
            "second": self.mode,
            "faults": sum(self.faults.values()),
            "kinds": dict(sorted(self.faults.items())),
            "lost": self.outcome.lost,
            "doubled": self.outcome.doubled,
            "silent": self.outcome.silent,
            "unexplained": self.unexplained,
            "damages": [[one.file, one.how, one.outcome(), one.said] for one in self.outcome.damages],
            "damage_noticed": sum(one.noticed_at is not None for one in self.outcome.damages),
            "failures": self.failures,
            "drivers": self.started,
            "service": {name: self.answers[name] for name in ("hung", "500", "twice") if name in self.answers},
            "given_up": self.outcome.given_up,
        }


def run_seed(seed: int, archive: Path | None = None, epochs: int = EPOCHS, only: Sequence[str] = ()) -> dict[str, Any]:
    """Run a seed; return what happened. What it wrote stays where it is if something went wrong.

    Args:
        archive: where the JVMs of further seeds find their classes.
        epochs: as for :class:`ChaosRun`.
        only: likewise.
    """
    began = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix=f"pillarbox-chaos-{seed}-"))
    chaos = Chaos(seed, home, archive, epochs, only)
    error = ""
    try:
        chaos.run()
    except Exception:
        error = traceback.format_exc()
        chaos.say(f"FAILED: {error}")
    except BaseException:  # somebody ends it
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
    """Tell whether nothing went wrong."""
    return not result["error"] and not any(result[name] for name in BAD)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed; by default each is drawn by the clock")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--minutes", type=float, default=0, help="begin with further seeds for so long")
    kinds_of_faults = sorted(Chaos.CHEAP | Chaos.RESTARTING | Chaos.COSTLY)
    parser.add_argument("--only", nargs="+", default=(), choices=kinds_of_faults, help="these faults, in this order")
    options = parser.parse_args(arguments)
    # Whoever ends this process ends its drivers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    until = time.monotonic() + 60 * options.minutes
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="pillarbox-chaos-") as shared:
        archive = Path(shared) / "classes.jsa" if options.seeds > 1 or options.minutes else None
        while len(results) < options.seeds or time.monotonic() < until:
            seed = time.time_ns() // 1000 % 10**6 if options.seed is None else options.seed + len(results)
            print(f"seed {seed}; to do it again: make chaos SEED={seed}", flush=True)
            results.append(run_seed(seed, archive, only=options.only))
    kinds: Counter[str] = Counter()
    for result in results:
        kinds.update(result["kinds"])
    wrong = [result["seed"] for result in results if not is_right(result)]
    sums = {name: sum(result[name] for result in results) for name in ("faults", *BAD, "damage_noticed", "seconds")}
    print(json.dumps({"seeds": len(results), **sums, "wrong_seeds": wrong, "kinds": dict(sorted(kinds.items()))}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
