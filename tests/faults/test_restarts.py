"""Queries restart in the same driver, and epochs are repeated. No output depends on uncommitted state."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from tests.faults.conftest import MakeRun, tasks
from tests.faults.programs.job import Fault, InjectedError

pytestmark = pytest.mark.fault


@pytest.mark.long("spark/starting/test_interrupted_sinks.py runs epochs again, and the next test has such tasks")
def test_the_sink_raises_after_the_tasks_have_committed(make_run: MakeRun, seed: int) -> None:
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


@pytest.mark.long("test_every_operator.py kills workers of all levels")
def test_a_later_level_fails_for_good(make_run: MakeRun, seed: int) -> None:
    rng = random.Random(seed)
    run = make_run(seed + 1, epochs=3)
    at = rng.choice([number for number, result in enumerate(run.right.points["second timer"]) if result and number < 3])
    timer = rng.choice(run.right.points["second timer"][at])
    run.plan([Fault("second timer", timer, "raise", 4)])
    with pytest.raises(StreamingQueryException) as caught:
        run.to_the_end()
    text = str(caught.value)
    assert re.search(rf"operator '[^']+' failed in the event time timer at {timer[1]} of key {timer[0]}: ", text)
    assert "InjectedError: injected: raise second timer" in text
    query = run.to_the_end()
    run.check()
    redone = [task for task in tasks(query) if task.level == 1 and task.epoch == at + 1]
    assert len(redone) == 2
