"""A process that adopts a Spark checkpoint is killed. The next run emits the rows that Spark would have emitted."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.faults.processes import START_SECONDS, kill, start_python, wait_for
from tests.faults.programs.adopted_job import run
from tests.spark.stateful_programs.interpreter import draw_rows, write_rows

pytestmark = [
    pytest.mark.fault,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]
JOB = '"Event":"SparkListenerJobStart"'
POINTS = 5


class Home:
    def __init__(self, folder: Path, stopped: Path, arrived: Path) -> None:
        self.folder = folder
        self.events, self.log = folder / "events", folder / "log"
        self.events.mkdir(parents=True)
        shutil.copytree(stopped, folder / "stopped")
        (folder / "in").symlink_to(arrived)

    def begin(self) -> Any:
        return start_python(self.log, "-m", "tests.faults.programs.adopted_job", str(self.folder), str(self.events))

    def jobs(self) -> int:
        return sum(path.read_text(errors="replace").count(JOB) for path in self.events.iterdir() if path.is_file())

    def end(self) -> None:
        process = self.begin()
        try:
            process.wait(START_SECONDS)
        finally:
            kill(process.pid, "all")
        assert (self.folder / "done").exists(), self.log.read_text()[-4000:]

    def kill_at(self, jobs: int) -> None:
        process = self.begin()
        try:
            wait_for(lambda: self.jobs() >= jobs, process, lambda: self.log.read_text()[-4000:])
        finally:
            kill(process.pid, "all")
            process.wait()

    def output(self, name: str) -> list[Any]:
        return [json.loads(path.read_text()) for path in sorted((self.folder / f"{name}-out").glob("[0-9]*"))]


@pytest.mark.long("a JVM for each point")
def test_adopting_is_killed_all_over_its_run(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    write_rows(draw_rows(2, 20, 6, timers=True), tmp_path / "rows")
    files = sorted((tmp_path / "rows").iterdir())
    arrived = tmp_path / "in"
    arrived.mkdir()
    on_spark = partial(run, session, tmp_path, "spark", lambda df: DataFrame.groupBy(df, "k"))
    for path in files[:3]:
        os.link(path, arrived / path.name)
    on_spark()
    shutil.copytree(tmp_path / "spark", tmp_path / "stopped")
    shutil.rmtree(tmp_path / "spark-out")
    for path in files[3:]:
        os.link(path, arrived / path.name)
    on_spark()
    first = Home(tmp_path / "first", tmp_path / "stopped", arrived)
    expected = [json.loads(path.read_text()) for path in sorted((tmp_path / "spark-out").iterdir())]
    first.end()
    assert first.output("adopted") == expected
    count = first.jobs()
    assert count > POINTS
    unfinished = 0
    for point in range(POINTS):
        jobs = 1 + point * (count - 1) // (POINTS - 1)
        home = Home(tmp_path / f"killed-at-{jobs}", tmp_path / "stopped", arrived)
        home.kill_at(jobs)
        unfinished += (home.folder / "savepoint" / "started").exists() != (
            home.folder / "savepoint" / "manifest"
        ).exists()
        home.end()
        assert home.output("adopted") == expected, f"killed at job {jobs} of {count}"
    assert unfinished
