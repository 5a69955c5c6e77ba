"""Threads of one process that plan, start, read and write at the same time do not deadlock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pillarbox
from pillarbox import (
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    savepoint,
)
from pillarbox._runtime.spark.plan.plan import plan_first_epoch
from pillarbox._runtime.spark.savepoint import savepoint as savepoint_module
from pillarbox._runtime.spark.session import session_settings
from pillarbox._runtime.spark.starting import first_epoch

pytestmark = pytest.mark.spark

# A longer wait counts as a deadlock.
DEADLOCKED = 300.0


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, value, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        yield value.id, self.seen.value()


def run(spark: Any, folder: Path, checkpoint: str, from_savepoint: str | None = None) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
    if from_savepoint is not None:
        env.from_savepoint(from_savepoint)
    read = spark.readStream.schema("id LONG").parquet(str(folder / "in"))
    rows = env.from_dataframe(read).key_by("id").process(Count()).uid("count").to_dataframe("id LONG, n LONG")
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(folder / checkpoint))
    pillarbox.start(writer.trigger(availableNow=True)).awaitTermination()


@pytest.fixture
def stopped(spark, tmp_path):
    spark.range(4).coalesce(1).write.parquet(str(tmp_path / "in"))
    run(spark, tmp_path, "checkpoint")
    return tmp_path


@pytest.mark.long("it shows that a lock is not held for longer than it must be")
def test_a_savepoint_is_written_while_another_thread_starts_from_one(spark, stopped, monkeypatch):
    free: list[bool] = []

    @contextmanager
    def looked_at(*args: Any) -> Iterator[None]:
        trying = threading.Thread(target=lambda: free.append(session_settings._starting.acquire(blocking=False)))
        trying.start()
        trying.join()
        with session_settings.session_settings(*args):
            yield

    monkeypatch.setattr(first_epoch, "session_settings", looked_at)
    savepoint(spark, str(stopped / "checkpoint"), str(stopped / "first"))
    writing, planning = threading.Event(), threading.Event()
    begin = savepoint_module.begin

    def begin_and_wait(*args: Any) -> None:
        begin(*args)
        writing.set()
        assert planning.wait(DEADLOCKED)

    def wait_and_plan(*args: Any) -> Any:
        assert writing.wait(DEADLOCKED)
        planning.set()
        return plan_first_epoch(*args)

    monkeypatch.setattr(savepoint_module, "begin", begin_and_wait)
    monkeypatch.setattr(first_epoch, "plan_first_epoch", wait_and_plan)
    first = str(stopped / "first")
    both = [
        threading.Thread(
            target=savepoint, args=(spark, str(stopped / "checkpoint"), str(stopped / "second")), daemon=True
        ),
        threading.Thread(target=run, args=(spark, stopped, "other", first), daemon=True),
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(DEADLOCKED)
    assert not any(thread.is_alive() for thread in both), "each waits for a lock that the other one has"
    assert free == [False]
    assert (stopped / "second" / "manifest").is_dir() and (stopped / "other" / "commits" / "0").exists()
