from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import (
    ConfigurationError,
    DataStream,
    DeadLetter,
    KeyedProcessFunction,
    OutputTag,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from pillarbox_tools.doctor import rules as examination
from pillarbox_tools.doctor.rules import RULES, wrong
from pillarbox_tools.model.executor_memory import executor_memory_of
from pillarbox_tools.watching.following import watched_query
from pillarbox_tools.watching.stored import stored_snapshot
from tests.see.queries import Inbox, counts, slow_sink, started
from tests.support.sessions import setting_of_application

pytestmark = [pytest.mark.spark, pytest.mark.slow("four queries")]

SICK, STARTED, REFUSED, SLOW_SINK = "sick", "started", "refused", "slow sink"
#: The query that breaks a rule, or the reason why none of this machine can. The facts of `test_rules.py` break each
#: rule.
BROKEN_BY = {
    "java": "no query: its driver would need another Java, which Spark itself refuses",
    "pandas": "no query: the session would not be made",
    "packages": "no query: its driver would need packages that pip refuses to install with pillarbox",
    "spark_skew": "no query: its driver would need a Spark of another version than PySpark",
    "workers_python": "no query: Spark itself refuses workers of another Python",
    "version_skew": "no query: its workers would need other packages",
    "speculation": REFUSED,
    "push_based_shuffle": "no query: it is refused, as one with speculation is",
    "worker_reuse": STARTED,
    "retention": STARTED,
    "partitions_and_cores": STARTED,
    "executor_memory": SICK,
    "container_memory": "no query: its container would have to be small",
    "tasks_in_workers": "no query: this platform would have to start no processes",
    "restarting_homes": "no query: its homes would have to end for minutes",
    "memory_runs_out": "no query: memory would have to grow for ten minutes",
    "endless_state": "no query: its state would have to grow for an hour",
    "heavy_keys": SICK,
    "skewed_tasks": "no query: one task would have to hold up epochs for minutes; test_conditions.py has a day of it",
    "stuck_watermark": SICK,
    "falling_behind": "no query: tests/sick has one, and test_conditions.py days of it",
    "hung_epoch": "no query: tests/sick has one, and test_conditions.py days of it",
    "silent_source": "no query: tests/sick has one, and test_conditions.py days of it",
    "driver_gone": "no query: tests/sick has one, and test_conditions.py days of it",
    "crash_loop": "no query: tests/sick has one, and test_conditions.py days of it",
    "watermark_in_the_future": "no query: tests/sick has one, and test_conditions.py days of it",
    "piling_timers": SICK,
    "repeated_tasks": SICK,
    "lost_records": SICK,
    "dead_letters": SICK,
    "failing_calls": SICK,
    "slow_copies": "no query: tasks would have to copy for seconds",
    "back_pressure": SLOW_SINK,
}
BAD = OutputTag[DeadLetter]("bad")
OUTPUT = "card STRING, seen LONG"
DAY = 86_400
#: Time of the only refund, in seconds after the first payment: event time stops there.
REFUND = 3_600


def broken_by(query: str) -> set[str]:
    return {rule for rule, broken in BROKEN_BY.items() if broken == query}


def test_it_is_said_of_each_rule_what_breaks_it() -> None:
    assert {rule.__name__ for rule in RULES} == set(BROKEN_BY)
    queries = {broken for broken in BROKEN_BY.values() if not broken.startswith("no query: ")}
    assert queries == {SICK, STARTED, REFUSED, SLOW_SINK}


@pytest.fixture(autouse=True)
def _nothing_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "_logged", set())


def warned(caplog: pytest.LogCaptureFixture) -> set[str]:
    match = [re.search(r"pillarbox doctor's finding: (\w+)", message) for message in caplog.messages]
    return {line[1] for line in match if line is not None}


def found_in(query: Any) -> dict[str, str]:
    query.awaitTermination()  # now all of its epochs are known
    snapshot = watched_query(query, "the test").snapshot()
    return {finding.rule: finding.message for finding in wrong(snapshot)}


# -- a query that is well --


def test_a_query_that_is_well_is_left_alone(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox(tmp_path / "payments")
    for epoch in range(3):
        inbox.put(*((f"c{number % 7}", 1, 60 * epoch + number) for number in range(140)))
    query = started(counts(spark, inbox), tmp_path / "checkpoint", "well")
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert found_in(query) == {}
    assert [
        record.getMessage() for record in caplog.records if record.name == "pillarbox" and record.levelname != "INFO"
    ] == []
    # The rules of the first epoch had their facts: the tasks have reported their processes' versions.
    run = watched_query(query, "the test").snapshot().run
    [workers] = run.worker_versions
    assert {name: run.versions[name] for name in workers} == workers
    # All tasks run in the only executor of this session.
    [executor] = executor_memory_of(watched_query(query, "the test").snapshot())
    assert executor.home_bytes is not None and 0 < executor.home_bytes < executor.needed
    # The command's findings are from the driver's history.
    assert wrong(stored_snapshot(spark, str(tmp_path / "checkpoint"))) == []


# -- facts at a query's start --


def test_a_query_that_starts(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    env = StreamExecutionEnvironment.get_execution_environment(session).set_parallelism(40)
    payments = env.from_dataframe(Inbox(tmp_path / "payments").read(session))  # it is empty: no epoch runs
    writer = payments.key_by("card").process(Sick()).to_dataframe(OUTPUT).writeStream.format("noop")
    with setting_of_application(spark, "spark.python.worker.reuse", "false"):
        for index, start in enumerate((pillarbox.start, lambda writer: writer.start())):  # also by the writer alone
            query: Any = start(writer.option("checkpointLocation", str(tmp_path / f"checkpoint {index}")))
            query.stop()
            query.awaitTermination()
            # A process logs a finding once.
            assert warned(caplog) == (set() if index else broken_by(STARTED))
            caplog.clear()
            writer = payments.key_by("card").process(Sick()).to_dataframe(OUTPUT).writeStream.format("noop")


def told_in_the_client(spark: Any, folder: Path) -> list[str]:
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("pillarbox")
    logger.addHandler(handler)
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    try:
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
        payments = env.from_dataframe(Inbox(folder / "payments").read(spark))
        writer = payments.key_by("card").process(Sick()).to_dataframe(OUTPUT).writeStream.format("noop")
        query = pillarbox.start(writer.option("checkpointLocation", str(folder / "checkpoint")))
        query.stop()
        query.awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.minBatchesToRetain")
        logger.removeHandler(handler)
    return messages


@pytest.mark.long("a server of Spark Connect, for the rules of the test before")
def test_a_query_that_starts_under_spark_connect(connect: Any, tmp_path: Path) -> None:
    [warning] = [line for line in connect.run(told_in_the_client, tmp_path) if "pillarbox doctor" in line]
    assert warning.startswith("Spark keeps 2 epochs: ")


def test_a_query_with_speculation_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    session: Any = spark.newSession()
    # Sessions have it of the application, as it was when that began.
    session._jsparkSession.sessionState().conf().setConfString("spark.speculation", "true")
    env = StreamExecutionEnvironment.get_execution_environment(session).set_parallelism(2)
    payments = env.from_dataframe(Inbox(tmp_path / "payments").read(session))
    with pytest.raises(ConfigurationError, match=r"spark\.speculation is true: 2 attempts of one task"):
        payments.key_by("card").process(Sick()).to_dataframe(OUTPUT)
    assert broken_by(REFUSED) == {"speculation"}


# -- a query with nearly every fault --


class Sick(KeyedProcessFunction):
    """Registers timers for each record, and is slow once. Raises for a negative amount."""

    def process_element(self, payment: Any, ctx: Any) -> Any:
        if payment.amount < 0:
            raise ValueError(f"an amount of {payment.amount}")
        if payment.amount == 2:
            time.sleep(2.5)  # longer than all work of the other tasks, on any machine
        for number in range(8):
            ctx.timer_service().register_event_time_timer(payment.at + 1000 * DAY + 8 * payment.amount + number)
        yield payment.card, payment.amount


class Trip:
    """Raises an exception once for each amount above a million."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def __call__(self, payment: Any) -> Any:
        mark = self.marks / str(payment.amount)
        if payment.amount > 1_000_000 and not mark.exists():
            mark.touch()
            raise RuntimeError("the first attempt")
        return payment


def larger(pair: tuple[str, int], other: tuple[str, int]) -> tuple[str, int]:
    return max(pair, other)


async def ask(payment: Any) -> tuple[str, int]:
    if payment.amount % 10 == 0:
        raise ConnectionError("no route to the service")
    return payment.card, payment.amount


def sick(spark: SparkSession, marks: Path, *inboxes: Inbox) -> DataStream:
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(8)
    times = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("at")
    payments, refunds = (
        env.from_dataframe(inbox.read(spark)).name(inbox.folder.name).assign_timestamps_and_watermarks(times)
        for inbox in inboxes
    )
    every = payments.map(Trip(marks)).union(refunds)
    counted = every.key_by("card").process(Sick(), on_error=BAD).uid("count")
    minutes = counted.key_by(lambda pair: pair[0]).window(TumblingEventTimeWindows.of("1 minute"))
    largest = minutes.reduce(larger).uid("minutes")
    asked = payments.filter(lambda payment: payment.card != "heavy").map_async(ask, on_failure="drop").uid("ask")
    return largest.union(asked)


@pytest.mark.long("a query of eleven epochs with ten ailments; test_rules.py has each as facts")
def test_a_sick_query(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    payments, refunds, marks = Inbox(tmp_path / "payments"), Inbox(tmp_path / "refunds"), tmp_path / "marks"
    marks.mkdir()
    writer = sick(spark, marks, payments, refunds).to_dataframe(OUTPUT).writeStream.format("noop").queryName("sick")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(processingTime="1 millisecond")
    # No worker starts meanwhile: one that Spark keeps within this limit could not even import Arrow.
    with setting_of_application(spark, "spark.executor.pyspark.memory", "64m"):
        query = pillarbox.start(writer)
    assert warned(caplog) == set()
    try:
        refunds.put(("ann", 1, REFUND))
        for epoch in range(11):
            first_attempt_fails = [("c1", 1_000_001 + epoch, REFUND + epoch)] if epoch < 3 else []
            payments.put(*first_attempt_fails, *((f"c{number}", 1, REFUND + epoch) for number in range(30)))
        payments.put(
            *(("heavy", 3 + number, REFUND + 20) for number in range(2_000)),
            ("heavy", 2, REFUND + 20),
            *((f"c{number % 30}", 10 * number, REFUND + 20) for number in range(1, 301)),
            *((f"c{number % 30}", -1, REFUND + 20) for number in range(60)),
            *((f"c{number % 30}", 1, REFUND - DAY) for number in range(60)),
        )
        query.processAllAvailable()
    finally:
        query.stop()
    findings = found_in(query)
    assert set(findings) == broken_by(SICK)
    # The first epoch has reported its workers' memory; the other findings are on request.
    assert warned(caplog) == {"executor_memory"}
    assert re.match(r"a worker process uses \d+% of its 64 MiB", findings["executor_memory"])
    assert re.match(r"key 'heavy' has \d+% \(plus or minus \d%\) of the records of 'count'", findings["heavy_keys"])
    held = r"event time of 'count' has not advanced in 1\d epochs with rows: the source of 'refunds.*' had no records"
    assert re.match(held, findings["stuck_watermark"])
    assert re.match(r"the keys of 'count' have \d+ timers each, \d\d,\d{3} in all", findings["piling_timers"])
    assert re.match(r"Spark has repeated 3 tasks in 1\d epochs", findings["repeated_tasks"])
    assert re.match(r"60 of [\d,]+ records of 'minutes'", findings["lost_records"])
    assert re.match(r"60 of [\d,]+ records of 'count'", findings["dead_letters"])
    assert re.match(r"300 of [\d,]+ records of 'ask'", findings["failing_calls"])
    # A later process finds the same in the checkpoint.
    stored = wrong(stored_snapshot(spark, str(tmp_path / "checkpoint")))
    assert {finding.rule for finding in stored} == broken_by(SICK)


@pytest.mark.long("a sink that takes its time; the dashboard's test shows such a query, too")
def test_a_slow_sink(spark: SparkSession, tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "payments")
    inbox.put(*((f"c{number % 7}", 1, number // 1000) for number in range(20_000)))
    query = slow_sink(counts(spark, inbox), tmp_path / "checkpoint", 0.8)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    findings = found_in(query)
    assert set(findings) == broken_by(SLOW_SINK)
    assert re.match(r"tasks of 'count' waited \d+\.\d s to send their output", findings["back_pressure"])
