"""Seeds and numbers of rounds for the fault tests, and fixtures that run the tests' program.

The seed is constant, so that repeated runs of a commit have the same result. ``PILLARBOX_LONG`` (`make test-all`) makes
it random.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pillarbox
from tests.faults.oracles.oracle import Answer, answer
from tests.faults.parts.part import Part, streams_of
from tests.faults.programs.job import (
    Epoch,
    Fault,
    Faults,
    FileSink,
    build,
    make_events,
    read_events,
    to_its_end,
    write_events,
)

_FIRST_SEED = int(
    os.environ.get("PILLARBOX_FAULT_SEED")
    or (random.SystemRandom().randrange(1_000_000) if "PILLARBOX_LONG" in os.environ else 1)
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        rounds = int(os.environ.get("PILLARBOX_FAULT_ROUNDS", "1"))
        # The id does not show the seed: the names of tests stay the same from run to run.
        seeds = [_FIRST_SEED + 100 * i for i in range(rounds)]
        metafunc.parametrize("seed", seeds, ids=[f"round{i}" for i in range(rounds)])


@pytest.fixture(autouse=True)
def _print_seed(request: pytest.FixtureRequest) -> None:
    if "seed" in request.fixturenames:
        seed = request.getfixturevalue("seed")
        print(f"to do this again: PILLARBOX_FAULT_SEED={seed} PILLARBOX_FAULT_ROUNDS=1")


@dataclass
class Run:
    spark: SparkSession
    home: Path
    epochs: list[Epoch]
    right: Answer
    faults: Faults
    sink: FileSink
    input: Path | None = None
    parts: Sequence[Part] = ()
    program: dict[str, Any] = field(default_factory=dict)

    def start(self, *, trigger: dict[str, Any] | None = None, **program: Any) -> StreamingQuery:
        program = {**self.program, **program}
        if self.parts:
            program["further"] = streams_of(self.parts)
        df = build(read_events(self.spark, self.input or self.home / "in"), self.faults, **program)
        writer: Any = df.writeStream.foreachBatch(self.sink).option("checkpointLocation", str(self.home / "checkpoint"))
        query: StreamingQuery = writer.trigger(**(trigger or {"availableNow": True})).start()
        return query

    def to_the_end(self, **program: Any) -> StreamingQuery:
        return to_its_end(lambda: self.start(**program))

    def plan(self, faults: Sequence[Fault]) -> None:
        directory = self.home / "faults"
        directory.mkdir()
        self.faults = Faults(directory, faults)
        for fault in faults:
            print("planned:", fault)

    def check(self) -> None:
        output = self.sink.output()
        assert sorted(output) == sorted(self.right.output), "batches are missing"
        for batch, rows in self.right.output.items():
            _same(output[batch], rows, f"batch {batch}")
        for batch, result in self.sink.earlier():
            _same(result, self.right.output[batch], f"an earlier attempt at batch {batch}")
        if self.faults.expected():
            assert self.faults.happened() == self.faults.expected()


def _same(rows: list[Any], right: list[Any], what: str) -> None:
    extra = [row for row in rows if row not in right]
    missing = [row for row in right if row not in rows]
    assert not extra and not missing, f"{what}: too much {extra[:5]}, missing {missing[:5]}"
    assert rows == right, f"{what}: rows came more than once"


MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(spark: SparkSession, tmp_path: Path) -> Iterator[MakeRun]:
    runs: list[Run] = []

    def make(
        seed: int,
        *,
        before: Callable[[DataFrame, int], None] | None = None,
        written: int | None = None,
        parts: Sequence[Part] = (),
        **shape: int,
    ) -> Run:
        home = tmp_path / f"run{len(runs)}"
        epochs = make_events(seed, **shape)
        write_events(epochs[:written], home / "in")
        run = Run(spark, home, epochs, answer(epochs, parts), Faults(home), FileSink(home / "out", before))
        run.parts = parts
        run.program = {"max_parallelism": 2}  # small enough for a test to distinguish them
        runs.append(run)
        return run

    yield make
    for query in spark.streams.active:
        query.stop()


def tasks(query: StreamingQuery) -> list[pillarbox.TaskReport]:
    return [task for progress in query.recentProgress for task in pillarbox.metrics(progress)]
