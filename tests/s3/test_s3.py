"""The flights demo with its source, checkpoint, sink and savepoints in an object store.

The results equal the oracle's, even after the driver is killed, the checkpoint is rescaled, or a savepoint is used.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pillarbox
from examples.flights.data import FILES_PER_SLICE, write_files
from examples.flights.oracle import canonical, expected
from examples.flights.run import collected
from tests.examples.test_flights import first
from tests.faults.processes import kill, start_python, wait_for
from tests.s3.gateway import Gateway
from tests.s3.s3_job import url, writer

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("each file is several requests"),
    pytest.mark.timeout(900),
    pytest.mark.skipif("PILLARBOX_S3" not in os.environ, reason="takes an S3 gateway: make test-s3 runs it"),
]

DAYS, BATCHES = 10, 6  # aircraft are followed for two weeks: all that were seen have state


def put(spark: Any, source: Path, gateway: Gateway, folder: str, files: slice) -> None:
    context = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path
    target = path(url(f"{folder}/flights"))
    store = target.getFileSystem(context._jsc.hadoopConfiguration())
    store.mkdirs(target)
    for file in sorted(source.iterdir())[files]:
        modified = file.stat().st_mtime
        store.moveFromLocalFile(path(file.as_uri()), path(target, file.name))
        os.utime(gateway.objects / folder / "flights" / file.name, (modified, modified))


def results(spark: Any, folder: str, *names: str) -> list[Any]:
    return canonical(
        [event for name in names for event in collected(spark.read.parquet(url(f"{folder}/{name}-events")))]
    )


def tails(spark: Any, path: str) -> list[str]:
    state = pillarbox.read_state(spark, path, "follow-aircraft")
    return sorted(row.tail for row in state.selectExpr("key::string AS tail").collect())


def run(query: Any) -> None:
    pillarbox.start(query).awaitTermination()


@pytest.mark.fault
def test_the_driver_is_killed_in_the_middle(spark: Any, gateway: Gateway, tmp_path: Path) -> None:
    table = first(DAYS)
    write_files(table, tmp_path / "flights", BATCHES)
    put(spark, tmp_path / "flights", gateway, "killed", slice(None))
    commits = gateway.objects / "killed" / "first" / "commits"
    log = tmp_path / "log"
    driver = start_python(log, "-m", "tests.s3.s3_job", str(tmp_path / "driver"), gateway.endpoint, "killed")
    try:
        wait_for((commits / "2").exists, driver, lambda: log.read_text()[-6000:])
    finally:
        kill(driver.pid, "all")
        driver.wait()
    assert not (commits / str(BATCHES)).exists(), "it was killed after the last epoch"
    run(writer(spark, "killed", parallelism=2))
    assert (commits / str(BATCHES)).exists(), "the last epoch is the heartbeat's"
    assert results(spark, "killed", "first") == expected(table.to_pylist())


def test_rescaled_and_on_from_a_savepoint(spark: Any, gateway: Gateway, tmp_path: Path) -> None:
    folder = "changed"
    table = first(DAYS)
    write_files(table, tmp_path / "flights", BATCHES)
    more = partial(put, spark, tmp_path / "flights", gateway, folder)
    checkpoint, savepoint = url(f"{folder}/first"), url(f"{folder}/savepoint")

    more(slice(2 * FILES_PER_SLICE))
    run(writer(spark, folder, parallelism=2))
    pillarbox.rescale(spark, checkpoint, 3)
    more(slice(2 * FILES_PER_SLICE))
    run(writer(spark, folder, parallelism=3))

    flights = spark.read.parquet(url(f"{folder}/flights")).where("tail IS NOT NULL")
    seen = {row.tail for row in flights.collect()}
    flown = {row.tail for row in flights.where("dep_delay IS NOT NULL").collect()}
    followed = tails(spark, checkpoint)
    assert flown <= set(followed) <= seen and len(set(followed)) == len(followed)
    pillarbox.savepoint(spark, checkpoint, savepoint)
    assert tails(spark, savepoint) == followed

    more(slice(None))
    run(writer(spark, folder, parallelism=1, name="second", savepoint="savepoint"))
    assert results(spark, folder, "first", "second") == expected(table.to_pylist())
    assert gateway.requests() > 100, "all of it went through the gateway"
