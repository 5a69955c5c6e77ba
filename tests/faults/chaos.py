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
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pyspark

from examples.enrichment.service import RunningService, running_service
from tests.faults import async_job, second_job
from tests.faults.chaos_cluster import Driver, reason, spark_home
from tests.faults.clock import is_seen, set_clock
from tests.faults.columns_oracle import frames_answer
from tests.faults.damage import damage
from tests.faults.job import TOO_BUSY, FileSink, make_events, write_fixed_epochs
from tests.faults.oracle import answer
from tests.faults.outcome import Outcome
from tests.faults.rolling_oracle import first_sums_answer
from tests.faults.second_job import ASKING, MODES

EPOCHS = 14
# Seconds for what is waited for: something is wrong then, however much else the machine has to do.
PATIENCE = 1_800
FAILURES = 30  # of queries and drivers in one seed, at the most
SECOND = 1000
HOUR = 3600 * SECOND
CAN_RESCALE = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)


class Chaos:
    """One seed's run.

    Args:
        epochs: how many there are; with fewer than `EPOCHS` there are fewer faults, too.
    """

    # Faults after which Spark goes on by itself; those after which a query has to start again; and those for which a
    # driver has to start, which takes the longest.
    CHEAP = {"kill_worker": 5, "stop_worker": 2, "kill_daemon": 2, "set_the_clock": 3}
    RESTARTING = {"damage_a_file": 3, "rescale": 1, "move": 1, "fill_the_sink": 1, "fill_the_disk": 1}
    COSTLY = {"kill_driver": 2, "two_drivers": 1, "copy_the_checkpoint": 1}

    def __init__(self, seed: int, home: Path, archive: Path | None = None, epochs: int = EPOCHS) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.began = time.monotonic()
        self.home = home
        self.place = home / "main"
        self.place.mkdir()
        (home / "faults").mkdir()
        self.faults: Counter[str] = Counter()
        self.failures = self.unexplained = 0
        # When there was a fault that may end a query (seconds), and when queries were started again last.
        self.blows: list[float] = []
        self.recovered_at = 0.0
        self.settings_of_the_clock = 0
        self.ahead = 0
        self.driver: Driver
        self.spare: Driver | None = None
        self.copied: Driver | None = None
        # Any twenty seeds in a row have each program on each kind of cluster.
        self.is_cluster = seed % 4 == 0
        self.mode: second_job.Mode | None = (None, *MODES)[seed % 5]
        self.epochs = make_events(seed, epochs=epochs, keys=self.rng.choice([5, 40]))
        self.share = epochs / EPOCHS
        self.right = answer(self.epochs, others=True)
        self.outcome = Outcome(self.epochs, self.right, self.say)
        write_fixed_epochs(self.epochs, home / "in.parquet")
        self.started = 0
        self._stack = ExitStack()
        self.service: RunningService | None = None
        latency = self.rng.choice([5, 50])
        if self.mode in ASKING:
            troubles: dict[str, Any] = {"latency": latency, "errors": 0.03, "twice": 0.03, "hangs": 0.003}
            self.service = self._stack.enter_context(running_service(seed=seed, **troubles))
        self.shape: dict[str, Any] = {
            "master": "local-cluster[2,1,1024]" if self.is_cluster else None,
            "cores": self.rng.choice([2, 2, 3]),
            "parallelism": (parallelism := self.rng.choice([1, 2, 3])),
            "max_parallelism": parallelism * (1, 8, 2)[seed % 3],
            "mode": self.mode,
            "service": None if self.service is None else self.service.url,
            "epochs": len(self.epochs),
            "records": async_job.count_of(self.epochs),
            "faults": self._planned(),
            "checkpoint": "checkpoint",
            "savepoint": None,
            # From the number of a batch in this checkpoint to that of the epoch whose input it has.
            "shift": 0,
        }
        # The orders to the stopped first program that are not carried out yet, and what to do then.
        self.pending: list[tuple[str, Callable[[], None]]] = []
        self.before = self.moves = 0
        self.environment = {"PILLARBOX_FAULT_CLOCK": str(home / "clock")}
        if self.rng.random() < 0.5:
            self.environment["PILLARBOX_FAULT_SMALL_LOG"] = "1"
        self.archive = None if self.is_cluster else archive
        if self.is_cluster:
            self.environment["SPARK_HOME"] = spark_home(home / "spark")
        if self.archive is not None:
            self.environment["PILLARBOX_CHAOS_ARCHIVE"] = str(self.archive)
        self._write_shape()
        self.say(f"{self.shape}")

    def _write_shape(self, **changes: Any) -> None:
        self.shape |= changes
        part = self.home / "shape.new"
        part.write_text(json.dumps(self.shape))
        part.rename(self.home / "shape.json")

    def say(self, what: str) -> None:
        print(f"seed {self.seed}, {time.monotonic() - self.began:.0f} s: {what}", flush=True)

    def _planned(self) -> list[dict[str, Any]]:
        """Draw faults at a record, timer or snapshot: they happen wherever that is handled first."""
        points = {**self.right.points, "answered": self.right.points["element"]}
        points["limited"] = [first_sums_answer(self.epochs)]
        names = self.rng.sample(sorted(self.right.points), 4)
        planned = []
        for name in [*names, "limited", *(["answered"] if self.mode else [])]:
            at = self.rng.choice([point for epoch in points[name] for point in epoch])
            # What is raised where a record or a timer is refused would be one more dead letter.
            action = "kill" if name in ("letter", "letter timer") else self.rng.choice(["kill", "raise"])
            planned.append({"place": name, "at": at, "action": action})
        return planned

    def draw(self) -> list[str]:
        """Draw the faults of a run, in their order."""
        costly = dict(self.COSTLY)
        if self.mode not in (None, "drain"):
            # Which rows a batch has is not settled beforehand, so with any sink two drivers may mix two versions of it.
            del costly["two_drivers"]
        chosen = self._choices(self.CHEAP, round(6 * self.share)) + self._choices(
            self.RESTARTING, round(2 * self.share)
        )
        chosen += ["kill_executor", "kill_executor"] if self.is_cluster else self._choices(costly, 1)
        self.rng.shuffle(chosen)
        return chosen

    def _choices(self, weights: dict[str, int], count: int) -> list[str]:
        return self.rng.choices(list(weights), list(weights.values()), k=count)

    # -- going on --

    def _new_driver(self) -> Driver:
        """Return the spare driver, or else another one."""
        driver, self.spare = self.spare, None
        if driver is None:
            self.started += 1
            driver = Driver(self.home, self.started, self.environment)
            self._stack.callback(driver.end)
        return driver

    def batches(self) -> int:
        return len(FileSink(self.place / "out").batches())

    def until(self, condition: Callable[[], Any], *, recovering: bool = True) -> bool:
        """Wait for something, starting again what has ended; tell whether it came before all was done."""
        patience = time.monotonic() + PATIENCE
        while not condition():
            if self.driver.is_done():
                return False
            if recovering:
                self.recover()
            self.look_at_the_copy()
            if time.monotonic() > patience:
                raise TimeoutError(f"not in {PATIENCE} s: {self.driver.said()[-1:]} {self.driver.log()}")
            time.sleep(0.05)
        return True

    def go_on(self, batches: int) -> bool:
        """Wait for so many batches more; tell whether there is more to do."""
        wanted = self.batches() + batches
        return self.until(lambda: self.batches() >= wanted)

    def recover(self) -> None:
        """Start what has ended, having looked why it did."""
        failure = self.driver.failure()
        if failure is None:
            return
        why = reason(failure)
        self.say(f"failed: {why}")
        self.failures += 1
        if self.failures > FAILURES:
            raise RuntimeError(f"the {self.failures}th failure: {failure[:3000]}")
        damages = [one for one in self.outcome.damages if one.is_there() and one.is_in(self.checkpoint)]
        if self._is_explained() or TOO_BUSY in failure:
            pass
        elif damages:
            for one in damages:
                one.take_back(self.batches(), why)
                self.say(f"noticed: {one.how}: {one.file}")
        else:
            self.unexplained += 1
            self.say(f"UNEXPLAINED: {failure[:6000]}")
        self.recovered_at = time.time()
        self.start_again()

    def start_again(self) -> None:
        """Have the queries run, by another driver where there is none."""
        if not self.driver.is_alive():
            self.driver.end()
            self.driver = self._new_driver()
        if self._carry_out():  # else it is looked at why not, before it is begun anew
            self.order(f"start {self.place}")

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of the first program."""
        return self.place / str(self.shape["checkpoint"])

    def _newest(self, log: str) -> int:
        """Return the newest number in one of Spark's logs of the first program."""
        return max((int(path.name) for path in (self.checkpoint / log).glob("[0-9]*")), default=-1)

    def order(self, what: str) -> None:
        """Give the driver an order, and wait until it is carried out."""
        driver, said = self.driver, len(self.driver.said())
        driver.order(what)
        self.until(lambda: driver.has_answered(what, said), recovering=False)

    def stopped(self) -> bool:
        """Stop the queries; tell whether they have not failed or come to their end just before."""
        self.order("stop")
        if self.driver.said()[-1] == ("stopped", ""):
            return True
        self.recover()
        return False

    def _is_explained(self) -> bool:
        """Tell whether there was a fault just before: within two batches, and since queries were started again."""
        batches = sorted(path.stat().st_mtime for path in (self.place / "out").glob("[0-9]*.json"))
        since = max([self.recovered_at, *batches[:-2]])
        points = [path.stat().st_mtime for path in (self.home / "faults").iterdir()]
        return any(at >= since for at in (*points, *self.blows))

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

    def _set_clock(self, milliseconds: int) -> bool:
        self.settings_of_the_clock += 1
        self.ahead = milliseconds
        number, file = self.settings_of_the_clock, self.home / "clock"
        set_clock(file, number, milliseconds)
        self.say(f"the clock is {milliseconds} ms ahead")
        return self.until(lambda: is_seen(file, number))

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
            self._write_shape(shift=self.shape["shift"] - (self._newest("commits") - self.before))

        self._go_through([("finish", begin), ("rescale", done)], self._is_rescaling, rng)
        self.say(f"from {present} to {wanted} tasks at a time{', which is not done yet' if self.pending else ''}")
        return not self.pending

    def move(self, rng: random.Random) -> bool:
        """Between two runs of the queries, have the first one go on from a savepoint, on a new checkpoint."""
        if not self._stopped_with_state():
            return False
        self.moves += 1
        savepoint = self.home / f"savepoint-{self.moves}"
        parallelism = rng.choice([1, 2, 3])
        self._write_shape(**{"next savepoint": str(savepoint)})

        def done() -> None:
            # Batch 0 of the new checkpoint takes the state; batch 1 has the epoch behind that of the savepoint.
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

    def _carry_out(self, leave: int = 0) -> bool:
        """Have the driver do what is pending, but for the last orders; tell whether it has."""
        while len(self.pending) > leave:
            (order, then), said = self.pending[0], len(self.driver.said())
            self.order(f"{order} {self.place}")
            if not self.driver.has_done(order, said):
                return False
            self.pending.pop(0)
            then()
        return True

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

    def look_at_the_copy(self) -> None:
        """Compare what has come of the copy, as soon as it has failed or gone on for two batches."""
        if self.copied is None:
            return
        sink, failure = FileSink(self.home / "copy" / "out"), self.copied.failure()
        if failure is None and len(sink.batches()) < 2:
            return
        self.copied.end()
        self.copied = None
        self.say(f"from a copy: {len(sink.batches())} batches, {'it goes on' if failure is None else reason(failure)}")
        for batch, rows in sink.output().items():
            self.outcome.compare_batch(batch, rows, f"the copy's batch {batch}")

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
        self.outcome.check_frames(self.place / "frames", frames_answer(self.epochs))
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


def run_seed(seed: int, archive: Path | None = None, epochs: int = EPOCHS) -> dict[str, Any]:
    """Run a seed; return what happened. What it wrote stays where it is if something went wrong.

    Args:
        archive: where the JVMs of further seeds find their classes.
        epochs: as for :class:`Chaos`.
    """
    began = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix=f"pillarbox-chaos-{seed}-"))
    chaos = Chaos(seed, home, archive, epochs)
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
            results.append(run_seed(seed, archive))
    kinds: Counter[str] = Counter()
    for result in results:
        kinds.update(result["kinds"])
    wrong = [result["seed"] for result in results if not is_right(result)]
    sums = {name: sum(result[name] for result in results) for name in ("faults", *BAD, "damage_noticed", "seconds")}
    print(json.dumps({"seeds": len(results), **sums, "wrong_seeds": wrong, "kinds": dict(sorted(kinds.items()))}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
