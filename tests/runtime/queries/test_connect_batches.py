"""``foreachBatch`` under Spark Connect, where tasks do not know their query. Errors occur before the query runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.connect import proto

from pillarbox import CheckpointMismatchError, SavepointError, stop_with_savepoint
from pillarbox._graph.layout import Layout
from pillarbox._graph.targets import CODES
from pillarbox._runtime.spark.plan.registry import RegisteredProgram
from pillarbox._runtime.spark.session.writer import WriterStart
from pillarbox._runtime.spark.starting.start import check_compiled, run_setting
from pillarbox._runtime.spark.starting.started import StartedQuery, remember
from pillarbox._runtime.spark.tasks.task_info import RUN


def start(*, foreach_batch: bool) -> WriterStart:
    settings: Any = SimpleNamespace(get=lambda name, default: default)
    writer = SimpleNamespace(_write_proto=proto.WriteStreamOperationStart(), start=lambda: None)
    writer._session = SimpleNamespace(conf=settings)
    if foreach_batch:
        writer._write_proto.foreach_batch.python_function.python_ver = "3"
    writer._write_proto.options["checkpointLocation"] = "cp"
    return WriterStart(writer, "start")


def planned(layout: Layout) -> RegisteredProgram:
    facts: Any = None
    return RegisteredProgram("p", 2, layout, False, False, facts)


def test_whose_passes_settings():
    assert WriterStart(SimpleNamespace(_spark=SimpleNamespace(_jsparkSession=None)), "start").passes_settings, (
        "a classic one"
    )
    assert start(foreach_batch=False).passes_settings and not start(foreach_batch=True).passes_settings


def test_homes_are_found_without_the_run():
    assert run_setting(start(foreach_batch=False), "r") == {RUN: "r"} and not run_setting(
        start(foreach_batch=True), "r"
    )


def test_a_checkpoint_of_another_layout_is_refused():
    checkpoint: Any = "cp"
    check_compiled(checkpoint, [planned(Layout(16, 16))], [Layout(16, 16, CODES)])
    with pytest.raises(CheckpointMismatchError) as caught:
        check_compiled(checkpoint, [planned(Layout(16, 16))], [Layout(8, 8, CODES)])
    assert str(caught.value) == (
        "checkpoint cp has max parallelism 8, but the program has 16. Under Spark Connect, tasks of"
        " foreachBatch and for_each_batch cannot detect that: call env.set_max_parallelism(8), or start"
        " the query in a classic session"
    )
    with pytest.raises(CheckpointMismatchError, match=r"another layout than the .* that: start the query in a classic"):
        check_compiled(checkpoint, [planned(Layout(16, 16))], [Layout(16, 16, 1)])


def test_a_query_that_is_to_be_drained_goes_on():
    query: Any = SimpleNamespace(id="batches", isActive=True, awaitTermination=None)
    remember(StartedQuery(query, start(foreach_batch=True)))
    with pytest.raises(
        SavepointError, match=r"query batches cannot be drained: under Spark Connect, .* Nothing was don"
    ):
        stop_with_savepoint(query, "/sp", drain=True)
    assert query.isActive
    query.isActive = False
