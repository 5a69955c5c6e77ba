from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pillarbox import KeyedProcessFunction, RuntimeContext, ValueStateDescriptor
from tests.faults.conftest import Run
from tests.faults.oracles.oracle import answer
from tests.faults.programs.job import NO_FAULTS, FileSink, Ledger, make_events, write_events

pytestmark = [
    pytest.mark.fault,
    pytest.mark.long("runtime/changes has them without Spark, and spark/starting/test_start.py refuses some on Spark"),
]


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("written")
    epochs = make_events(7, epochs=2)
    write_events(epochs[:1], home / "in")
    run = Run(spark, home, epochs, answer(epochs), NO_FAULTS, FileSink(home / "out"), program={"max_parallelism": 4})
    run.to_the_end()
    assert run.sink.batches() == [0]
    write_events(epochs[1:], home / "in", first=1)
    return run


@pytest.fixture
def old(written: Run, tmp_path: Path) -> Run:
    home = tmp_path / "home"
    shutil.copytree(written.home, home)
    # Spark's log has the full paths of the files it has read, so the input stays in place.
    return dataclasses.replace(written, home=home, sink=FileSink(home / "out"), input=written.home / "in")


class MoreState(Ledger):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.more = runtime_context.get_state(ValueStateDescriptor("more"))
        super().open(runtime_context)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        self.more.update(value.id)
        return super().process_element(value, ctx)


@pytest.mark.usefixtures("one_attempt")
def test_an_operator_that_is_added_before_another_is_refused(old: Run) -> None:
    with pytest.raises(StreamingQueryException) as caught:
        old.to_the_end(branch=True)
    assert "the checkpoint holds state of 'region', which the program has in another place" in str(caught.value)
    assert "CheckpointMismatchError" in str(caught.value)
    assert old.sink.batches() == [0], "something came out nevertheless"
    # The checkpoint is intact: the old program continues.
    old.to_the_end()
    old.check()


def test_state_can_be_added(old: Run) -> None:
    old.to_the_end(ledger=MoreState(NO_FAULTS))
    old.check()
