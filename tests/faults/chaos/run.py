"""The run of one seed of ``make chaos``: programs, cluster, and recovery from failures."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from examples.enrichment.service import running_service
from examples.service_process import RunningService
from tests.faults.chaos.cluster import Driver, reason, spark_home
from tests.faults.chaos.outcome import Outcome
from tests.faults.chaos.sinks import SINKS
from tests.faults.clock import is_seen, set_clock
from tests.faults.oracles.oracle import answer
from tests.faults.parts.part import BOUNDS, Joined
from tests.faults.programs import async_job, second_job
from tests.faults.programs.job import TOO_BUSY, FileSink, make_events, write_events, write_fixed_epochs
from tests.faults.programs.limited_job import first_sums_answer
from tests.faults.programs.second_job import ASKING, MODES, WAITING
from tests.operators_table.table import chaos_parts

__all__ = ["EPOCHS", "HOUR", "PATIENCE", "SECOND", "ChaosRun"]

EPOCHS = 14
# Time limit of waits (seconds), generous enough for a busy machine.
PATIENCE = 1_800
HOMES = ("fork", "off", "fork", "spawn", "fork", "fork", "fork")
FAILURES = 30  # of queries and drivers in one seed, at the most
SECOND = 1000
HOUR = 3600 * SECOND


class ChaosRun:
    """The run of one seed: its programs and their drivers.

    Args:
        archive: an archive of Java classes, for faster starts of JVMs.
        epochs: number of epochs. If it is less than `EPOCHS`, there are fewer faults.
        only: faults to cause, in this order, instead of the seed's faults.
        homes: mode of the home processes, instead of the seed's mode.
    """

    def __init__(
        self,
        seed: int,
        home: Path,
        archive: Path | None = None,
        epochs: int = EPOCHS,
        only: Sequence[str] = (),
        homes: str | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.only = only
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
        keys, grain = self.rng.choice([5, 40]), self.rng.choice([1, 1, 1000])
        self.epochs = make_events(seed, epochs=epochs, keys=keys, one_sided=0.3, grain=grain)
        self.share = epochs / EPOCHS
        # The joins of the first program, and of the DataFrame functions.
        self.joined, self.joined_frames = (
            Joined(self.rng.choice(BOUNDS), self.rng.choice(["left", "left", "inner"])) for _ in range(2)
        )
        self.right = answer(self.epochs, chaos_parts(self.joined))
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
            "homes": homes or HOMES[seed % 7],
            "mode": self.mode,
            "service": None if self.service is None else self.service.url,
            "epochs": len(self.epochs),
            "records": async_job.count_of(self.epochs),
            "faults": self._planned(),
            "checkpoint": "checkpoint",
            "savepoint": None,
            # Number of a batch in this checkpoint minus the number of its input's epoch.
            "shift": 0,
            # Any six seeds in a row have each sink of the DataFrame functions with both of the first program.
            "sinks": {"first": SINKS[seed % 2], "frames": SINKS[seed % 3]},
            "joined": {"first": self.joined, "frames": self.joined_frames},
            # Whether each query is planned and started in its own thread, and the method that starts them.
            "threads": self.rng.random() < 0.5,
            "starter": self.rng.choice(["writer", "pillarbox"]),
            # Spark keeps so many batches, and so many entries of a sink's log until it writes them as one.
            "retained": self.rng.choice([2, 100]),
            "compacted": self.rng.choice([2, 3, 10]),
            # The checkpoint whose savepoints are written while the first program starts from one, and their folder.
            "crossing": None,
        }
        # Batches of the first program's checkpoints without input of the program.
        self.without_input: set[tuple[str, int]] = set()
        self.given = 0  # epochs of input that the second program has, if it receives them one by one
        # The orders to the stopped first program that are not carried out yet, and what to do then.
        self.pending: list[tuple[str, Callable[[], None]]] = []
        self.before = self.moves = self.crossed = 0
        self.environment = {"PILLARBOX_FAULT_CLOCK": str(home / "clock")}
        if self.rng.random() < 0.5:
            self.environment["PILLARBOX_FAULT_SMALL_LOG"] = "1"
        self.archive = None if self.is_cluster else archive
        if self.is_cluster:
            self.environment["SPARK_HOME"] = spark_home(home / "spark")
        if self.archive is not None:
            self.environment["PILLARBOX_CHAOS_ARCHIVE"] = str(self.archive)
        self._write_shape()
        (home / "squares in").mkdir()
        self.feed()
        if self.mode in WAITING:
            # From the beginning the workers' clock is not the driver's.
            self.settings_of_the_clock, self.ahead = 1, self.rng.choice([-1500, 0, 1500])
            set_clock(home / "clock", 1, self.ahead)
        self.say(f"{self.shape}")

    def _write_shape(self, **changes: Any) -> None:
        self.shape |= changes
        part = self.home / "shape.new"
        part.write_text(json.dumps(self.shape))
        part.rename(self.home / "shape.json")

    def say(self, what: str) -> None:
        print(f"seed {self.seed}, {time.monotonic() - self.began:.0f} s: {what}", flush=True)

    def _planned(self) -> list[dict[str, Any]]:
        points = {**self.right.points, "answered": self.right.points["element"]}
        points["restored"] = self.right.points["snapshot"]
        points["limited"] = [first_sums_answer(self.epochs)]
        names = self.rng.sample(sorted(self.right.points), 4)
        planned = []
        for name in [*names, "limited", "restored", *(["answered"] if self.mode else [])]:
            at = self.rng.choice([point for epoch in points[name] for point in epoch])
            # An error at a refused record or timer would be another dead letter.
            action = "kill" if name in ("letter", "letter timer") else self.rng.choice(["kill", "raise"])
            planned.append({"place": name, "at": at, "action": action})
        return [] if self.only else planned

    # -- going on --

    def _new_driver(self) -> Driver:
        driver, self.spare = self.spare, None
        if driver is None:
            self.started += 1
            driver = Driver(self.home, self.started, self.environment)
            self._stack.callback(driver.end)
        return driver

    def batches(self) -> int:
        return len(FileSink(self.place / "out").batches())

    def until(self, condition: Callable[[], Any], *, recovering: bool = True) -> bool:
        patience = time.monotonic() + PATIENCE
        while not condition():
            if self.driver.is_done():
                return False
            if recovering:
                self.recover()
            self.feed()
            self.look_at_the_copy()
            if time.monotonic() > patience:
                raise TimeoutError(f"not in {PATIENCE} s: {self.driver.said()[-1:]} {self.driver.log()}")
            time.sleep(0.05)
        return True

    def feed(self) -> None:
        if self.mode not in WAITING or self.given == len(self.epochs):
            return
        result = sum(map(len, async_job.batches_of(FileSink(self.place / "squares")).values()))
        if result >= async_job.count_of(self.epochs[: self.given]):
            write_events(self.epochs[self.given : self.given + 1], self.home / "squares in", first=self.given)
            self.given += 1

    def go_on(self, batches: int) -> bool:
        expected = self.batches() + batches
        return self.until(lambda: self.batches() >= expected)

    def recover(self) -> None:
        failure = self.driver.failure()
        if failure is None:
            return
        why = reason(failure)
        self.say(f"failed: {why}")
        self.failures += 1
        if self.failures > FAILURES:
            raise RuntimeError(f"the {self.failures}th failure: {failure[:3000]}")
        if self.driver.hung():
            self.unexplained += 1
            self.say(f"UNEXPLAINED: the driver hung: {self.driver.log_file.read_text(errors='replace')[-20_000:]}")
        damages = [damage for damage in self.outcome.damages if damage.is_there() and damage.is_in(self.checkpoint)]
        if self._is_explained() or TOO_BUSY in failure:
            pass
        elif damages:
            for damage in damages:
                damage.take_back(self.batches(), why)
                self.say(f"noticed: {damage.how}: {damage.file}")
        else:
            self.unexplained += 1
            self.say(f"UNEXPLAINED: {failure[:6000]}")
        self.recovered_at = time.time()
        self.start_again()

    def start_again(self) -> None:
        if not self.driver.is_alive():
            self.driver.end()
            self.driver = self._new_driver()
        if self._carry_out():  # else it is looked at why not, before it is begun anew
            self.order(f"start {self.place}")
            if self.driver.is_running() and self.shape["crossing"] is not None:
                self.crossed += 1
                self._write_shape(crossing=None)

    @property
    def checkpoint(self) -> Path:
        return self.place / str(self.shape["checkpoint"])

    def _newest(self, log: str, checkpoint: Path | None = None) -> int:
        folder = (checkpoint or self.checkpoint) / log
        return max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)

    def order(self, what: str) -> None:
        driver, count = self.driver, len(self.driver.said())
        driver.order(what)
        self.until(lambda: driver.has_answered(what, count), recovering=False)

    def stopped(self) -> bool:
        self.order("stop")
        if self.driver.said()[-1] == ("stopped", ""):
            return True
        self.recover()
        return False

    def _is_explained(self) -> bool:
        batches = sorted(path.stat().st_mtime for path in (self.place / "out").glob("[0-9]*.json"))
        since = max([self.recovered_at, *batches[:-2]])
        points = [path.stat().st_mtime for path in (self.home / "faults").iterdir()]
        return any(at >= since for at in (*points, *self.blows))

    def _set_clock(self, milliseconds: int) -> bool:
        number = self._write_clock(milliseconds)
        return self.until(lambda: is_seen(self.home / "clock", number))

    def _write_clock(self, milliseconds: int) -> int:
        self.settings_of_the_clock += 1
        self.ahead = milliseconds
        set_clock(self.home / "clock", self.settings_of_the_clock, milliseconds)
        self.say(f"the clock is {milliseconds} ms ahead")
        return self.settings_of_the_clock

    def _carry_out(self, leave: int = 0) -> bool:
        while len(self.pending) > leave:
            (order, then), count = self.pending[0], len(self.driver.said())
            self.order(f"{order} {self.place}")
            if not self.driver.has_done(order, count):
                return False
            self.pending.pop(0)
            then()
        return True

    def look_at_the_copy(self) -> None:
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
