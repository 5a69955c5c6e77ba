"""Programs on Spark under faults drawn from a seed: ``python -m tests.faults.chaos --seed 7 --minutes 10``.

A seed draws the shape of a cluster, programs, their input and the faults: what is killed, stopped, filled up or
damaged. The moments are those of a real run: a seed repeats its faults, not the microsecond at which they come. At the
end every row is compared with what plain Python works out. One seed follows the other until the time is up; the last
line is a summary in JSON, and the exit code says whether all was right.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from examples.enrichment.service import RunningService, running_service
from tests.faults import async_job
from tests.faults.job import FileSink, make_events, write_fixed_epochs
from tests.faults.oracle import answer
from tests.faults.test_driver import ROOT, kill, members

EPOCHS = 14
STARTS_WITHIN = 240  # seconds, on a machine that has other things to do
DRIVERS = 14  # of one seed, at the most


class Chaos:
    """One seed's run."""

    def __init__(self, seed: int, home: Path) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.home = home
        self.place = home / "main"
        self.place.mkdir()
        (home / "faults").mkdir()
        self.faults: Counter[str] = Counter()
        self.noticed = 0
        self.damaged = 0
        self.epochs = make_events(seed, epochs=EPOCHS, keys=self.rng.choice([5, 40]))
        self.right = answer(self.epochs)
        self.mode: async_job.Mode | None = self.rng.choice([None, *async_job.MODES])
        self.drivers = 0
        write_fixed_epochs(self.epochs, home / "in.parquet")
        self._stack = ExitStack()
        service: RunningService | None = None
        if self.mode is not None:
            troubles: dict[str, Any] = {"latency": self.rng.choice([5, 50]), "errors": 0.05, "hangs": 0.005}
            service = self._stack.enter_context(running_service(seed=seed, **troubles))
        self.shape = {
            "cores": self.rng.choice([2, 2, 3]),
            "parallelism": self.rng.choice([1, 2, 3]),
            "mode": self.mode,
            "service": None if service is None else service.url,
            "epochs": len(self.epochs),
            "records": async_job.count_of(self.epochs),
            "faults": self._planned(),
        }
        (home / "shape.json").write_text(json.dumps(self.shape))
        self.say(f"{self.shape}")

    def say(self, what: str) -> None:
        print(f"seed {self.seed}: {what}", flush=True)

    def _planned(self) -> list[dict[str, Any]]:
        """Draw faults at a record, timer or snapshot: they happen wherever that is handled first."""
        points: dict[str, list[list[Any]]] = {
            "source": [[event.id for part in parts for event in part] for parts in self.epochs],
            "element": [[event.id for part in parts for event in part] for parts in self.epochs[:-1]],
            "changed": [[event.id for part in parts for event in part] for parts in self.epochs[:-1]],
            "snapshot": self.right.last_of_key,
            "timer": self.right.timers,
            "second": self.right.second,
            "second timer": self.right.second_timers,
        }
        planned = []
        for name in self.rng.sample(sorted(points), 4):
            at = self.rng.choice([point for epoch in points[name] for point in epoch])
            planned.append({"place": name, "at": at, "action": self.rng.choice(["kill", "raise"])})
        return planned

    # -- drivers --

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have a driver, and no process left of any in the end."""
        self.driver = self._start(self.place)
        try:
            yield
        finally:
            self._end(self.driver)
            self._stack.close()

    def _start(self, place: Path) -> subprocess.Popen[bytes]:
        self.drivers += 1
        path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        small_log = {"PILLARBOX_FAULT_SMALL_LOG": "1"} if self.seed % 2 else {}
        with (place / "log").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.faults.chaos_driver", str(self.home), str(place)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1", **small_log},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _end(self, driver: subprocess.Popen[bytes], victim: str = "all") -> None:
        for process in members(driver.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
        kill(driver.pid, victim)
        driver.wait()

    def batches(self) -> int:
        return len(FileSink(self.place / "out").batches())

    def is_done(self) -> bool:
        return (self.place / "done").exists()

    def wait(self, batches: int) -> bool:
        """Wait for so many batches more; tell whether the driver is alive and has more to do."""
        wanted = self.batches() + batches
        patience = time.monotonic() + STARTS_WITHIN
        while self.batches() < wanted and self.driver.poll() is None and not self.is_done():
            if time.monotonic() > patience:
                raise TimeoutError(f"no batch in {STARTS_WITHIN} s: {self.log()}")
            time.sleep(0.02)
        return self.driver.poll() is None and not self.is_done()

    def revive(self) -> None:
        """Start a driver again where there is none."""
        if self.driver.poll() is not None and not self.is_done():
            if self.drivers >= DRIVERS:
                raise TimeoutError(f"the {DRIVERS}th driver died: {self.log()}")
            self.say(f"the driver has ended: {self._reason()}")
            self._end(self.driver)
            self.driver = self._start(self.place)

    def log(self) -> str:
        return (self.place / "log").read_text(errors="replace")[-3000:]

    def _reason(self) -> str:
        lines = [line for line in self.log().splitlines() if "Error" in line or "Exception" in line]
        return lines[-1][:200] if lines else "no error in its log"

    # -- faults --

    def workers(self) -> tuple[list[int], list[int]]:
        """Return the daemons of Python workers, and the workers."""
        found = members(self.driver.pid)
        parents = {}
        for process in found:
            with suppress(OSError):
                rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                parents[process] = int(rest[1])
        java = {process for process, name in found.items() if name == "java"}
        daemons = [process for process, parent in parents.items() if parent in java and process not in java]
        return daemons, [process for process, parent in parents.items() if parent in daemons]

    def send(self, kind: str, number: int) -> bool:
        """Send a signal to a worker, or to the daemon."""
        daemons, workers = self.workers()
        chosen = daemons if kind == "daemon" else workers
        if not chosen:
            return False
        with suppress(ProcessLookupError):
            victim = self.rng.choice(sorted(chosen))
            os.kill(victim, number)
            if number == signal.SIGSTOP:
                time.sleep(self.rng.uniform(0.1, 1.5))
                os.kill(victim, signal.SIGCONT)
        return True

    def kill_worker(self) -> bool:
        return self.send("worker", signal.SIGKILL)

    def stop_worker(self) -> bool:
        return self.send("worker", signal.SIGSTOP)

    def kill_daemon(self) -> bool:
        return self.send("daemon", signal.SIGKILL)

    def kill_driver(self) -> bool:
        self._end(self.driver, self.rng.choice(["all", "all", "jvm", "driver"]))
        return True

    def fill_the_sink(self) -> bool:
        """The next batch finds the sink's disk full."""
        (self.home / f"sink is full {self.faults['fill_the_sink']}").touch()
        self.wait(1)
        return True

    def fill_the_disk(self) -> bool:
        """For a while, no file of the JVM may grow beyond some hundred bytes: checkpoints cannot be written."""
        for process, name in members(self.driver.pid).items():
            if name == "java":
                limits = resource.prlimit(process, resource.RLIMIT_FSIZE)
                with suppress(ProcessLookupError):
                    resource.prlimit(process, resource.RLIMIT_FSIZE, (self.rng.choice([0, 100, 4000]), limits[1]))
                    time.sleep(self.rng.uniform(0.2, 1))
                    resource.prlimit(process, resource.RLIMIT_FSIZE, limits)
                return True
        return False

    def damage_a_file(self) -> bool:
        """Between two drivers, cut a checkpoint file or change a byte in it. Once that is noticed, put it back."""
        self._end(self.driver)
        checkpoint = self.place / "checkpoint"
        kinds: dict[str, list[Path]] = {"offsets": [], "commits": [], "state": []}
        for path in sorted(checkpoint.rglob("*")):
            kind = path.relative_to(checkpoint).parts[0]
            if path.is_file() and kind in kinds and not path.name.endswith(".crc") and path.stat().st_size:
                kinds[kind].append(path)
        kind = self.rng.choice(["offsets", "commits", "state", "state"])
        if not kinds[kind]:
            return False
        # The newest files are those that are read.
        path = self.rng.choice(sorted(kinds[kind], key=lambda path: path.stat().st_mtime)[-4:])
        crc = path.with_name(f".{path.name}.crc")
        before = {file: file.read_bytes() for file in (path, crc) if file.exists()}
        data = bytearray(before[path])
        how = self.rng.choice(["cut", "flipped", "emptied"])
        if how == "cut":
            del data[-min(len(data), self.rng.randint(1, 200)) :]
        elif how == "flipped":
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        else:
            data.clear()
        path.write_bytes(bytes(data))
        if crc.exists() and self.rng.random() < 0.5:
            crc.unlink()  # other file systems have none
        self.say(f"{how}: {path.relative_to(checkpoint)}")
        self.damaged += 1
        self.driver = self._start(self.place)
        if not self.wait(2) and not self.is_done():
            self.say(f"noticed: {self._reason()}")
            self.noticed += 1
            for file, content in before.items():
                file.write_bytes(content)
        return True

    def two_drivers(self) -> bool:
        """Another driver on the same checkpoint: one of them must give way."""
        other = self._start(self.place)
        patience = time.monotonic() + 60
        while other.poll() is None and self.driver.poll() is None and not self.is_done():
            if time.monotonic() > patience:
                break
            time.sleep(0.1)
        loser, self.driver = (self.driver, other) if self.driver.poll() is not None else (other, self.driver)
        self.say(f"two drivers, one has given way: {self._reason()}")
        self._end(loser)
        return True

    def copy_the_checkpoint(self) -> bool:
        """Copy the checkpoint while it is written, and start from the copy: that fails clearly, or goes on."""
        copy = self.home / f"copy {self.faults['copy_the_checkpoint']}"
        copy.mkdir()
        with suppress(shutil.Error):  # files that went meanwhile
            shutil.copytree(self.place / "checkpoint", copy / "checkpoint")
        other = self._start(copy)
        sink = FileSink(copy / "out")
        patience = time.monotonic() + 60
        while other.poll() is None and len(sink.batches()) < 2 and time.monotonic() < patience:
            time.sleep(0.1)
        self._end(other)
        for batch, rows in sink.output().items():
            self.compare(rows, self.right.output.get(batch, []), f"the copy's batch {batch}")
        return True

    # -- the end --

    lost = 0
    doubled = 0

    def compare(self, found: Sequence[Any], right: Sequence[Any], what: str) -> None:
        """Count what is missing, and what is there too often or should not be there at all."""
        one, other = Counter(found), Counter(right)
        missing, extra = sum((other - one).values()), sum((one - other).values())
        if missing or extra:
            self.say(f"WRONG: {what}: {missing} rows missing, {extra} too many")
        self.lost += missing
        self.doubled += extra

    def check(self) -> None:
        """Compare every row."""
        sink = FileSink(self.place / "out")
        output = sink.output()
        # The source has no end: there may be epochs without events behind the last.
        for batch in sorted(output.keys() | self.right.output.keys()):
            self.compare(output.get(batch, []), self.right.output.get(batch, []), f"batch {batch}")
        for batch, rows in sink.earlier():
            self.compare(rows, self.right.output.get(batch, []), f"an earlier attempt at batch {batch}")
        if self.mode is not None:
            squares = async_job.batches_of(FileSink(self.place / "squares"))
            found = [(row.id, row.key, row.square) for rows in squares.values() for row in rows]
            events = [event for parts in self.epochs[:-1] for part in parts for event in part]
            self.compare(found, [(event.id, event.key, event.id**2) for event in events], "the squares")

    FAULTS = (
        ("kill_worker", 6),
        ("stop_worker", 2),
        ("kill_daemon", 2),
        ("kill_driver", 2),
        ("fill_the_sink", 1),
        ("fill_the_disk", 1),
        ("damage_a_file", 2),
        ("two_drivers", 1),
        ("copy_the_checkpoint", 1),
    )
    COSTLY = ("kill_driver", "fill_the_sink", "fill_the_disk", "damage_a_file", "two_drivers", "copy_the_checkpoint")

    def draw(self) -> list[str]:
        """Draw the faults of a run: many of those that cost nothing, two of those after which a driver has to start."""
        weights = dict(self.FAULTS)
        cheap = [name for name in weights if name not in self.COSTLY]
        chosen = self.rng.choices(cheap, [weights[name] for name in cheap], k=6)
        chosen += self.rng.choices(self.COSTLY, [weights[name] for name in self.COSTLY], k=2)
        self.rng.shuffle(chosen)
        return chosen

    def run(self) -> None:
        """Run the programs to their end, through all faults."""
        chosen = self.draw()
        with self.running():
            for kind in chosen:
                more = self.wait(1)
                if self.is_done():
                    break
                if not more:
                    self.revive()
                    self.wait(1)
                time.sleep(self.rng.choice([0.0, self.rng.uniform(0, 0.3)]))
                if self.driver.poll() is None and getattr(self, kind)():
                    self.faults[kind] += 1
                    self.say(f"{kind} after {self.batches()} batches")
            while not self.is_done():
                self.revive()
                self.wait(1)
        for name in os.listdir(self.home / "faults"):
            self.faults[name.split()[0] + " at a point"] += 1
        self.check()


def run_seed(seed: int) -> dict[str, Any]:
    """Run a seed; return what happened."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pillarbox-chaos-", ignore_cleanup_errors=True) as home:
        chaos = Chaos(seed, Path(home))
        chaos.run()
    silent = chaos.lost + chaos.doubled if chaos.damaged else 0
    result = {
        "seeds": 1,
        "faults": sum(chaos.faults.values()),
        "kinds": dict(chaos.faults),
        "lost": chaos.lost,
        "doubled": chaos.doubled,
        "silent": silent,
        "damage_noticed": chaos.noticed,
        "seconds": round(time.monotonic() - began),
    }
    chaos.say(json.dumps(result))
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed; by default any")
    parser.add_argument("--minutes", type=float, default=0, help="begin with further seeds for so long; 0: one seed")
    options = parser.parse_args(arguments)
    # Whoever ends this process ends its drivers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    until = time.monotonic() + 60 * options.minutes
    total: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    while True:
        print(f"seed {seed}; to do it again: make chaos SEED={seed}", flush=True)
        result = run_seed(seed)
        kinds.update(result.pop("kinds"))
        total.update(result)
        seed += 1
        if time.monotonic() >= until:
            break
    print(json.dumps({**total, "kinds": dict(kinds)}))
    return 1 if total["lost"] or total["doubled"] else 0


if __name__ == "__main__":
    sys.exit(main())
