"""The faults of ``make chaos``. Each method returns whether it has caused its fault."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark

from tests.faults.chaos.cluster import reason
from tests.faults.chaos.damage import damage
from tests.faults.chaos.run import HOUR, SECOND, ChaosRun
from tests.faults.programs import async_job
from tests.faults.programs.job import FileSink

__all__ = ["ChaosFaults"]

CAN_RESCALE = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
READERS = {"inspect": 2, "read_state": 4, "savepoint": 1}  # the last one takes as long as many batches
# Valid errors of a reader whose checkpoint belongs to a running query with few retained batches.
CLEANED_AWAY = ("has removed state", "has been removed")


class ChaosFaults(ChaosRun):
    def send(self, processes: Callable[[], Sequence[int]], number: int, rng: random.Random) -> bool:
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

    def kill_home(self, rng: random.Random) -> bool:
        return self.send(lambda: self.driver.homes()[1], signal.SIGKILL, rng)

    def stop_home(self, rng: random.Random) -> bool:
        return self.send(lambda: self.driver.homes()[1], signal.SIGSTOP, rng)

    def kill_starter(self, rng: random.Random) -> bool:
        return self.send(lambda: self.driver.homes()[0], signal.SIGKILL, rng)

    def kill_executor(self, rng: random.Random) -> bool:
        return self.send(lambda: self.driver.java()[1:], signal.SIGKILL, rng)

    def kill_driver(self, rng: random.Random) -> bool:
        self.driver.end(rng.choice(["all", "all", "jvm", "driver"]))
        self.start_again()
        return True

    def set_the_clock(self, rng: random.Random) -> bool:
        far = 4 * SECOND if self.mode == "timers" else HOUR  # timers may wait for as long as it was set back
        return self._set_clock(rng.choice([to for to in (-far, far, rng.randrange(-far, far), 0) if to != self.ahead]))

    def fill_the_sink(self, rng: random.Random) -> bool:
        marker = self.home / f"sink is full {self.faults['fill_the_sink']}"
        marker.touch()
        return self.until(lambda: not marker.exists())

    def fill_the_disk(self, rng: random.Random) -> bool:
        result, until_it_dies = self.driver.java(), rng.random() < 0.5
        if not result:
            return False
        process = result[0]
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
        return self._in_the_sink("stop", rng)

    def die_in_the_sink(self, rng: random.Random) -> bool:
        return self._in_the_sink("die in", rng)

    def _in_the_sink(self, what: str, rng: random.Random) -> bool:
        name = rng.choice(["first"] if self.shape["sinks"]["frames"] == "parquet" else ["first", "frames"])
        marker = self.home / f"{what} {name} {self.faults.total()}"
        marker.touch()
        happened = self.until(lambda: not marker.exists())
        marker.unlink(missing_ok=True)
        return happened

    def undo_a_commit(self, rng: random.Random) -> bool:
        """Remove a query's last commit from Spark's commit log between two runs.

        A driver that dies between the sink's commit and Spark's commit leaves this state.
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
        if not self.until(lambda: self._newest("commits") >= 0):
            return False
        driver, count, reader = (
            self.driver,
            len(self.driver.said()),
            rng.choices(list(READERS), list(READERS.values()))[0],
        )
        order = f"read-{reader} {self.place}"
        driver.order(order)
        if not self.until(lambda: driver.has_answered(order, count)):
            return False
        document = next((json.loads(why) for what, why in driver.said()[count:] if what == "read"), None)
        if document is None:
            return False
        self.say(f"{reader}: {document.get('error', 'epoch {}'.format(document.get('epoch')))[:3000]}")
        if error := document.get("error"):
            is_fair = error.startswith("CheckpointMismatchError") and any(text in error for text in CLEANED_AWAY)
            if not is_fair and ("FileNotFound" in error or not self._is_explained()):
                self.unexplained += 1
                self.say(f"UNEXPLAINED: {reader}")
        elif document["totals"] is not None:
            totals = {int(key): total for key, total in document["totals"].items()}
            self.outcome.compare_totals(document["epoch"] + self.shape["shift"], totals, reader)
        return True

    def end_of_work(self, rng: random.Random) -> bool:
        if not self.stopped():
            return False
        if rng.random() < 0.5:
            far = rng.choice([-1500, 1500])
            self._write_clock(far)
        due, count = async_job.count_of(self.epochs[: self.given]), len(self.driver.said())
        self.order(f"available {self.place}")
        happened = self.driver.has_done("available", count)
        if happened and self.mode == "carry":
            # A timer may be due later; but no request is left without an answer.
            squares = async_job.batches_of(FileSink(self.place / "squares"))
            result = sum(map(len, squares.values()))
            self.say(f"by the end of its work, the second program has answered {result} of {due}")
            if result < due:
                self.unexplained += 1
                self.say("UNEXPLAINED: requests are left without an answer")
        if self.driver.failure() is None or not self.driver.is_alive():
            self.start_again()
        return happened

    def damage_a_file(self, rng: random.Random) -> bool:
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
        present, most = self.shape["parallelism"], min(8, self.shape["max_parallelism"])
        if most == 1 or not CAN_RESCALE or not self._stopped_with_state():
            return False
        target = rng.choice([number for number in range(1, most + 1) if number != present])

        def begin() -> None:
            self._write_shape(parallelism=target)
            self.before = self._newest("commits")

        def done() -> None:
            # The batch of the change, which is not an epoch of the program.
            last = self._newest("commits")
            self._write_shape(shift=self.shape["shift"] - (last - self.before))
            self.without_input.add((self.checkpoint.name, last))

        self._go_through([("finish", begin), ("rescale", done)], self._is_rescaling, rng)
        self.say(f"from {present} to {target} tasks at a time{', which is not done yet' if self.pending else ''}")
        return not self.pending

    def move(self, rng: random.Random) -> bool:
        return self._move(rng, crossing=False)

    def cross(self, rng: random.Random) -> bool:
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
            # Batch 0 of the new checkpoint restores the state; batch 1 is the epoch after the savepoint's.
            if crossing:
                to = str(self.home / f"crossed-{self.moves}")
                self._write_shape(crossing={"checkpoint": str(self.checkpoint), "savepoint": to})
            self.without_input.add((f"checkpoint-{self.moves}", 0))
            self._write_shape(
                shift=self.shape["shift"] + self._newest("commits"),
                checkpoint=f"checkpoint-{self.moves}",  # Spark cannot read state in a path with a space
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
        """Send orders to the driver before the queries restart. In half of the cases, kill the driver during an order.

        Args:
            is_half: returns whether the last order is half done.
        """
        self.pending += orders
        if rng.random() < 0.5 and self._carry_out(leave=1):
            order, count = self.pending[0][0], len(self.driver.said())
            self.driver.order(f"{order} {self.place}")
            self.until(lambda: is_half() or self.driver.has_answered(order, count), recovering=False)
            time.sleep(rng.choice([0.0, rng.uniform(0, 1)]))
            done = self.driver.has_done(order, count)
            self.driver.end(rng.choice(["all", "all", "jvm", "driver"]))
            self.say(f"killed {'behind' if done else 'in the middle of'} {order}")
        if self.driver.failure() is None or not self.driver.is_alive():
            self.start_again()

    def two_drivers(self, rng: random.Random) -> bool:
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
        copy = self.home / "copy"
        copy.mkdir()
        with suppress(shutil.Error):  # files that were removed during the copy
            shutil.copytree(self.checkpoint, copy / self.checkpoint.name)
        # It continues like the first driver, independently of it.
        (copy / "shape.json").write_text(json.dumps(self.shape))
        self.copied = self._new_driver()
        self.copied.order(f"start-first {copy}")
        return True
