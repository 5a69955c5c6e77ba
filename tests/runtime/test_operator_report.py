from __future__ import annotations

from typing import Any

import pytest

from pillarbox import (
    BroadcastProcessFunction,
    LocalJob,
    MapStateDescriptor,
    OperatorReport,
    ProgramError,
    StreamExecutionEnvironment,
    TaskReport,
    metrics,
)
from pillarbox._elements.task_report import text_of_report
from pillarbox._reports.operator_report import by_operator
from tests.model.made import observed_as

SOURCE = {"vertex": "in", "uid": "", "level": 0, "epoch": 3, "mails": 1, "alignment_ms": 0}
COUNT = {**SOURCE, "vertex": "count -> out", "uid": "count", "level": 1}
TIMES = {"bytes_out": 10, "idle_ms": 1, "back_pressured_ms": 2, "state_ms": 3}


def task(subtask: int, records: int, **values: Any) -> TaskReport:
    fields = {**COUNT, **TIMES, "records_in": records, "records_out": 2 * records, "busy_ms": 10 * records, **values}
    return TaskReport(subtask=subtask, **{"counters": {}, **fields})


def progress(*tasks: TaskReport, name: str = "pillarbox") -> dict[str, Any]:
    return {"observedMetrics": {observed_as(name): {"tasks": [text_of_report(task) for task in tasks]}}}


def test_sums_the_busiest_task_and_what_is_lowest() -> None:
    first = task(0, 5, watermark=70, keys=2, state_bytes=100, event_time_timers=1, next_wake_up=900, unfinished=True)
    second = task(3, 7, watermark=60, keys=1, state_bytes=30, processing_time_timers=4, unfinished=False)
    (report,) = metrics(progress(first, second), by="operator")
    assert report == OperatorReport(
        "count -> out", "count", 1, 3, 2, 12, 24, 20, 120, 2, 4, 6, busiest=3, busiest_ms=70, watermark=60, keys=3,
        timers=5, next_wake_up=900, unfinished=[0], state_bytes=130, state_bytes_written=0,
        most_back_pressured=0, most_back_pressured_ms=2, program="pillarbox", ended=76,
    )  # fmt: skip


def test_counts_add_up_and_of_latencies_the_largest_counts() -> None:
    counters = [{"ask.requests": n, "ask.latency_p99_us": 1000 - n, "ask.in_flight_max": n, "mine": 1} for n in (3, 5)]
    reports = [
        task(n, 1, counters=values, rate_limited_ms=limited) for n, values, limited in zip((0, 1), counters, (40, 20))
    ]
    (report,) = metrics(progress(*reports), by="operator")
    assert report.counters == {"ask.requests": 8, "ask.latency_p99_us": 997, "ask.in_flight_max": 5, "mine": 2}
    assert report.rate_limited_ms == 40


def test_ways_to_the_state_its_format_and_gauges() -> None:
    reasons = ["plain", "pickle: 'x' has no type"]
    reports = [
        task(n, 1, state_sync=sync, state_format=reasons[n % 2], gauges={"mine.size": n / 2}, alignment_ms=n)
        for n, sync in enumerate(["in step", "loaded", "in step"])
    ]
    (report,) = metrics(progress(*reports), by="operator")
    assert report.state_syncs == {"in step": 2, "loaded": 1}
    assert report.state_format == reasons[1]
    assert report.gauges == {"mine.size": (0.0, 1.0)}
    assert (report.alignment_ms, report.mailbox_latency_ms) == (2, None)


def test_the_first_of_several_busiest_tasks_whichever_comes_first() -> None:
    for tasks in [(task(4, 7), task(2, 7)), (task(2, 7), task(4, 7))]:
        (report,) = metrics(progress(*tasks), by="operator")
        assert (report.busiest, report.most_back_pressured) == (2, 2)


def test_a_task_that_ran_twice_counts_once_and_programs_are_apart() -> None:
    (once,) = metrics(progress(task(0, 5), task(0, 5)), by="operator")
    assert (once.tasks, once.records_in) == (1, 5)
    both = by_operator([task(0, 5, program="pillarbox"), task(0, 7, program="pillarbox 2")])
    assert [report.records_in for report in both] == [5, 7]


class Rules(BroadcastProcessFunction):
    def process_element(self, value, ctx):
        yield value

    def process_broadcast_element(self, value, ctx):
        yield value


def test_records_that_are_broadcast_count_once() -> None:
    env = StreamExecutionEnvironment().set_parallelism(4)
    numbers, rules = env.from_collection(range(100)).rebalance(), env.from_collection([1, 2, 3])
    state: MapStateDescriptor[Any, Any] = MapStateDescriptor("rules")
    stream = numbers.connect(rules.broadcast(state)).process(Rules()).uid("rules")
    from pillarbox._graph.transformations import SinkTransformation

    sink = SinkTransformation(env._next(), "out", [stream._plain_step()], output="out", uid="out")
    with LocalJob(env._compile("test", [sink])) as job:
        job.run()
        (report,) = by_operator(report for report in job.reports if report.uid == "rules")
    assert report.tasks == 4
    assert report.records_in == 103


def test_printed_output_is_short() -> None:
    text = repr(task(0, 5))
    assert text.startswith("TaskReport(vertex='count -> out', uid='count', level=1, subtask=0, epoch=3, records_in=5")
    assert "None" not in text and "alignment_ms" not in text and "counters" not in text
    table = str(metrics(progress(task(0, 5_000, keys=2), task(1, 7, keys=1)), by="operator"))
    head, row = table.splitlines()
    assert head.split()[:4] == ["operator", "tasks", "in", "out"]
    assert row.split()[:5] == ["count", "2", "5,007", "10,014", "50,070"]
    assert "None" not in repr(metrics(progress(task(0, 5)), by="operator"))


def test_an_unknown_value_of_by() -> None:
    with pytest.raises(ProgramError, match='by= must be "task" or "operator", not \'uid\''):
        metrics(None, by="uid")  # type: ignore[call-overload]
    assert metrics(None, by="operator") == []
