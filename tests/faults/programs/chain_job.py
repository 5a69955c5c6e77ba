"""The program of ``everything_job.py`` on its way through savepoints.

``python -m tests.faults.programs.chain_job HOME ORDERS`` runs it.

It goes from Spark to Spark at another parallelism, from there into this process, and back. Each process carries out
orders, one after the other; HOME/said has a line for each that was begun, and for each that was done:

- ``run:LEG``: the next epoch on that checkpoint; a new one begins with its savepoint;
- ``stop:LEG``: the query runs on, through one epoch more, and is stopped with a savepoint;
- ``refused:LEG``: it must not start, for the reason in HOME/why;
- ``finish:LEG``: what waits is released, and all that is left runs;
- ``local:POINT``: an epoch in this process, and its savepoint; the process is killed at that point of writing it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

import pillarbox
from pillarbox import CheckpointMismatchError, StreamExecutionEnvironment
from pillarbox._runtime.spark.settings.session import local_session
from pillarbox._state.savepoint import files
from pillarbox.testing import ProgramTestHarness, row
from tests.faults.programs.everything_job import stream
from tests.faults.programs.job import Epoch, FileSink, Out, Row, make_events, read_events, write_events

__all__ = ["LEGS", "LOCAL", "Leg", "found"]

LOCAL = "local"


class Leg(NamedTuple):
    """A checkpoint on the way.

    Attributes:
        parallelism: how many tasks run at a time.
        subtasks: how many there are.
        begins: the savepoint that it begins with.
        input: the folder that its source reads.
        ends: the savepoint that it is stopped with.
    """

    parallelism: int
    subtasks: int
    begins: str | None
    input: str
    ends: str | None


LEGS = {
    "first": Leg(3, 6, None, "in", "one"),
    "second": Leg(5, 10, "one", "in", "two"),
    # A savepoint of this process has no positions of sources: they begin anew.
    "back": Leg(2, 4, "three", "in back", None),
}


def found(home: Path) -> Counter[Row]:
    """Return all rows that have come out, on any leg."""
    legs = [FileSink(home / leg / "out") for leg in (*LEGS, LOCAL)]
    return Counter(row for sink in legs for rows in sink.output().values() for row in rows)


class Chain:
    """The program in a folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.shape = json.loads((home / "shape.json").read_text())
        self.epochs: list[Epoch] = make_events(self.shape["seed"], epochs=self.shape["epochs"])
        self.released = home / "released"
        self._spark: Any = None

    @property
    def spark(self) -> Any:
        if self._spark is None:
            self._spark = local_session(
                2,
                app_name="pillarbox-chain",
                spark__driver__memory="1g",
                spark__log__level="ERROR",
                spark__python__daemon__module="tests.support.daemon",
                spark__local__dir=str(self.home / "local dir"),
                spark__sql__warehouse__dir=str(self.home / "warehouse"),
            )
        return self._spark

    def end(self) -> None:
        if self._spark is not None:
            self._spark.stop()

    def arrive(self, folder: str, epoch: int) -> None:
        """Have the files of an epoch in a folder, if they are not there yet."""
        if not (self.home / folder / f"{epoch:04d}-1.parquet").exists():
            write_events(self.epochs[epoch : epoch + 1], self.home / folder, first=epoch)

    def writer(self, name: str, **begins: Any) -> Any:
        """Return the writer of a leg's query, which has no trigger yet."""
        leg = LEGS[name]
        env = StreamExecutionEnvironment.get_execution_environment(self.spark)
        env.set_parallelism(leg.parallelism).set_max_parallelism(leg.subtasks)
        savepoint = begins.get("begins", leg.begins)
        if savepoint is not None:
            env.from_savepoint(self.home / savepoint)
        events = env.from_dataframe(read_events(self.spark, self.home / leg.input))
        rows = stream(events, self.released).to_dataframe(Out).writeStream
        sink = FileSink(self.home / name / "out")
        return rows.foreachBatch(sink).option("checkpointLocation", str(self.home / name / "checkpoint"))

    def run(self, name: str, epoch: int) -> None:
        """Run an epoch, which is the next one: timers and requests are pending behind it."""
        self.arrive(LEGS[name].input, epoch)
        pillarbox.start(self.writer(name).trigger(once=True)).awaitTermination()

    def stop(self, name: str, epoch: int) -> None:
        """Let the query run on through an epoch, and stop it with a savepoint."""
        leg = LEGS[name]
        self.arrive(leg.input, epoch)
        query = pillarbox.start(self.writer(name).trigger(processingTime="0 seconds"))
        # Each event is counted at once, so this one is in the output of its epoch. Somebody who was killed may have run
        # it: then there is nothing more to read.
        last = max(event.id for part in self.epochs[epoch] for event in part)
        while not any(name == "counts" and json.loads(state)[0] == last for name, _, _, state in self._out(name)):
            assert query.isActive, query.exception()
            time.sleep(0.05)
        pillarbox.stop_with_savepoint(query, str(self.home / str(leg.ends)))

    def _out(self, name: str) -> Iterator[Row]:
        return chain.from_iterable(FileSink(self.home / name / "out").output().values())

    def refused(self, name: str) -> None:
        """Start a leg in all ways that it must not be."""
        why = re.compile((self.home / "why").read_text())
        before = sorted(path.name for path in (self.home / name).glob("checkpoint/commits/*"))
        for attempt in self._attempts(name):
            try:
                attempt()
            except CheckpointMismatchError as error:
                assert why.search(str(error)) and "\n" not in str(error).strip(), error
            else:
                raise AssertionError("it is not refused")
        assert sorted(path.name for path in (self.home / name).glob("checkpoint/commits/*")) == before

    def _attempts(self, name: str) -> list[Callable[[], Any]]:
        if not (self.home / name / "checkpoint" / "offsets").exists():
            return [lambda: pillarbox.start(self.writer(name).trigger(once=True))]
        checkpoint, other = str(self.home / name / "checkpoint"), str(self.home / "of nothing")
        # It has begun with its savepoint, and has not come through: nothing but that goes on with it.
        return [
            lambda: pillarbox.start(self.writer(name, begins=None).trigger(once=True)),
            lambda: self.writer(name, begins=None).trigger(once=True).start(),
            lambda: pillarbox.start(self.writer(name, begins="another").trigger(once=True)),
            lambda: pillarbox.savepoint(self.spark, checkpoint, other),
            lambda: pillarbox.rescale(self.spark, checkpoint, 2),
        ]

    def finish(self, name: str, epoch: int) -> None:
        """Release what waits, and run all that is left."""
        self.released.touch()
        for number in range(epoch, len(self.epochs)):
            self.arrive(LEGS[name].input, number)
        for _ in range(5):
            pillarbox.start(self.writer(name).trigger(availableNow=True)).awaitTermination()
            # A timer may have looked for the file just before the end.
            if found(self.home).total() >= self.shape["rows"]:
                break

    def local(self, point: str, epoch: int) -> None:
        """Run an epoch in this process, from the second savepoint to the third."""

        def build(env: StreamExecutionEnvironment, events: Any) -> Any:
            env.from_savepoint(self.home / "two")
            return stream(events, self.released)

        now = int(time.time() * 1000)
        with ProgramTestHarness(build, parallelism=2, processing_time=now, limit=60) as harness:
            for partition, events in enumerate(self.epochs[epoch]):
                harness.push_all("events", [row(**each._asdict()) for each in events], partition=partition)
            harness.run_epoch()
            _kill_at(point)
            harness.write_savepoint(self.home / "three")
            # What came out before somebody was killed came to nothing: nobody has seen it.
            out = FileSink(self.home / LOCAL / "out").directory
            (out / "_new").write_text(json.dumps(harness.get_output()))
            (out / "_new").rename(out / "0000.json")


def _kill_at(point: str) -> None:
    """Let this process be killed when it comes to a point of writing a savepoint: ``table:N``, ``digests`` or none."""
    what, _, number = point.partition("-")
    owner, name = {"table": (pq, "ParquetWriter"), "digests": (files, "_digest")}.get(what, (None, ""))
    left = [int(number or 1)]
    if owner is None:
        return
    true = getattr(owner, name)

    def counted(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return true(*args, **options)

    setattr(owner, name, counted)


def main(home: Path, *orders: str) -> None:
    """Carry out orders, such as ``run:first:0``: each has the number of its epoch last."""
    mine = Chain(home)

    def say(*what: str) -> None:
        with (home / "said").open("a") as file:
            file.write(json.dumps(what) + "\n")

    for order in orders:
        what, name, *epoch = order.split(":")
        say("begun", order)
        getattr(mine, what)(name, *map(int, epoch))
        say("done", order)
    mine.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
