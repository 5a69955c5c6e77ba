"""A query is killed while it restores a savepoint. Only a start from the same savepoint can complete the restore."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pillarbox
from pillarbox import CheckpointMismatchError, SavepointError
from pillarbox._state.savepoint.files import write_savepoint
from pillarbox.testing import ProgramTestHarness, row
from tests.faults.processes import START_SECONDS
from tests.faults.programs.savepoint_job import counted, writer

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]


def records(start: int, end: int) -> list[dict[str, int]]:
    return [{"key": number % 7, "at": 100 * number} for number in range(start, end)]


def reached(home: Path, ends: Callable[[], bool]) -> bool:
    patience = time.monotonic() + START_SECONDS
    while not (home / "reached").exists() and not ends() and time.monotonic() < patience:
        time.sleep(0.05)
    return (home / "reached").exists()


def stop_the_query(spark: Any, home: Path) -> None:
    raised: list[BaseException] = []

    def start() -> None:
        try:
            pillarbox.start(writer(spark, home))
        except BaseException as error:
            raised.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    assert reached(home, lambda: not starting.is_alive()), raised
    for query in spark.streams.active:
        query.stop()
    starting.join()
    (error,) = raised
    assert isinstance(error, SavepointError)
    assert "was stopped before it had restored the savepoint" in str(error)


@pytest.mark.long("spark/operating/test_savepoint.py starts from a savepoint, and test_restarts.py stops queries")
def test_the_query_is_stopped_while_the_state_is_taken(spark: Any, tmp_path: Path) -> None:
    with ProgramTestHarness(lambda env, rows: counted(rows), parallelism=2) as right:
        right.push_all("rows", [row(**record) for record in records(0, 40)])
        right.run_epoch()
        for name in ("savepoint", "another"):
            write_savepoint(tmp_path / name, right.snapshot().stores, epoch=0)
        right.clear_output()
        for start, end in ((40, 90), (90, 120)):
            right.push_all("rows", [row(**record) for record in records(start, end)])
            right.run_epoch()
        expected = sorted(map(tuple, right.get_output()))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "part.json").write_text("\n".join(map(json.dumps, records(40, 90))))
    (tmp_path / "wait").touch()
    stop_the_query(spark, tmp_path)
    (tmp_path / "wait").unlink()
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    for options, says in (
        ({"start": None}, "a start from the savepoint .* was interrupted: start the same program with"),
        ({"start": "another"}, "was created from the savepoint .*savepoint, not from .*another"),
        ({"parallelism": 4}, "a start of another program from the savepoint .* was interrupted"),
    ):
        with pytest.raises(CheckpointMismatchError, match=says):
            writer(spark, tmp_path, **options).start()
    pillarbox.start(writer(spark, tmp_path)).awaitTermination()
    # From here on it is a checkpoint as any other, and the savepoint need not be there.
    os.rename(tmp_path / "savepoint", tmp_path / "moved")
    (tmp_path / "in" / "next.json").write_text("\n".join(map(json.dumps, records(90, 120))))
    pillarbox.start(writer(spark, tmp_path)).awaitTermination()
    os.rename(tmp_path / "moved", tmp_path / "savepoint")
    assert (
        sorted(map(tuple, spark.read.schema("what STRING, at LONG").json(str(tmp_path / "out")).collect())) == expected
    )
    # The sink's files belong to this checkpoint: on a new one, Spark would skip batches as written.
    os.rename(tmp_path / "checkpoint", tmp_path / "former")
    with pytest.raises(
        CheckpointMismatchError, match="contains another query's files: micro-batch numbers restart at 1"
    ):
        pillarbox.start(writer(spark, tmp_path))
    assert not (tmp_path / "checkpoint").exists()
