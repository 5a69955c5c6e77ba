from __future__ import annotations

from typing import Any

from pillarbox_tools.export import metric as m
from pillarbox_tools.export.exported import ExportedQueries
from pillarbox_tools.export.query_metrics import QueryMetrics
from pillarbox_tools.model.query_model import QueryModel
from pillarbox_tools.model.snapshot import SnapshotRun
from tests.model.made import START, keyed, plan, progress, query_model


def started(id: str = "q", name: str = "counts", run: str = "r") -> tuple[QueryModel, QueryMetrics]:
    query = query_model(id, name, "", plan(), SnapshotRun(run, START), clock=lambda: START)
    return query, QueryMetrics(query)


def busy(exported: ExportedQueries) -> dict[Any, float]:
    return {labels[0]: value for labels, value in exported.samples().get(m.BUSY, {}).items()}


def test_values_are_in_the_unit_of_the_metric() -> None:
    query, metrics = started()
    query.progressed(progress(1, keyed(busy_ms=1500, counters={"map-3.x": 2}, state_bytes=70)))
    exported = ExportedQueries()
    exported.add(metrics)
    samples = exported.samples()
    assert samples[m.BUSY] == {("counts", "count"): 1.5}
    assert samples[m.STATE_SIZE] == {("counts", "count"): 70}
    assert samples[m.USER_COUNT] == {("counts", "map-3", "x"): 2}
    assert samples[m.EPOCHS] == {("counts",): 1}


def test_a_query_is_exported_once() -> None:
    query, metrics = started()
    query.progressed(progress(1, keyed(busy_ms=1000)))
    exported = ExportedQueries()
    exported.add(metrics)
    exported.add(metrics)
    assert busy(exported) == {"counts": 1}


def test_a_query_that_is_started_again_goes_on_with_its_counters() -> None:
    exported = ExportedQueries()
    for run in range(5):
        query, metrics = started(run=f"r{run}")
        exported.add(metrics)
        before = busy(exported).get("counts", 0)
        query.progressed(progress(run, keyed(busy_ms=2000, keys=run)))
        assert busy(exported) == {"counts": before + 2}
        assert exported.samples()[m.KEYS] == {("counts", "count"): run}
        assert exported.samples()[m.STARTS] == {("counts",): run + 1}
        assert exported.samples()[m.UP] == {("counts",): 1}
        query.failed("no") if run % 2 else query.ended()
    assert exported.samples()[m.FAILURES] == {("counts",): 2}
    assert exported.samples()[m.UP] == {("counts",): 0}
    assert busy(exported) == {"counts": 10}


def test_series_of_runs_long_ago_are_forgotten() -> None:
    exported, most = ExportedQueries(), 0
    for run in range(60):
        query, metrics = started(run=f"r{run}")
        exported.add(metrics)
        names = {f"map-3.of-{run}-{number}": 1 for number in range(100)}
        query.progressed(progress(run, keyed(busy_ms=1000, counters=names)))
        most = max(most, sum(map(len, exported.samples().values())))
        assert busy(exported) == {"counts": run + 1}
        query.ended()
    assert exported.samples()[m.STARTS] == {("counts",): 60}
    assert most < 2_500


def test_the_run_before_may_still_tell_of_an_epoch() -> None:
    exported = ExportedQueries()
    query, metrics = started()
    exported.add(metrics)
    exported.add(started(run="r2")[1])
    query.progressed(progress(1, keyed(busy_ms=3000)))
    assert busy(exported) == {"counts": 3}
    query.progressed(progress(2, keyed(busy_ms=4000)))
    query.ended()
    assert busy(exported) == busy(exported) == {"counts": 7}


def test_queries_have_names_of_their_own() -> None:
    exported = ExportedQueries()
    first, metrics = started("a", "counts")
    exported.add(metrics)
    other, metrics = started("b", "counts")
    exported.add(metrics)
    exported.add(started("c", "")[1])
    labels = {labels[0] for labels in exported.samples()[m.UP]}
    assert labels == {"counts", "counts b", "c"}
    # Each keeps the name that it has while this process lives.
    first.ended()
    exported.add(started("b", "counts", "r2")[1])
    assert exported.samples()[m.STARTS] == {("counts",): 1, ("counts b",): 2, ("c",): 1}
    # An ended query passes its label to the next query of that name, which continues its counters.
    exported.add(started("d", "counts")[1])
    assert exported.samples()[m.STARTS] == {("counts",): 2, ("counts b",): 2, ("c",): 1}
    other.ended()


def test_queries_that_ended_long_ago_are_forgotten() -> None:
    exported = ExportedQueries()
    _, running = started("running", "running")
    exported.add(running)
    for number in range(100):
        query, metrics = started(f"q{number}", "")
        exported.add(metrics)
        query.ended()
    labels = {labels[0] for labels in exported.samples()[m.UP]}
    assert {"running", "q99", "q98"} <= labels
    assert len(labels) <= 25
