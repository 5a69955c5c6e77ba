"""The doctor's rules. Each has a message for facts that break it, but no message for a healthy query."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pillarbox._reports.failure import Failure
from pillarbox._runtime.spark.running.heartbeat import Heartbeat
from pillarbox._runtime.spark.session.requirements import numbers_of
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP
from pillarbox_tools.doctor.finding import machine_snapshot
from pillarbox_tools.doctor.rules import RULES, examine, wrong
from pillarbox_tools.model.settings import trigger_interval
from pillarbox_tools.model.snapshot import Snapshot, SnapshotMoment, SnapshotRun
from tests.model.made import START, keyed, model, progress, source

VERSIONS = {
    "java": "17.0.15",
    "python": "3.11.7",
    "spark": "4.3.0",
    "pyspark": "4.3.0",
    "pandas": "2.3.3",
    "pyarrow": "26.0.1",
    "numpy": "2.4.6",
    "pillarbox": "0.1.0",
}
SETTINGS = {
    "cores": "8",
    "parallelism": "8",
    "trigger": "ProcessingTimeTrigger(2000)",
    "spark.executor.pyspark.memory": "1g",
}
HOUR = 3_600_000


def query(epochs: int = 12, change: Callable[[int], list[Any]] | None = None, **progress_values: Any) -> Snapshot:
    query_model = model()
    for number in range(epochs):
        tasks = [
            source(records_in=1000),
            keyed(
                records_in=1000,
                busy_ms=900,
                watermark=START + number,
                held_by=[0, 0],
                keys=50,
                event_time_timers=50,
                state_bytes=10_000,
                process_bytes=1 << 27,
                host="one",
                process=9,
                memory_limit=8 << 30,
            ),
        ]
        query_model.progressed(progress(number, *(tasks if change is None else change(number)), **progress_values))
    result = query_model.snapshot()
    return replace(result, run=replace(result.run, settings=SETTINGS))


def with_moments(*moments: dict[str, Any]) -> Snapshot:
    result = query()
    every = [
        SnapshotMoment(
            **{
                "at": START + 300_000 * index,
                "epochs": 1,
                "first": index,
                "last": index,
                "rows": 1000,
                "duration": 1000,
                "longest": 1000,
                "process_bytes": 1 << 27,
                **values,
            }
        )
        for index, values in enumerate(moments)
    ]
    # The newest epoch ends with the last moment.
    later = every[-1].at - result.epochs[-1].end
    epochs = [replace(epoch, began=epoch.began + later) for epoch in result.epochs]
    return replace(result, epochs=epochs, run=replace(result.run, moments=every))


def facts(snapshot: Snapshot | None = None, **changed: Any) -> Snapshot:
    snapshot = query() if snapshot is None else snapshot
    settings = {**SETTINGS, **snapshot.run.settings, **changed.pop("settings", {})}
    versions = {**VERSIONS, **changed.pop("versions", {})}
    workers = {**VERSIONS, **changed.pop("workers", {})}
    assert not changed
    run = replace(snapshot.run, settings=settings, versions=versions, worker_versions=[VERSIONS, workers])
    return replace(snapshot, run=run)


def growing(size: Callable[[int], dict[str, Any]], count: int = 30) -> Snapshot:
    return with_moments(*(size(index) for index in range(count)))


def heavy(number: int) -> list[Any]:
    small = [keyed(subtask=subtask, records_in=100, busy_ms=100, watermark=START + number) for subtask in (1, 2, 3)]
    return [
        source(records_in=900),
        *small,
        keyed(records_in=600, busy_ms=2000, watermark=START + number, key_sample=[500, [["'ann'", 400]]]),
    ]


def skewed(number: int) -> list[Any]:
    small = [keyed(subtask=index, records_in=100, busy_ms=100, watermark=START + number) for index in range(1, 9)]
    return [source(records_in=900), *small, keyed(records_in=600, busy_ms=5000, watermark=START + number)]


def stuck(number: int) -> list[Any]:
    position = {"topic": "t", "partition": 0, "offset": 9}
    ahead = source(subtask=1, records_in=9, event_times=[START, START + 1000 * number, {}])
    # It stands still from the second epoch on.
    watermark = START + min(number, 1)
    return [
        source(records_in=9, event_times=[1, 2, position]),
        ahead,
        keyed(records_in=9, watermark=watermark, held_by=[0, 0]),
    ]


def back_pressured(number: int) -> list[Any]:
    task = keyed(records_in=9, busy_ms=100, back_pressured_ms=5000, watermark=START + number)
    return [source(records_in=9), task]


def timers(number: int) -> list[Any]:
    return [source(records_in=9), keyed(records_in=9, keys=100, event_time_timers=50_000, watermark=START + number)]


def without_homes(number: int) -> list[Any]:
    tasks = [keyed(subtask=subtask, records_in=9, watermark=START + number) for subtask in (0, 1)]
    tasks[1] = replace(tasks[1], fallback="the process that starts homes does not answer")
    return [source(records_in=9), *tasks]


def full(number: int) -> list[Any]:
    report = {"host": "one", "process": 9, "private_bytes": 2 << 30, "memory_limit": 3 << 30}
    return [source(records_in=9), keyed(records_in=9, keys=9, watermark=START + number, **report)]


def copying(number: int) -> list[Any]:
    counters = {"count.copy_ms_Cart": 3000}
    return [source(records_in=9), keyed(records_in=9, busy_ms=8000, counters=counters, watermark=START + number)]


def future(number: int) -> list[Any]:
    return [source(records_in=9), keyed(records_in=9, watermark=4_102_444_800_000)]


#: When the newest epoch of a query of twelve ended.
LAST = START + 12_000


def running(settings: dict[str, str] = SETTINGS, **changed: Any) -> Snapshot:
    result = query()
    run = replace(result.run, settings=settings)
    return replace(result, **{"run": run, "at": LAST if settings is not SETTINGS else LAST + 600_000, **changed})


def beat(**values: Any) -> Heartbeat:
    return Heartbeat(LAST + 600_000, "r", "one", 9, **values)


def failed(began: int) -> SnapshotRun:
    return SnapshotRun(
        f"r{began}", began, began + 30_000, "failed", failures=[Failure("ValueError", message="no such table")]
    )


BROKEN: list[tuple[str, Snapshot, str]] = [
    ("java", facts(versions={"java": "11.0.2"}), "Java 11.0.2 is too old: Spark 4 needs Java 17"),
    (
        "pandas",
        facts(versions={"pandas": "3.0.1"}, workers={"pandas": "3.0.1"}),
        "pandas 3.0.1 is too new.*pip install 'pandas<3'",
    ),
    (
        "packages",
        facts(versions={"pyarrow": "17.0.0"}, workers={"pyarrow": "17.0.0"}),
        "pyarrow 17.0.0 is too old.*needs 18 or newer",
    ),
    (
        "workers_python",
        facts(workers={"python": "3.12.1"}),
        r"workers run Python 3\.12\.1.*driver runs Python 3\.11\.7.*PYSPARK_PYTHON",
    ),
    ("version_skew", facts(workers={"pandas": "2.2.0"}), r"1 package differs.*pandas 2\.2\.0 \(driver: 2\.3\.3\)"),
    ("spark_skew", facts(versions={"spark": "4.1.0"}), r"PySpark 4\.3\.0 is connected to Spark 4\.1\.0.*pyspark==4\.1"),
    ("speculation", facts(settings={"spark.speculation": "true"}), "2 attempts of one task.*set it to false"),
    (
        "push_based_shuffle",
        facts(settings={"spark.shuffle.push.enabled": "True"}),
        "mix the output of 2 attempts of one task, so set it to false",
    ),
    ("worker_reuse", facts(settings={"spark.python.worker.reuse": "false"}), r"spark\.python\.worker\.reuse is false"),
    (
        "executor_memory",
        facts(growing(lambda n: {"process_bytes": 900 << 20})),
        "88% of its 1024 MiB.*raise spark.executor.pyspark",
    ),
    (
        "container_memory",
        facts(query(change=full)),
        r"the executor on one needs 4\.\d GiB of the 3 GiB of its container: heap 1 GiB, .* shared 150 MiB, .*of which"
        r" its homes use 2 GiB; set spark\.executor\.memoryOverhead to \d+00m",
    ),
    (
        "tasks_in_workers",
        facts(query(change=without_homes)),
        "10 of 20 tasks of 'count' in the last 10 epochs ran in Python workers, because no home process was available:"
        ' the process that starts homes does not answer.*may read its task.s whole state, and on_barrier="carry".*like'
        ' "drain"',
    ),
    (
        "restarting_homes",
        facts(growing(lambda n: {"home_restarts": 2 * (n % 3 == 0)})),
        r"8 home processes were restarted in 4 of the last 60 minutes.*killed them for memory.*os\._exit",
    ),
    (
        "memory_runs_out",
        facts(growing(lambda n: {"process_bytes": (500 + 2 * n) << 20}, 90)),
        "memory runs out in .* days, on .* UTC.*time-to-live",
    ),
    (
        "heavy_keys",
        facts(query(change=heavy)),
        r"key 'ann' has 53% \(plus or minus 2%\) of the records of 'count'.*aggregate before",
    ),
    (
        "skewed_tasks",
        facts(query(change=skewed)),
        r"subtask 0 of 'count' was busy for 60\.0 s in 12 epochs, the other subtasks for 1\.2 s on average",
    ),
    (
        "stuck_watermark",
        facts(query(change=stuck)),
        "event time of 'count' has not advanced in 11 epochs.*topic t, partition 0, offset 9",
    ),
    (
        "falling_behind",
        facts(running(settings={**SETTINGS, "trigger": "ProcessingTimeTrigger(500)"})),
        r"takes 1\.0 s, but the trigger's interval is 0\.5 s: raise the parallelism",
    ),
    (
        "hung_epoch",
        facts(running(heartbeat=beat(epoch=12, since=LAST))),
        r"Epoch 12 has run for 10 min \(usually 1\.0 s\): check the running stages",
    ),
    (
        "silent_source",
        facts(running(heartbeat=beat())),
        "No input for 10 min; last rows at 22:13 UTC: check the source",
    ),
    (
        "driver_gone",
        facts(running(is_live=False, at=LAST, read_at=LAST + 600_000)),
        "Driver silent for 10 min; the data below is from 22:13 UTC: check its machine",
    ),
    (
        "crash_loop",
        facts(running(earlier=[failed(LAST - 60_000 * n) for n in range(1, 9)], at=LAST)),
        "Started 9 times in 30 min, and failed 8; last error: no such table: check the newest failure",
    ),
    (
        "watermark_in_the_future",
        facts(query(change=future)),
        "Event time of 'count' is at 2100-01-01 00:00 UTC: records until then are late: drop or correct such records",
    ),
    (
        "piling_timers",
        facts(query(change=timers)),
        "'count' have 500 timers each, 50,000 in all.*keep one timer per key",
    ),
    (
        "endless_state",
        facts(growing(lambda n: {"keys": {"count": 100_000 + 9_000 * n}})),
        "have grown from 100,000 to 361,000 in 2.4 hours.*time-to-live",
    ),
    (
        "retention",
        facts(settings={"spark.sql.streaming.minBatchesToRetain": "2"}),
        "Spark keeps 2 epochs.*minBatchesToRetain to 10",
    ),
    (
        "retention",
        facts(settings={"spark.sql.streaming.minBatchesToRetain": "5000"}),
        "Spark keeps 5,000 epochs.*to 1000 or less",
    ),
    (
        "partitions_and_cores",
        facts(settings={"parallelism": "128"}),
        "128 state partitions and 8 cores.*rescale it to 16",
    ),
    ("back_pressure", facts(query(change=back_pressured)), r"'count' waited 5\.0 s.*the sink is slower"),
    (
        "repeated_tasks",
        facts(growing(lambda n: {"repeated": 1})),
        "repeated 12 tasks in 12 epochs of the last 60 minutes, since 22:13 UTC",
    ),
    (
        "lost_records",
        facts(growing(lambda n: {"counters": {"count.late_records_dropped": 50}})),
        r"50 of 1,000 records of 'count' \(5\.0%\) in the last 5 minutes, since 22:13 UTC, were late and dropped",
    ),
    (
        "dead_letters",
        facts(growing(lambda n: {"counters": {"parse.dead_letters": 20}})),
        "20 of 1,000 records of 'parse'.*became dead letters",
    ),
    (
        "failing_calls",
        facts(growing(lambda n: {"counters": {"ask.completed": 90, "ask.failed": 8, "ask.timed_out": 2}})),
        r"30 of 300 records of 'ask' \(10%\) in the last 15 minutes failed or timed out",
    ),
    (
        "slow_copies",
        facts(query(change=copying)),
        r"3\.0 s of an epoch were spent on copying Cart values, which 'count' emits .*pillarbox\.immutable\(Cart\)",
    ),
]


@pytest.mark.parametrize(("rule", "snapshot", "message"), BROKEN, ids=[name for name, _, _ in BROKEN])
def test_the_message_of_a_broken_rule(rule: str, snapshot: Snapshot, message: str) -> None:
    findings = {finding.rule: finding.message for finding in wrong(snapshot)}
    assert rule in findings
    assert_matches(message, findings[rule])
    # Other rules only find consequences of the same fault.
    assert len(findings) <= 2, findings


def assert_matches(pattern: str, text: str) -> None:
    assert re.search(pattern, text), text


def test_each_rule_has_a_test() -> None:
    assert {rule.__name__ for rule in RULES} == {name for name, _, _ in BROKEN}


def test_a_healthy_query_is_left_alone() -> None:
    findings = examine(facts())
    assert [finding for finding in findings if finding.status == "wrong"] == []
    assert {finding.rule for finding in findings if finding.status == "unknown"} == {"memory_runs_out", "endless_state"}


def test_unknown_facts_are_reported() -> None:
    findings = {finding.rule: finding for finding in examine(machine_snapshot({}, {}))}
    assert {finding.status for finding in findings.values()} == {"unknown", "fine"}
    assert findings["java"].message == "the version of Java"
    assert findings["heavy_keys"].message == "the query: pass a checkpoint"
    assert findings["speculation"].status == "fine"


def test_homes_that_ended_once_are_left_alone() -> None:
    assert wrong(facts(growing(lambda n: {"home_restarts": 16 * (n == 29)}))) == []
    assert wrong(facts(growing(lambda n: {"home_restarts": 1 * (n < 18)}))) == []


def test_tasks_that_have_homes_again_are_left_alone() -> None:
    assert wrong(facts(query(change=lambda n: without_homes(n)[: 3 if n < 2 else 2]))) == []


def test_tasks_that_wait_for_a_service_are_not_skewed() -> None:
    def waiting(number: int) -> list[Any]:
        first, *tasks = skewed(number)
        return [first, *(replace(task, counters={"count.in_flight_max": 9}) for task in tasks)]

    assert wrong(facts(query(change=waiting))) == []


def test_tasks_that_take_turns_are_not_skewed() -> None:
    def turns(number: int) -> list[Any]:
        first, *tasks = skewed(number)
        return [first, *(replace(task, subtask=(task.subtask + number) % 9) for task in tasks)]

    assert "skewed_tasks" not in {finding.rule for finding in wrong(facts(query(change=turns)))}


@pytest.mark.parametrize(("timed_out", "message"), [(10, ""), (100, r"100 of 1,000 records of 'count' \(10%\)")])
def test_timeouts_of_an_async_keyed_function_are_compared_with_its_records(timed_out: int, message: str) -> None:
    counters = {"count.timed_out": timed_out, "count.longest_key": 1}
    snapshot = facts(growing(lambda n: {"counters": counters, "inputs": {"count": 1000}, "rows": 9}))
    assert snapshot.plan is not None
    first, second = snapshot.plan.vertices
    plan = replace(snapshot.plan, vertices=[first, replace(second, calls=["count"])])
    findings = {finding.rule: finding.message for finding in wrong(replace(snapshot, plan=plan))}
    assert ("failing_calls" in findings) is bool(message)
    assert_matches(message, findings.get("failing_calls", ""))


def test_a_query_without_event_time_has_no_stuck_watermark() -> None:
    def timeless(number: int) -> list[Any]:
        return [source(records_in=9), keyed(records_in=9, watermark=MIN_TIMESTAMP)]

    assert wrong(facts(query(change=timeless))) == []


def test_records_of_one_day_are_not_stuck() -> None:
    def daily(number: int) -> list[Any]:
        day = source(records_in=9, event_times=[START, START, {}])
        return [day, keyed(records_in=9, watermark=START - 1, held_by=[0, 0])]

    assert wrong(facts(query(change=daily))) == []


@pytest.mark.parametrize("timers", [0, 3])
def test_a_source_without_event_time_is_wrong_where_timers_wait(timers: int) -> None:
    def untimed(number: int) -> list[Any]:
        times = source(records_in=9, event_times=[START, START + number, {}])
        waits = keyed(records_in=9, watermark=MIN_TIMESTAMP, held_by=[0, -1], event_time_timers=timers, keys=9)
        return [times, waits]

    findings = [finding.message for finding in wrong(facts(query(change=untimed)))]
    assert len(findings) == bool(timers)
    assert all("event time of 'count' has not begun in 12 epochs" in message for message in findings)


def test_a_query_that_has_just_begun_is_left_alone() -> None:
    assert wrong(facts(query(epochs=1))) == []
    assert wrong(facts(query(epochs=0))) == []


@pytest.mark.parametrize(
    ("trigger", "interval"), [("ProcessingTimeTrigger(5000)", 5000), ("AvailableNowTrigger", 0), ("OneTimeTrigger", 0)]
)
def test_intervals_of_triggers(trigger: str, interval: int) -> None:
    assert trigger_interval({"trigger": trigger}) == interval
    assert trigger_interval({}) is None


@pytest.mark.parametrize(("version", "numbers"), [("3.11.7", (3, 11, 7)), ("2.0rc1", (2, 0)), ("", None), (None, None)])
def test_numbers_of_versions(version: str | None, numbers: Any) -> None:
    assert numbers_of(version) == numbers
