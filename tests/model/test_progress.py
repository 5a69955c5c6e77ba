from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from pillarbox._json import read
from pillarbox_tools.model.epochs import epoch_of
from pillarbox_tools.model.snapshot import Snapshot, SnapshotEpoch
from tests.model.made import START, keyed, model, progress, source


def test_an_epoch_has_sparks_parts_and_ours() -> None:
    tasks = [
        source(subtask=0, records_in=6, records_out=4, busy_ms=30, operators=[[6, 4]]),
        source(subtask=1, records_in=4, records_out=4, busy_ms=10, operators=[[4, 4]], started=START + 5),
        keyed(subtask=0, records_in=8, busy_ms=40, idle_ms=5, keys=3, event_time_timers=2, state_bytes=100,
              watermark=START - 9, operators=[[8, 2], [2, 1]], started=START + 50, attempt=1),
        keyed(subtask=1, records_in=0, busy_ms=1, keys=1, state_bytes=10, watermark=START, operators=[[0, 0], [0, 0]],
              started=START + 60),
    ]  # fmt: skip
    epoch = epoch_of(progress(3, *tasks))
    assert (epoch.number, epoch.began, epoch.duration, epoch.rows) == (3, START - 17_000, 1000, 10)
    assert epoch.parts == {"latestOffset": 5, "addBatch": 900, "walCommit": 50}
    assert (epoch.state_commit, epoch.output_rows) == (15, None)
    [read_source] = epoch.sources
    assert read_source.end == {"t": {"0": 5}}
    first, second = epoch.vertices
    assert (first.number, first.tasks, first.records_in, first.operators) == (0, 2, 10, [[10, 8]])
    assert (first.began, first.ended) == (START, START + 30)
    assert (second.busiest, second.busiest_ms, second.busy_ms, second.repeated) == (0, 40, 41, 1)
    assert (second.keys, second.timers, second.state_bytes, second.watermark) == (4, 2, 110, START - 9)
    assert second.operators == [[8, 2], [2, 1]]
    assert (second.began, second.ended) == (START + 50, START + 95)
    assert [(task.number, task.subtask, task.timers) for task in epoch.tasks] == [
        *((0, 0, None), (0, 1, None)),
        *((1, 0, 2), (1, 1, 0)),
    ]


def test_rows_are_those_of_the_sources_where_spark_leaves_out_the_sum() -> None:
    """Spark Connect's progress reports have no total."""
    report = progress(3, source(records_in=6))
    assert epoch_of(report).rows == 6
    assert epoch_of({**report, "numInputRows": None}).rows == 10
    assert epoch_of({**report, "numInputRows": 0}).rows == 0


def test_a_task_that_ran_twice_counts_once_and_is_repeated() -> None:
    epoch = epoch_of(
        progress(1, keyed(records_in=5, operators=[[5, 1]]), keyed(records_in=5, attempt=1, operators=[[5, 1]]))
    )
    [vertex] = epoch.vertices
    assert (vertex.records_in, vertex.operators, vertex.repeated, vertex.tasks) == (5, [[5, 1]], 1, 1)
    assert len(epoch.tasks) == 2


def test_programs_of_a_query_are_told_apart() -> None:
    first, second = progress(1, keyed(records_in=1)), progress(1, keyed(records_in=2), name="pillarbox 2")
    first["observedMetrics"] = second["observedMetrics"] | {
        name: values for name, values in first["observedMetrics"].items() if values["tasks"]
    }
    first["observedMetrics"]["mine"] = {"rows": 5}
    assert [(vertex.program, vertex.records_in) for vertex in epoch_of(first).vertices] == [
        ("pillarbox", 1),
        ("pillarbox 2", 2),
    ]


def test_the_name_of_a_python_source_is_the_same_in_each_run() -> None:
    report = progress(1, source(records_in=9))
    report["sources"][0]["description"] = "org.apache.spark.python.PythonMicroBatchStream@221f402a"
    assert epoch_of(report).sources[0].description == "PythonMicroBatchStream"


def test_json_and_back() -> None:
    query = model()
    query.progressed(
        progress(1, source(records_in=3), keyed(records_in=3, counters={"count.late": 2}, gauges={"g": 0.5}))
    )
    query.failed('pillarbox.OperatorError: bad\nfailure: {"error": "OperatorError", "uid": "count"}')
    snapshot = query.snapshot()
    assert read(Snapshot, json.loads(json.dumps(asdict(snapshot)))) == snapshot


def test_fields_of_a_later_version_are_left_out() -> None:
    query = model()
    query.progressed(progress(1))
    fields = json.loads(json.dumps(asdict(query.snapshot())))
    fields["later"] = 1
    fields["epochs"][0]["later"] = {"a": 1}
    document = read(Snapshot, fields)
    assert isinstance(document.epochs[0], SnapshotEpoch)
    assert document.epochs[0].number == 1
    del fields["id"]
    with pytest.raises(TypeError):
        read(Snapshot, fields)
