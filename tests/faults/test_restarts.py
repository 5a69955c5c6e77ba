"""Queries that fail and are started again in the same driver, and epochs that run again: tasks may be at versions that
were never committed, and nothing of these may come out."""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from tests.faults.conftest import MakeRun, tasks
from tests.faults.programs.job import Fault, InjectedError

pytestmark = pytest.mark.fault


def test_the_sink_raises_after_the_tasks_have_committed(make_run: MakeRun, seed: int) -> None:
    """Each start has homes of its own, whose tasks are at the version that Spark has committed."""
    failing = Counter({random.Random(seed).randrange(1, 4): 2})
    print("the sink raises in batches", sorted(failing))

    def sink_raises(df: DataFrame, batch: int) -> None:
        if failing[batch]:
            df.collect()
            failing[batch] -= 1
            raise InjectedError(f"the sink fails in batch {batch}")

    run = make_run(seed, before=sink_raises, epochs=4)
    while failing.total():
        with pytest.raises(StreamingQueryException, match="the sink fails in batch"):
            run.to_the_end()
    run.to_the_end()
    run.check()


def test_a_later_level_fails_for_good(make_run: MakeRun, seed: int) -> None:
    """Level 2 fails in all four attempts: level 1, which had come through, is at a version that never was."""
    rng = random.Random(seed)
    run = make_run(seed + 1, epochs=3)
    at = rng.choice([number for number, found in enumerate(run.right.points["second timer"]) if found and number < 3])
    place = rng.choice(run.right.points["second timer"][at])
    run.plan([Fault("second timer", place, "raise", 4)])
    with pytest.raises(StreamingQueryException) as caught:
        run.to_the_end()
    text = str(caught.value)
    assert re.search(rf"operator '[^']+' failed in the event time timer at {place[1]} of key {place[0]}: ", text)
    assert "InjectedError: injected: raise second timer" in text
    query = run.to_the_end()
    run.check()
    redone = [task for task in tasks(query) if task.level == 1 and task.epoch == at + 1]
    assert len(redone) == 2


@pytest.mark.long("spark/starting/test_interrupted_sinks.py has sinks with several actions")
def test_a_sink_with_several_actions(make_run: MakeRun, seed: int) -> None:
    """Each action on a batch's DataFrame runs the epoch again, some of them only in part: tasks are rolled back."""
    hosts: dict[int, set[tuple[str, int, int]]] = {}

    def look_first(df: DataFrame, batch: int) -> None:
        assert not df.isEmpty()
        if batch % 2:
            assert df.count() == len(run.right.output[batch])
        hosts[batch] = {(row.part, row.subtask, row.pid) for row in df.collect()}

    run = make_run(seed + 2, before=look_first, epochs=2)
    run.to_the_end()
    run.check()
    for batch, rows in run.sink.raw().items():
        assert {(row.part, row.subtask, row.pid) for row in rows} == hosts[batch], "each in its own process"


@pytest.mark.long("the same with each fault that is in this file")
def test_stopped_and_started_as_data_comes(make_run: MakeRun, seed: int) -> None:
    """Between two starts, the checkpoint may also go back in time."""
    from tests.faults.programs.job import write_events

    run = make_run(seed + 3, epochs=5, written=2)
    run.to_the_end()
    old = run.home / "old checkpoint"
    shutil.copytree(run.home / "checkpoint", old)
    for number in (2, 3):
        write_events(run.epochs[number : number + 1], run.home / "in", first=number)
    first = run.to_the_end()
    assert [task.epoch for task in tasks(first) if task.level == 1] == [3, 3, 4, 4]
    shutil.rmtree(run.home / "checkpoint")
    old.rename(run.home / "checkpoint")
    write_events(run.epochs[4:], run.home / "in", first=4)
    run.to_the_end()
    run.check()
    assert {batch for batch, _ in run.sink.earlier()} == {2, 3}


@pytest.mark.long("chaos runs queries at once, and homes/test_homes.py has two runs")
def test_the_same_program_twice_at_once(make_run: MakeRun, seed: int) -> None:
    runs = [make_run(seed + 4, epochs=4), make_run(seed + 5, epochs=4)]
    queries = [run.start() for run in runs]
    for query in queries:
        query.awaitTermination()
    for run in runs:
        run.check()
    hosts = [{row.pid for rows in run.sink.raw().values() for row in rows} for run in runs]
    assert not hosts[0] & hosts[1], "each run has homes of its own"
