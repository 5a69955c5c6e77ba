from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox import CheckpointMismatchError
from pillarbox._graph.description import ProgramDescription
from pillarbox._graph.layout import Layout
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.running import heartbeat, progress_reader
from pillarbox._runtime.spark.running.heartbeat import Heartbeat, Pulse
from pillarbox._runtime.spark.running.stages import Stage
from pillarbox._runtime.spark.session.configuration import SessionConfiguration
from pillarbox._runtime.spark.starting.started import StartedQuery
from pillarbox_tools.model.condition import conditions_of
from pillarbox_tools.model.snapshot import Snapshot, SnapshotRun
from pillarbox_tools.watching import following, history, stored, watched
from pillarbox_tools.watching.stored import StoredQuery, stored_snapshot
from pillarbox_tools.watching.watched import WatchedQuery
from tests.model.made import START, keyed, model, plan, progress, source

NO_SPARK: Any = None
_PROGRAMS = [
    {
        "sources": [{"name": "payments"}],
        "operators": [
            {"uid": "count", "number": 1, "level": 1, "kind": "process", "name": "Count", "key": {}, "chain": ["map-3"]}
        ],
    }
]


class FakeCheckpoint(Checkpoint):
    def __init__(self) -> None:
        super().__init__(NO_SPARK, "/cp")
        self.query_id = "q"
        self.programs: list[dict[str, Any]] | None = _PROGRAMS
        self.last_committed = 4
        self.history: list[Snapshot] = []
        self.now = START + 600_000
        self.heartbeat: Heartbeat | None = None

    def newest(self) -> dict[str, Any] | None:
        return None if self.programs is None else {"programs": self.programs}


@pytest.fixture
def checkpoint(monkeypatch: pytest.MonkeyPatch) -> FakeCheckpoint:
    result = FakeCheckpoint()
    monkeypatch.setattr(stored, "Checkpoint", lambda spark, checkpoint: result)
    monkeypatch.setattr(stored, "read_history", lambda spark, checkpoint: result.history)
    monkeypatch.setattr(stored, "newest_heartbeat", lambda spark, checkpoint: result.heartbeat)
    monkeypatch.setattr(stored, "now_ms", lambda: result.now)
    monkeypatch.setattr(stored, "_FRESH", 0.0)
    return result


def written(*, ended: bool) -> Snapshot:
    query = model()
    query.progressed(progress(1, source(records_in=9), keyed(records_in=9)))
    if ended:
        query.ended()
    return replace(query.snapshot(), is_live=False)


def test_other_directories_are_refused(checkpoint: FakeCheckpoint) -> None:
    checkpoint.query_id = None
    with pytest.raises(
        CheckpointMismatchError, match=r"^/cp is not a checkpoint of a query: pass the checkpointLocation"
    ):
        stored_snapshot(NO_SPARK, "/cp")


def test_without_a_history_the_notes_say_what_there_is(checkpoint: FakeCheckpoint) -> None:
    snapshot = stored_snapshot(NO_SPARK, "/cp")
    assert (snapshot.id, snapshot.run.status, snapshot.is_live) == ("q", "unknown", False)
    assert [(vertex.uid, vertex.name, vertex.is_keyed) for vertex in snapshot.plan.vertices] == [  # type: ignore[union-attr]
        ("", "payments", False),
        ("count", "Count -> map-3", True),
    ]
    assert snapshot.missing == [
        "No history: the query was not started with pillarbox.start(), or its driver died while it started.",
        "The last committed epoch is 4.",
    ]
    checkpoint.programs = None
    snapshot = stored_snapshot(NO_SPARK, "/cp")
    assert snapshot.plan is None
    assert "The checkpoint has no description of its program either." in snapshot.missing


def test_of_a_query_that_has_ended_nothing_is_missing(checkpoint: FakeCheckpoint) -> None:
    checkpoint.history = [written(ended=True), replace(written(ended=True), run=SnapshotRun("before", 1, 2, "failed"))]
    snapshot = stored_snapshot(NO_SPARK, "/other/place")
    assert (snapshot.run.status, snapshot.missing, snapshot.checkpoint) == ("stopped", [], "/other/place")
    assert [(run.id, run.status) for run in snapshot.earlier] == [("before", "failed")]


def test_the_age_of_a_query_that_runs_elsewhere(checkpoint: FakeCheckpoint) -> None:
    checkpoint.history = [written(ended=False)]
    checkpoint.now = START + 60_000
    shown = StoredQuery(NO_SPARK, "/cp")
    assert shown.snapshot().missing == [
        "The query runs in another process; its driver wrote this data 1.0 minutes ago."
    ]
    before = shown.refresh()
    assert shown.refresh() == before, "nothing is new"
    checkpoint.now = START + 7_200_000
    assert shown.refresh() > before, "it is older than it was"
    assert shown.snapshot().missing == [
        "The query's driver wrote this data 120 minutes ago, and has not reported the query's end: it died, or it"
        " cannot write."
    ]
    assert [condition.name for condition in conditions_of(shown.snapshot())] == ["driver gone"]
    # A heartbeat shows that it lives, although no epoch has ended for two hours; it is heard of, and has no input.
    checkpoint.heartbeat = Heartbeat(checkpoint.now - 30_000, "r", "elsewhere", 7, 0, reported=checkpoint.now - 30_000)
    shown.refresh()
    assert shown.snapshot().missing == [
        "The query runs in another process; its driver wrote this data 0.5 minutes ago."
    ]
    assert [condition.name for condition in conditions_of(shown.snapshot())] == ["silent source"]
    stages = [Stage(7, 4, 0, 4, 0, 0), Stage(8, 2, 1, 1, 0, 1, ["host-3"])]
    checkpoint.heartbeat = Heartbeat(checkpoint.now, "r", "elsewhere", 7, 0, 2, checkpoint.now - 600_000, stages=stages)
    shown.refresh()
    assert [condition.line for condition in conditions_of(shown.snapshot())] == [
        "Epoch 2 has run for 10 min (usually 1.0 s): 1 of 2 tasks of 'count', on host-3, is not done"
    ]
    assert shown.heartbeat == checkpoint.heartbeat


def test_the_last_reading_is_shown_while_the_checkpoint_is_unreadable(
    checkpoint: FakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.history = [written(ended=True)]
    shown = StoredQuery(NO_SPARK, "/cp")
    before = shown.refresh()

    def gone(spark: Any, checkpoint: str) -> Any:
        raise ConnectionError("the store is gone")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(stored, "read_history", gone)
        assert shown.refresh() > before
        assert shown.refresh() == before + 1, "it is told once"
        assert shown.snapshot().epochs[-1].rows == 9
        assert shown.snapshot().missing == [
            "The checkpoint could not be read again, so the data is old: ConnectionError: the store is gone."
        ]
    assert shown.refresh() == before + 2
    assert shown.snapshot().missing == []


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> WatchedQuery:
    query: Any = SimpleNamespace(id="q", runId="r", name="counts", recentProgress=[])
    start: Any = SimpleNamespace(checkpoint="/cp", spark=None, trigger="ProcessingTimeTrigger(0)")
    return WatchedQuery(StartedQuery(query, start, configuration=SessionConfiguration({}, {})))


def test_a_query_that_its_writer_started_is_followed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    has_ended = threading.Event()
    query: Any = SimpleNamespace(id="q", runId="r", name="counts", isActive=True)
    query.awaitTermination = lambda timeout: has_ended.wait(0.01)
    reports = [progress(1, source(records_in=9))]
    monkeypatch.setattr(progress_reader, "new_progress", lambda query, mark: reports if mark is None else [])
    start: Any = SimpleNamespace(checkpoint=None, spark=None)
    followed = following.watched(StartedQuery(query, start, configuration=SessionConfiguration({}, {})))
    while followed.snapshot().newest is None:
        time.sleep(0.01)
    has_ended.set()
    while not followed.has_ended:
        time.sleep(0.01)
    assert followed.snapshot().run.status == "stopped"


def test_the_history_is_read_once_however_often_the_page_asks(
    running: WatchedQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    def read(spark: Any, checkpoint: str) -> list[Snapshot]:
        reads.append(checkpoint)
        return [replace(written(ended=True), run=SnapshotRun("before", 1, 2, "failed"))]

    monkeypatch.setattr(watched, "read_history", read)
    for _ in range(3):
        assert [run.id for run in running.snapshot().earlier] == ["before"]
    assert reads == ["/cp"]


def test_known_figures_are_shown_after_spark_has_ended(running: WatchedQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*arguments: Any) -> Any:
        raise ConnectionError("Java is gone")

    monkeypatch.setattr(watched, "read_history", gone)
    running.progressed(progress(1, source(records_in=9)))
    result = running.snapshot()
    assert result.epochs[-1].rows == 9
    assert result.missing == [
        "Earlier runs are unknown, because the history cannot be read: ConnectionError: Java is gone."
    ]


def test_the_plan_has_the_subtasks_of_the_checkpoint() -> None:
    content = {"operators": [{"uid": "count", "number": 1}, {"uid": "own", "number": 2}]}
    description = ProgramDescription(Layout(2, 128), content, (None, 3))
    original = plan()
    with_own = replace(original, vertices=[*original.vertices, replace(original.vertices[1], number=2, parallelism=3)])
    program: Any = SimpleNamespace(summary=SimpleNamespace(plan=with_own, description=description))
    unknown: Any = SimpleNamespace(summary=SimpleNamespace(plan=None))

    def subtasks(*layouts: Layout) -> list[int]:
        result = watched.plan_in([program, unknown], layouts)
        assert result is not None
        return [vertex.parallelism for vertex in result.vertices]

    assert subtasks() == [0, 2, 3]
    # The source has Spark's partitions, and an operator with its own parallelism keeps it.
    assert subtasks(Layout(8, 128), Layout(1, 1)) == [0, 8, 3]
    assert watched.plan_in([unknown]) is None


def test_the_start_of_a_run_is_written_at_once(running: WatchedQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[str] = []
    folder = SimpleNamespace(names=lambda: [*files], add=lambda name, text: files.append(name), remove=files.remove)
    monkeypatch.setattr(watched, "read_history", lambda spark, checkpoint: [])
    monkeypatch.setattr(
        history, "session_of", lambda spark: SimpleNamespace(has_jvm=True, hadoop_folder=lambda path: folder)
    )
    running.beat(Heartbeat(START, "r", "one", 9, epoch=0, since=START))
    running.take([])
    assert [name[-12:] for name in files] == ["r-000001.txt"], "its driver may be killed within a minute"
    running.take([progress(0, source(records_in=9))])
    assert len(files) == 1


def test_the_running_epoch_follows_those_of_earlier_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        heartbeat, "heartbeat_files", lambda spark, checkpoint: SimpleNamespace(write=lambda beat: None)
    )
    monkeypatch.setattr(heartbeat, "Checkpoint", lambda spark, checkpoint: SimpleNamespace(last_committed=41))
    query: Any = SimpleNamespace(id="q", runId="r", status={"isTriggerActive": True})
    start: Any = SimpleNamespace(checkpoint="/cp", spark=None)
    pulse = Pulse(StartedQuery(query, start), clock=lambda: START)
    assert pulse.beat().epoch == 42
    pulse.take([progress(42, source(records_in=9))])
    assert pulse.beat().epoch == 43
