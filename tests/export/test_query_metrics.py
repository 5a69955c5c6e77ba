from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox._reports.plan import Plan, PlanOperator
from pillarbox_tools.export import metric as m
from pillarbox_tools.export.metric import METRICS, Metric
from pillarbox_tools.export.query_metrics import MOST_NAMES, QueryMetrics
from pillarbox_tools.model.snapshot import SnapshotRun
from tests.model.made import START, keyed, model, plan, progress, query_model, source

COUNT = ("count",)


def value(metrics: QueryMetrics, metric: Metric, *labels: str) -> float | None:
    return metrics.values().get((metric, labels))


def of_kind(kind: str, metrics: QueryMetrics) -> dict[Any, float]:
    return {series: value for series, value in metrics.values().items() if series[0].kind == kind}


counts = st.integers(0, 1000)
tasks = st.fixed_dictionaries(
    {
        "subtask": st.integers(0, 3),
        "records_in": counts,
        "records_out": counts,
        "busy_ms": counts,
        "idle_ms": counts,
        "back_pressured_ms": counts,
        "state_ms": counts,
        "keys": counts,
        "counters": st.dictionaries(
            st.sampled_from(["count.late_records_dropped", "map-3.seen", "count.odd.name"]), counts
        ),
    }
)


@pytest.mark.slow("a progress report for each epoch")
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.lists(tasks, max_size=4, unique_by=lambda task: task["subtask"])), max_size=6
    )
)
def test_counters_are_sums_of_epochs_and_never_fall(epochs: list[tuple[int, list[dict[str, Any]]]]) -> None:
    query = model()
    metrics = QueryMetrics(query)
    newest, before = -1, of_kind("counter", metrics)
    expected = {m.BUSY: 0, m.IDLE: 0, m.BACK_PRESSURED: 0, m.STATE_TIME: 0, m.RECORDS_IN: 0, m.SENT: 0, m.TASKS: 0}
    fields = ("busy_ms", "idle_ms", "back_pressured_ms", "state_ms", "records_in", "records_out")
    late = seen = odd = number_of_epochs = 0
    keys: dict[int, int] = {}
    for number, reports in epochs:
        query.progressed(
            progress(number, *(keyed(**report, operators=[[report["records_in"], 0]]) for report in reports))
        )
        if number > newest:  # a repeated report is ignored
            newest, number_of_epochs = number, number_of_epochs + 1
            for metric, field in zip(expected, fields):
                expected[metric] += sum(report[field] for report in reports)
            expected[m.TASKS] += len(reports)
            late += sum(report["counters"].get("count.late_records_dropped", 0) for report in reports)
            seen += sum(report["counters"].get("map-3.seen", 0) for report in reports)
            odd += sum(report["counters"].get("count.odd.name", 0) for report in reports)
            keys |= {report["subtask"]: report["keys"] for report in reports}
        after = of_kind("counter", metrics)
        assert all(after[series] >= count for series, count in before.items())
        before = after
    assert value(metrics, m.EPOCHS) == (number_of_epochs or None)
    assert value(metrics, m.EPOCH_TIME) == (1000 * number_of_epochs or None)
    for metric, total in expected.items():
        assert (value(metrics, metric, *COUNT) or 0) == total
    assert (value(metrics, m.LATE, *COUNT) or 0) == late
    assert (value(metrics, m.USER_COUNT, "map-3", "seen") or 0) == seen
    assert (value(metrics, m.USER_COUNT, "count", "odd.name") or 0) == odd
    # Subtasks that did not run in the newest epochs count with their last report.
    assert (value(metrics, m.KEYS, *COUNT) or 0) == sum(keys.values())


def series(subtasks: int, keys: int, sampled: list[str]) -> set[Any]:
    query = model()
    metrics = QueryMetrics(query)
    reports = [
        keyed(subtask=number, keys=keys, key_sample=[10, dict.fromkeys(sampled, 1)], watermark=START)
        for number in range(subtasks)
    ]
    query.progressed(progress(1, *reports, *(source(subtask=number) for number in range(subtasks))))
    return {*metrics.values()}


@given(st.integers(2, 8), st.integers(1, 10_000), st.lists(st.sampled_from("abcdef"), max_size=6))
def test_the_number_of_series_does_not_depend_on_subtasks_and_keys(
    subtasks: int, keys: int, sampled: list[str]
) -> None:
    assert series(subtasks, keys, sampled) == series(1, 0, [])


def test_names_of_user_metrics_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    query = model()
    metrics = QueryMetrics(query)
    with caplog.at_level(logging.WARNING, "pillarbox"):
        for number in range(5):
            counters = {f"count.key-{number}-{index}": 1 for index in range(MOST_NAMES // 2)}
            query.progressed(progress(number, keyed(counters=counters, gauges={f"map-3.of-{number}": 1.0})))
    standing = metrics.values()
    assert len([series for series in standing if series[0] is m.USER_COUNT]) <= MOST_NAMES
    user = {labels for metric, labels in standing if len(metric.labels) == 2}
    assert len(user & {labels for metric, labels in standing if metric is m.USER_COUNT}) <= MOST_NAMES
    assert standing[m.LEFT_OUT, ()] == MOST_NAMES
    [warning] = caplog.messages
    assert "'counts'" not in warning and "query counts: its functions have more than 200 metric names" in warning
    # Known names still count.
    query.progressed(progress(9, keyed(counters={"count.key-0-7": 4})))
    assert value(metrics, m.USER_COUNT, "count", "key-0-7") == 5


def test_a_counter_that_falls_adds_nothing() -> None:
    query = model()
    metrics = QueryMetrics(query)
    for number, count in enumerate([5, -7, 1]):
        query.progressed(progress(number, keyed(counters={"count.seen": count})))
    assert value(metrics, m.USER_COUNT, "count", "seen") == 6


def _asking() -> Plan:
    result = plan()
    [first, second] = result.vertices
    return replace(result, vertices=[first, replace(second, calls=["map-3"])])


def test_calls_of_a_service() -> None:
    counters = {"requests": 9, "retried": 2, "completed": 5, "failed": 1, "timed_out": 1, "dropped": 1, "cache_hits": 3,
            "in_flight": 4, "in_flight_max": 8, "latency_p50_us": 1500, "latency_p95_us": 0, "latency_p99_us": 9000,
            "rate_limited_ms": 70, "mine": 1}  # fmt: skip
    query = query_model("q", "counts", "", _asking(), SnapshotRun("r", START), clock=lambda: START)
    metrics = QueryMetrics(query)
    for number in (1, 2):
        query.progressed(progress(number, keyed(counters={f"map-3.{name}": count for name, count in counters.items()})))
    operator = "map-3"
    sums = (m.REQUESTS, m.RETRIED, m.COMPLETED, m.FAILED, m.TIMED_OUT, m.DROPPED, m.CACHE_HITS, m.RATE_LIMITED)
    assert [value(metrics, metric, operator) for metric in sums] == [18, 4, 10, 2, 2, 2, 6, 140]
    assert [value(metrics, metric, operator) for metric in (m.IN_FLIGHT, m.IN_FLIGHT_MAX)] == [4, 8]
    quantiles = [value(metrics, m.LATENCY, operator, quantile) for quantile in ("0.5", "0.95", "0.99")]
    assert quantiles == [1500, None, 9000]  # 0: there was no answer
    assert value(metrics, m.USER_COUNT, operator, "mine") == 2


def test_calls_and_budgets_of_a_keyed_function() -> None:
    counters = {"calls": 9, "calls_reused": 2, "in_flight": 4, "in_flight_max": 8, "longest_key": 3, "timed_out": 1,
            "blocked_ms": 1300, "budget.model.granted": 7, "budget.model.spent": 90, "budget.a.b.stops": 1}  # fmt: skip
    query = query_model("q", "counts", "", _asking(), SnapshotRun("r", START), clock=lambda: START)
    metrics = QueryMetrics(query)
    for number in (1, 2):
        query.progressed(progress(number, keyed(counters={f"map-3.{name}": count for name, count in counters.items()})))
    operator = "map-3"
    assert [value(metrics, metric, operator) for metric in (m.CALLS, m.CALLS_REUSED, m.TIMED_OUT)] == [18, 4, 2]
    gauges = (m.IN_FLIGHT, m.IN_FLIGHT_MAX, m.LONGEST_KEY, m.BLOCKED)
    assert [value(metrics, metric, operator) for metric in gauges] == [4, 8, 3, 1300]
    assert value(metrics, m.OF_BUDGETS["granted"], operator, "model") == 14
    assert value(metrics, m.OF_BUDGETS["spent"], operator, "model") == 180
    assert value(metrics, m.OF_BUDGETS["stops"], operator, "a.b") == 2
    assert not [labels for metric, labels in metrics.values() if metric is m.USER_COUNT]


def test_a_function_that_counts_under_a_name_of_asynchronous_operators() -> None:
    query = query_model("q", "counts", "", _asking(), SnapshotRun("r", START), clock=lambda: START)
    metrics = QueryMetrics(query)
    query.progressed(progress(1, keyed(counters={"count.failed": 3, "count.late_records_dropped": 2})))
    assert value(metrics, m.FAILED, "count") is None
    assert value(metrics, m.USER_COUNT, "count", "failed") == 3
    assert value(metrics, m.LATE, "count") == 2


def test_operators_of_a_chain_and_their_broadcast_records() -> None:
    query = model()
    metrics = QueryMetrics(query)
    tasks = [keyed(subtask=n, records_in=7, broadcast_in=2, operators=[[7, 3], [3, 1]]) for n in (0, 1)]
    query.progressed(progress(1, *tasks))
    came = [value(metrics, m.RECORDS_IN, uid) for uid in ("count", "map-3")]
    went = [value(metrics, m.RECORDS_OUT, uid) for uid in ("count", "map-3")]
    assert (came, went) == ([12, 6], [6, 2])


def test_watermarks() -> None:
    query = model()
    metrics = QueryMetrics(query)
    query.progressed(progress(1, keyed(watermark=START - 5000), keyed(subtask=1, watermark=START - 20_000)))
    assert value(metrics, m.WATERMARK, *COUNT) == START - 20_000
    end = START - 20_000 + 1000 + 1000  # the epoch begins at 22:13:01, and takes a second
    assert value(metrics, m.WATERMARK_LAG, *COUNT) == end - (START - 20_000) == 2000
    query.progressed(progress(2, keyed(watermark=(1 << 63) - 1)))  # event time has ended
    assert value(metrics, m.WATERMARK, *COUNT) is None
    assert value(metrics, m.WATERMARK_LAG, *COUNT) is None


def test_sources_and_their_backlog() -> None:
    query = model()
    metrics = QueryMetrics(query)
    kafka = {
        "description": "KafkaV2[Subscribe[payments]]",
        "numInputRows": 10,
        "startOffset": {"payments": {"0": 0}},
        "endOffset": {"payments": {"0": 5, "1": 7}},
        "latestOffset": {"payments": {"0": 9, "1": 7, "2": 90}},
    }
    rate = {"description": "rate", "numInputRows": 1, "startOffset": "1", "endOffset": "4", "latestOffset": "6"}
    silent = {"description": "rate", "numInputRows": 2, "startOffset": None, "endOffset": "4", "latestOffset": None}
    query.progressed(progress(1, sources=[kafka, rate, silent]))
    labels = ["KafkaV2[Subscribe[payments]]", "rate", "rate 2"]
    assert [value(metrics, m.SOURCE_BACKLOG, label) for label in labels] == [94, 2, None]
    assert [value(metrics, m.SOURCE_ROWS, label) for label in labels] == [10, 1, 2]


def test_sparks_parts_the_commit_the_sink_and_workers() -> None:
    query = model()
    metrics = QueryMetrics(query)
    query.progressed(
        progress(1, keyed(process_bytes=50), keyed(subtask=1, process_bytes=70), sink={"numOutputRows": 3})
    )
    query.progressed(progress(2))
    assert value(metrics, m.SPARK_TIME, "addBatch") == 1800
    assert value(metrics, m.STATE_COMMIT) == 30
    assert value(metrics, m.ROWS_OUT) == 3
    assert value(metrics, m.WORKER_MEMORY) == 70
    assert value(metrics, m.EPOCH_NUMBER) == 2


def test_counters_of_home_restarts_and_adoptions() -> None:
    query = model()
    metrics = QueryMetrics(query)
    for number in (1, 2):
        restarted = keyed(home_restarts=2, home_cold_starts=1)
        query.progressed(progress(number, restarted, keyed(subtask=1, home_adoptions=1, fallback="no home")))
    results = [value(metrics, metric, *COUNT) for metric in (m.HOME_RESTARTS, m.HOME_COLD_STARTS, m.HOME_ADOPTIONS)]
    assert (results, value(metrics, m.FALLBACKS, *COUNT)) == ([4, 2, 2], 2)
    assert value(metrics, m.HOME_RESTARTS, "payments") is None


def test_a_skewed_vertex() -> None:
    query = model()
    metrics = QueryMetrics(query)
    for number in (1, 2):
        query.progressed(progress(number, keyed(busy_ms=10), keyed(subtask=1, busy_ms=90)))
    assert value(metrics, m.BUSIEST, *COUNT) == 180
    assert value(metrics, m.MEAN, *COUNT) == 100


def test_metrics_of_the_process_that_runs_the_query() -> None:
    run = SnapshotRun(
        "r", START, settings={"trigger": "ProcessingTimeTrigger(5000)"}, versions={"spark": "4.1.0", "pillarbox": "1"}
    )
    metrics = QueryMetrics(query_model("q", "counts", "", plan(), run))
    assert value(metrics, m.INFO, "q", "4.1.0", "1") == 1
    assert value(metrics, m.TRIGGER) == 5000
    assert value(metrics, m.OPERATOR_INFO, "map-3", "map", "count", "1") == 1
    assert value(metrics, m.OPERATOR_INFO, "payments", "payments", "payments", "0") == 1
    assert value(QueryMetrics(model()), m.TRIGGER) is None


@pytest.mark.parametrize("fails", [False, True])
def test_a_query_that_has_ended_keeps_its_counters(fails: bool) -> None:
    query = model()
    metrics = QueryMetrics(query)
    query.progressed(progress(1, keyed(records_in=3, operators=[[3, 1]], watermark=START)))
    assert (value(metrics, m.UP), metrics.has_ended) == (1, False)
    if fails:
        query.failed("Job aborted")
    query.ended()
    assert (value(metrics, m.UP), metrics.has_ended) == (0, True)
    assert value(metrics, m.FAILURES) == fails
    assert value(metrics, m.RECORDS_IN, *COUNT) == 3
    assert value(metrics, m.WATERMARK_LAG, *COUNT) is None
    assert set(of_kind("gauge", metrics)) == {(m.UP, ())}


def test_epochs_before_a_ledger_count() -> None:
    query = model()
    query.progressed(progress(1, keyed(busy_ms=3)))
    query.ended()
    metrics = QueryMetrics(query)
    assert value(metrics, m.BUSY, *COUNT) == 3
    assert metrics.has_ended


def test_a_plan_that_is_not_known() -> None:
    query = query_model("q", "", "", None, SnapshotRun("r", START), clock=lambda: START)
    metrics = QueryMetrics(query)
    query.progressed(progress(1, keyed(busy_ms=3, counters={"count.seen": 1})))
    assert value(metrics, m.BUSY, "pillarbox 1") == 3
    assert value(metrics, m.USER_COUNT, "pillarbox 1", "count.seen") == 1


def test_operators_of_one_name_are_told_apart() -> None:
    result = plan()
    [first, second] = result.vertices
    other = replace(second, program="pillarbox 2")
    twin = replace(first, number=2, operators=[PlanOperator("payments", "")])
    query = query_model(
        *("q", "", ""),
        replace(result, vertices=[first, second, twin, other]),
        SnapshotRun("r", START),
        clock=lambda: START,
    )
    metrics = QueryMetrics(query)
    infos = sorted(labels for metric, labels in metrics.values() if metric is m.OPERATOR_INFO)
    assert [labels[0] for labels in infos] == [
        *("count", "count (pillarbox 2)", "map-3", "map-3 (pillarbox 2)", "payments", "payments 2")
    ]
    query.progressed(progress(1, keyed(busy_ms=3), keyed(busy_ms=4), name="pillarbox 2"))
    assert value(metrics, m.BUSY, "count (pillarbox 2)") is not None
    assert value(metrics, m.BUSY, "count") is None


def test_each_reading_has_the_labels_of_its_metric() -> None:
    query = model()
    metrics = QueryMetrics(query)
    query.progressed(
        progress(1, source(), keyed(counters={"count.dead_letters": 1, "map-3.x": 1}, gauges={"count.g": 2.0}))
    )
    for metric, labels in metrics.values():
        assert metric in METRICS
        assert len(labels) == len(metric.labels), metric.name
