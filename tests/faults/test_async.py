"""The service, workers and drivers fail while requests are in flight. Each record is still emitted once."""

from __future__ import annotations

import random
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples.enrichment.service import running_service
from tests.faults.processes import START_SECONDS
from tests.faults.programs.async_job import Mode, batches_of, build, check, count_of
from tests.faults.programs.job import (
    NO_FAULTS,
    Epoch,
    Fault,
    Faults,
    FileSink,
    make_events,
    read_events,
    write_events,
)

pytestmark = pytest.mark.fault
DIE_AT = 30  # requests in flight or done before the service ends
REFUSED = 10  # connections until the next service starts


class Run:
    def __init__(self, spark: SparkSession, home: Path, seed: int, mode: Mode, epochs: int) -> None:
        self.spark = spark
        self.home = home
        self.mode = mode
        self.faults = NO_FAULTS
        self.sink = FileSink(home / "out")
        self.epochs: list[Epoch] = make_events(seed, epochs=epochs)
        write_events(self.epochs, home / "in")

    def plan(self, *faults: Fault) -> None:
        (self.home / "faults").mkdir()
        self.faults = Faults(self.home / "faults", faults)
        for fault in faults:
            print("planned:", fault)

    def start(self, service: str) -> StreamingQuery:
        df = build(read_events(self.spark, self.home / "in"), service, self.mode, self.faults)
        writer: Any = df.writeStream.foreachBatch(self.sink).option("checkpointLocation", str(self.home / "checkpoint"))
        # Carried requests need endless epochs without input.
        trigger: dict[str, Any] = {"processingTime": "0 seconds"} if self.mode == "carry" else {"availableNow": True}
        query: StreamingQuery = writer.trigger(**trigger).start()
        return query

    def end(self, query: StreamingQuery) -> None:
        if self.mode == "carry":
            wait_for(lambda: len(self.sink.batches()) >= len(self.epochs), query)
            wait_for(lambda: sum(map(len, batches_of(self.sink).values())) >= count_of(self.epochs), query)
            enough = len(self.sink.batches()) + 2
            wait_for(lambda: len(self.sink.batches()) >= enough, query)
            query.stop()
        else:
            query.awaitTermination()
        check(batches_of(self.sink), self.epochs, self.mode)
        if self.faults is not NO_FAULTS:
            assert self.faults.happened() == self.faults.expected()

    def carried(self) -> int:
        own = {event.id: batch for batch, parts in enumerate(self.epochs) for part in parts for event in part}
        return sum(batch > own[row.id] for batch, rows in batches_of(self.sink).items() for row in rows)


@pytest.mark.long("the next test kills a worker with requests in flight; services/ has a service that fails and hangs")
@pytest.mark.parametrize("mode", ["drain", "carry"])
def test_the_service_goes_away(spark: SparkSession, tmp_path: Path, seed: int, mode: Mode) -> None:
    run = Run(spark, tmp_path, seed, mode, epochs=4)
    with running_service(seed=seed, latency=20, errors=0.1, hangs=0.01) as service:
        service.control(die_after=DIE_AT, dead_seconds=0.5)
        query = run.start(service.url)
        wait_for(lambda: service.stats()["requests"] > 4 * DIE_AT, query)
        print("the service goes; it did", service.stats()["outcomes"])
    port = urlsplit(service.url).port or 0
    with socket.create_server(("127.0.0.1", port)) as nobody:
        for _ in range(REFUSED):
            nobody.accept()[0].close()
    with running_service(port=port, seed=seed, latency=20) as service:
        run.end(query)
    if mode == "carry":
        assert run.carried() > 0


@pytest.mark.parametrize("mode", ["carry", pytest.param("drain", marks=pytest.mark.long("it has less in state"))])
def test_a_worker_is_killed_with_requests_in_flight(spark: SparkSession, tmp_path: Path, seed: int, mode: Mode) -> None:
    rng = random.Random(seed)
    run = Run(spark, tmp_path, seed + 1, mode, epochs=4)
    # Not the first record of an epoch: then others wait for their answers.
    victims = [rng.choice([event.id for part in run.epochs[epoch] for event in part][5:]) for epoch in (1, 2)]
    run.plan(Fault("answered", victims[0], "kill"), Fault("answered", victims[1], rng.choice(["kill", "raise"])))
    with running_service(seed=seed, latency=20) as service:
        run.end(run.start(service.url))


def wait_for(condition: Any, query: StreamingQuery) -> None:
    patience = time.monotonic() + START_SECONDS
    while not condition():
        if not query.isActive:
            query.awaitTermination()  # raises the failure
            pytest.fail("it has ended before")
        assert time.monotonic() < patience, "it does not happen"
        time.sleep(0.02)
