from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.session.configuration import SessionConfiguration
from pillarbox._runtime.spark.starting.started import StartedQuery
from pillarbox_tools.doctor import rules as examination
from pillarbox_tools.doctor.finding import machine_snapshot
from pillarbox_tools.doctor.rules import FIRST_EPOCH_RULES, RULES, START_RULES, Rule, examine, warn_of_findings
from pillarbox_tools.model.snapshot import Snapshot
from pillarbox_tools.watching.watched import WatchedQuery
from tests.doctor.test_rules import SETTINGS, VERSIONS, facts, growing
from tests.model.made import keyed, model, progress, source


@pytest.fixture(autouse=True)
def _of_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "_logged", set())


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert {record.name for record in caplog.records} <= {"pillarbox"}
    caplog.clear()
    return messages


def started(**settings: str) -> Snapshot:
    return machine_snapshot(VERSIONS, {**SETTINGS, **settings})


def test_a_healthy_start_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_findings(started(), START_RULES)
    warn_of_findings(facts(), FIRST_EPOCH_RULES)
    assert warned(caplog) == []


def test_a_finding_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    setting = "spark.python.worker.reuse"
    facts = started(**{setting: "False"})
    warn_of_findings(facts, START_RULES)
    [messages] = warned(caplog)
    assert messages.startswith(f"{setting} is false: each Spark task starts a new Python process")
    assert messages.endswith("(pillarbox doctor's finding: worker_reuse)")
    warn_of_findings(facts, START_RULES)
    assert warned(caplog) == []
    # Another one is another one: of another rule, or of the same.
    warn_of_findings(started(parallelism="96"), START_RULES)
    warn_of_findings(started(parallelism="128"), START_RULES)
    assert [message.partition(" state")[0] for message in warned(caplog)] == ["the query has 96", "the query has 128"]


def test_the_first_epoch_tells_of_the_workers(caplog: pytest.LogCaptureFixture) -> None:
    result = model()
    other = {**VERSIONS, "pandas": "2.2.0"}
    tasks = [source(records_in=9, versions=VERSIONS), keyed(subtask=0, versions=other), keyed(subtask=1)]
    result.progressed(progress(0, *tasks))
    snapshot = result.snapshot()
    assert snapshot.run.worker_versions == [VERSIONS, other]
    facts = replace(snapshot, run=replace(snapshot.run, versions=VERSIONS, settings=SETTINGS))
    warn_of_findings(facts, FIRST_EPOCH_RULES)
    [messages] = warned(caplog)
    assert "1 package differs between workers and driver: pandas 2.2.0 (driver: 2.3.3)" in messages


def test_the_first_epoch_tells_of_memory(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_findings(facts(growing(lambda n: {"process_bytes": 900 << 20}, 1)), FIRST_EPOCH_RULES)
    [messages] = warned(caplog)
    assert messages.startswith("a worker process uses 88% of its 1024 MiB")


def test_a_rule_that_fails_stops_no_query(caplog: pytest.LogCaptureFixture) -> None:
    def fails(snapshot: Snapshot) -> str | None:
        raise ValueError("a version without numbers")

    with caplog.at_level(logging.DEBUG, "pillarbox"):
        warn_of_findings(started(), [fails])
    [record] = caplog.records
    assert record.levelno == logging.DEBUG
    assert "a version without numbers" in record.getMessage()


def test_rules_of_a_start_know_their_facts_then() -> None:
    def is_known(rule: Rule, snapshot: Snapshot) -> bool:
        return examine(snapshot, [rule])[0].status != "unknown"

    of_workers = {"workers_python", "version_skew"}
    assert {rule.__name__ for rule in START_RULES if not is_known(rule, started())} == of_workers
    assert {rule.__name__ for rule in RULES if is_known(rule, started())} | of_workers == {
        rule.__name__ for rule in START_RULES
    }
    told_by_home = {"host": "one", "process": 9, "process_bytes": 1 << 27, "memory_limit": 8 << 30}
    first = model()
    first.progressed(progress(0, source(records_in=9, versions=VERSIONS), keyed(**told_by_home)))
    snapshot = first.snapshot()
    facts = replace(snapshot, run=replace(snapshot.run, versions=VERSIONS, settings=SETTINGS))
    assert [rule.__name__ for rule in FIRST_EPOCH_RULES if not is_known(rule, facts)] == []


def test_the_parallelism_of_a_checkpoint_is_taken_where_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = None  # any access would fail
    checkpoint = Checkpoint(spark, "/checkpoints/counts")
    assert checkpoint.cached_parallelism is None
    monkeypatch.setitem(vars(checkpoint), "last_committed", 7)
    assert checkpoint.cached_parallelism is None
    monkeypatch.setitem(vars(checkpoint), "_last_partitions", {7: 40})
    assert checkpoint.cached_parallelism == 40


def test_the_workers_are_looked_at_in_the_first_epoch_that_has_tasks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark also reports triggers without work."""
    query: Any = SimpleNamespace(id="q", runId="r", name="counts")
    start: Any = SimpleNamespace(checkpoint=None, spark=None)
    looked_at = WatchedQuery(StartedQuery(query, start, configuration=SessionConfiguration({}, VERSIONS)))
    of_others = [source(records_in=9, versions={**VERSIONS, "pandas": "2.2.0"})]
    for number, tasks in enumerate(([], of_others, of_others)):
        looked_at.take([progress(number, *tasks)])
        assert len(warned(caplog)) == (number == 1)
