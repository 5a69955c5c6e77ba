"""Queries that fail and are started again in the same driver: resident tasks live on in the workers, at versions that
were never committed, and nothing of these may come out."""

from __future__ import annotations

import random
import re
import shutil
from contextlib import nullcontext

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from pillarbox._runtime.spark import plan
from tests.faults.conftest import MakeRun, tasks
from tests.faults.job import Fault, InjectedError

pytestmark = pytest.mark.fault


def test_the_sink_raises_after_the_tasks_have_committed(make_run: MakeRun, seed: int) -> None:
    rng = random.Random(seed)
    failing = set(rng.sample(range(5), 2))
    print("the sink raises in batches", sorted(failing))
    # By batch, who has gone through each attempt.
    attempts: dict[int, list[set[tuple[int, int, int]]]] = {batch: [] for batch in failing}

    def sink_raises(df: DataFrame, batch: int) -> None:
        if batch not in failing:
            return
        hosts = {(row.level, row.subtask, row.pid) for row in df.collect()}
        # Until a worker has gone through the batch again, and so has rolled back: Spark may choose others.
        if any(hosts & before for before in attempts[batch]) or len(attempts[batch]) == 8:
            failing.remove(batch)
        else:
            attempts[batch].append(hosts)
            raise InjectedError(f"the sink fails in batch {batch}")

    run = make_run(seed, before=sink_raises, epochs=4)
    while failing:
        try:
            run.to_the_end()
        except StreamingQueryException as error:
            assert "the sink fails in batch" in str(error)
    run.to_the_end()
    run.check()
    output = run.sink.raw()
    rolled_back = 0
    for batch, before in attempts.items():
        last = {(row.level, row.subtask, row.pid) for row in output[batch]}
        rolled_back += sum(len(last & hosts) for hosts in before)
    print("tasks that were rolled back in their process:", rolled_back)
    assert rolled_back, "each attempt was made by other workers: this test shows nothing"


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


def test_a_sink_with_several_actions(make_run: MakeRun, seed: int) -> None:
    """Each action on a batch's DataFrame runs the epoch again, some of them only in part."""

    def look_first(df: DataFrame, batch: int) -> None:
        assert not df.isEmpty()
        if batch % 2:
            assert df.count() == len(run.right.output[batch])

    run = make_run(seed + 2, before=look_first, epochs=2)
    run.to_the_end()
    run.check()


def test_stopped_and_started_as_data_comes(make_run: MakeRun, seed: int) -> None:
    """Every start finds resident tasks of the one before; between two, the checkpoint may also go back in time."""
    from tests.faults.job import write_events

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


def test_the_same_program_twice_at_once(make_run: MakeRun, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The two differ in the folders that they write to, so they would have workers of their own: let them share.
    monkeypatch.setattr(plan, "worker_pool", lambda spark, name: nullcontext())
    runs = [make_run(seed + 4, epochs=4), make_run(seed + 5, epochs=4)]
    queries = [run.start() for run in runs]
    for query in queries:
        query.awaitTermination()
    for run in runs:
        run.check()
    hosts = [{row.pid for rows in run.sink.raw().values() for row in rows} for run in runs]
    assert hosts[0] & hosts[1], "the queries never shared a worker: this test shows nothing"
