"""How queries end: signals, time limits for epochs, and blocked starts of epochs."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import pillarbox
from pillarbox import ProgramError
from pillarbox._runtime.spark.running import ending
from pillarbox._runtime.spark.starting.started import StartedQuery, find, remember, running


class Query:
    """A fake ``StreamingQuery``. Each read of its status calls ``looked`` with the number of reads."""

    id = "q"

    def __init__(self, looked: Callable[[int], None] = lambda look: None) -> None:
        self.isActive = True
        self.lastProgress = None
        self.at_work = True
        self.stops = 0
        self.looks = 0
        self.waits = 0
        self.looked = looked
        self.waited: Callable[[int], None] = lambda wait: None
        self.failure: Exception | None = None

    @property
    def status(self) -> dict[str, Any]:
        self.look()
        return {"isTriggerActive": self.at_work}

    def look(self) -> None:
        self.looks += 1
        self.looked(self.looks)

    def stop(self) -> None:
        self.isActive = False
        self.stops += 1

    def exception(self) -> Exception | None:
        return self.failure

    def awaitTermination(self, timeout: float | None = None) -> bool:
        self.waits += 1
        self.waited(self.waits)
        if self.failure is not None:
            raise self.failure
        return not self.isActive


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> Query:
    monkeypatch.setattr(ending, "_LOOK_EVERY", 0.0)
    return started(Query())


def started(query: Query) -> Query:
    sparks: Any = query
    start: Any = SimpleNamespace(checkpoint=None)
    remember(StartedQuery(sparks, start))
    return query


@pytest.fixture(autouse=True)
def handlers() -> Iterator[list[str]]:
    got: list[str] = []

    def handle(number: int, frame: object) -> None:
        got.append(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    yield got
    for number, handler in before.items():
        assert signal.getsignal(number) is handle
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_query_behind_its_epoch(query, handlers, number, capsys):
    def epoch_ends(look: int) -> None:
        assert not query.stops
        query.at_work = look < 5

    query.waited = lambda wait: signal.raise_signal(number) if wait == 3 else None
    query.looked = epoch_ends
    pillarbox.run(query)
    assert (query.stops, query.isActive, handlers) == (1, False, [])
    assert query.looks > 4, "it did not wait for the end of the epoch"
    assert f"{number.name}: query q ends after the running epoch, within 30 seconds" in capsys.readouterr().err


def test_another_signal_ends_it_at_once_and_a_third_one_is_not_pillarbox_s(query, handlers, caplog):
    def look(number: int) -> None:
        assert number < 4
        if number == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    query.waited = lambda wait: signal.raise_signal(signal.SIGTERM) if wait == 1 else None
    query.looked = look
    with caplog.at_level(logging.WARNING, "pillarbox"):
        pillarbox.run(query)
    assert (query.stops, handlers) == (1, ["SIGINT"])
    assert (
        "query q: its epoch was interrupted, because a second SIGINT arrived. The next start repeats it" in caplog.text
    )


def test_an_epoch_has_the_grace_period_and_no_more(query, caplog):
    query.waited = lambda wait: signal.raise_signal(signal.SIGTERM) if wait == 1 else None
    with caplog.at_level(logging.WARNING, "pillarbox"):
        pillarbox.run(query, grace=0)
    assert query.stops == 1 and "because it took longer than 0 seconds" in caplog.text


def test_a_query_that_ends_by_itself_or_fails(query):
    query.waited = lambda wait: setattr(query, "isActive", wait < 3)
    pillarbox.run(query)
    assert query.stops == 0
    query.failure = RuntimeError("the disk is full")
    with pytest.raises(RuntimeError, match="the disk is full"):
        pillarbox.run(query)


def test_signals_come_to_the_main_thread_alone(query):
    seen: list[Any] = []

    def look(wait: int) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))
        query.isActive = wait < 2

    query.waited = look
    before = signal.getsignal(signal.SIGTERM)
    other = threading.Thread(target=pillarbox.run, args=(query,))
    other.start()
    other.join()
    assert seen == [before] * len(seen) and len(seen) > 1


def test_a_query_that_has_ended_is_found_by_who_has_it_whoever_starts_another_one_meanwhile():
    first: Any = Query()
    started(first)
    first.isActive = False
    other: Any = Query()
    other.id = "other"
    started(other)
    positions, its = find(first), find(other)
    assert positions is not None and [positions.query] == [first]
    assert its is not None and [its.query] == [other] and running() == ["other"]
    other.isActive = False
    assert running() == []


def test_wrong_arguments():
    with pytest.raises(ProgramError, match=r"run\(\) takes a query that start\(\) returned, not 'q'"):
        pillarbox.run("q")  # type: ignore[arg-type]
    nobodys: Any = Query()
    nobodys.id = "nobody's"
    with pytest.raises(ProgramError, match="but query nobody's has no pillarbox program, or another"):
        pillarbox.run(nobodys)
    with pytest.raises(ProgramError, match=r"run\(\): grace='soon' is not a duration"):
        pillarbox.run(started(Query()), grace="soon")  # type: ignore[arg-type]


# Stacks of a query's thread: current function and callers.
PLANS = "at execution.Planner.plan(Planner.scala)\nat streaming.MicroBatchExecution.runBatch(M.scala:1)"
RUNS_JOBS = (
    "at spark.SparkContext.runJob(S.scala:1)\nat sql.execution.SQLExecution$.withNewExecutionId(S.scala:1)\n"
    "at streaming.MicroBatchExecution.$anonfun$runBatch$18(M.scala:1)"
)
READS_A_TABLE = (
    "at spark.SparkContext.runJob(S.scala:1)\nat sql.execution.SQLExecution$.withNewExecutionId(S.scala:1)\n"
    "at sql.Dataset.collect(D.scala:1)\nat streaming.MicroBatchExecution.runBatch(M.scala:1)"
)
WAITS_TO_BEGIN = (
    "at streaming.MicroBatchExecution.withProgressLocked(M.scala:1)\n"
    "at streaming.MicroBatchExecution.constructNextBatch(M.scala:1)"
)
WAITS_TO_END = (
    "at streaming.MicroBatchExecution.withProgressLocked(M.scala:1)\n"
    "at streaming.MicroBatchExecution.executeOneBatch(M.scala:1)"
)
POLLS = (
    "at java.base/java.lang.Thread.sleep(Native Method)\nat streaming.MicroBatchExecution.executeOneBatch(M.scala:1)"
)
ASLEEP = (
    "at java.base/java.lang.Object.wait(Native Method)\nat util.SystemClock.waitTillTime(C.scala:1)\n"
    "at streaming.ProcessingTimeExecutor.execute(T.scala:1)"
)


class Java:
    """Fake Java objects of a classic Spark query: state, lock, logs and thread."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.now: Any = self.kind("ACTIVE$")
        self.is_alive = True
        self.stack = RUNS_JOBS
        self.begun, self.committed = "Some(5)", "Some(4)"
        self.is_locked = False
        units = SimpleNamespace(TimeUnit=SimpleNamespace(MILLISECONDS="ms"))
        self.java = SimpleNamespace(
            lang=SimpleNamespace(Exception=lambda: self),
            io=SimpleNamespace(StringWriter=lambda: SimpleNamespace(toString=lambda: self.stack), PrintWriter=id),
            util=SimpleNamespace(concurrent=units),
        )

    def kind(self, name: str) -> Any:
        java = self
        result: Any = type(name, (), {})()
        result.__dict__.update(
            name=name,
            getClass=lambda: result,
            getName=lambda: "spark.runtime." + name,
            getClassLoader=lambda: result,
            loadClass=lambda other: java.kind(other.rsplit(".", 1)[1]),
            getField=lambda field: result,
        )
        result.get = lambda nothing: result
        return result

    def streamingQuery(self) -> Java:
        return self

    def queryExecutionThread(self) -> Java:
        return self

    def isAlive(self) -> bool:
        return self.is_alive

    def getStackTrace(self) -> None:
        self.query.look()

    def setStackTrace(self, frames: None) -> None:
        pass

    def printStackTrace(self, writer: int) -> None:
        pass

    def awaitProgressLock(self) -> Java:
        return self

    def isLocked(self) -> bool:
        return self.is_locked

    def tryLock(self, most: int, unit: str) -> bool:
        assert unit == "ms" and not self.is_locked
        self.is_locked = True
        return True

    def unlock(self) -> None:
        assert self.is_locked
        self.is_locked = False

    def offsetLog(self) -> Any:
        return SimpleNamespace(getLatestBatchId=lambda: SimpleNamespace(toString=lambda: self.begun))

    def commitLog(self) -> Any:
        return SimpleNamespace(getLatestBatchId=lambda: SimpleNamespace(toString=lambda: self.committed))

    def state(self) -> Java:
        return self

    def get(self) -> Any:
        return self.now

    def compareAndSet(self, before: Any, after: Any) -> bool:
        if self.now.name != before.name:
            return False
        self.set(after)
        return True

    def set(self, state: Any) -> None:
        self.now = state
        self.query.isActive = state.name == "ACTIVE$"


@pytest.fixture
def java(query, monkeypatch):
    result = query._jsq = Java(query)
    monkeypatch.setattr("py4j.clientserver.ClientServer", SimpleNamespace)
    monkeypatch.setattr("pyspark.SparkContext._gateway", SimpleNamespace(jvm=result))
    yield result
    assert not result.is_locked


def test_no_epoch_begins_any_more_and_the_one_that_runs_is_not_interrupted(query, java):
    def look(number: int) -> None:
        assert number == 1 or not query.isActive, "another epoch may begin"
        java.is_alive = number < 4

    query.looked = look
    assert ending.end_between_epochs(query, lambda: True)
    assert (query.stops, java.now.name) == (0, "TERMINATED$")


def test_a_query_between_two_triggers_does_not_wait_for_the_next_one(query, java):
    java.stack, java.committed = ASLEEP, "Some(5)"
    assert ending.end_between_epochs(query, lambda: True)
    assert query.stops == 1


@pytest.mark.parametrize("stack", [PLANS, READS_A_TABLE])
def test_an_epoch_that_is_being_planned_is_waited_for(query, java, stack):
    """After planning an epoch, Spark checks the query's state again, and drops the epoch if the query is ending."""
    java.stack = stack

    def look(number: int) -> None:
        assert query.isActive or java.stack == RUNS_JOBS, "it was closed while the epoch was planned"
        if number == 4:
            java.stack = RUNS_JOBS
        java.is_alive = number < 6

    query.looked = look
    assert ending.end_between_epochs(query, lambda: True)
    assert (query.stops, java.now.name) == (0, "TERMINATED$")


@pytest.mark.parametrize("stack", [WAITS_TO_END, POLLS])
def test_a_query_between_two_epochs_looks_before_the_next_one(query, java, stack):
    java.committed = "Some(5)"
    java.stack = "at streaming.ProgressContext.finishTrigger(P.scala:1)"

    def look(number: int) -> None:
        if number == 3:
            java.stack = stack
        if number > 3:
            assert not java.is_locked
            java.is_alive = False

    query.looked = look
    assert ending.end_between_epochs(query, lambda: True)
    assert (query.stops, java.now.name) == (0, "TERMINATED$")


def test_a_query_that_waits_to_begin_an_epoch_has_looked_before(query, java):
    java.committed, java.stack = "Some(5)", WAITS_TO_BEGIN

    def time_left() -> bool:
        assert query.isActive or java.begun == "Some(6)"
        java.begun, java.stack = "Some(6)", RUNS_JOBS
        java.is_alive = query.looks < 4
        return True

    assert ending.end_between_epochs(query, time_left)
    assert (query.stops, java.now.name) == (0, "TERMINATED$")


def test_a_query_whose_place_is_not_known_is_asked_again(query, java, monkeypatch):
    monkeypatch.setattr(ending, "_HOLD", 0.0)
    java.committed = "Some(5)"

    def look(number: int) -> None:
        raise AssertionError

    query.looked = look
    asked = iter(range(3))
    assert not ending.end_between_epochs(query, lambda: next(asked) < 2)
    assert query.isActive and java.now.name == "ACTIVE$"


def test_a_query_that_found_the_gate_closed_in_passing_has_ended(query, java, monkeypatch):
    monkeypatch.setattr(ending, "_HOLD", 0.0)
    java.committed = "Some(5)"

    def time_left() -> bool:
        java.is_alive = False
        return True

    assert ending.end_between_epochs(query, time_left)
    assert (query.isActive, query.stops, java.now.name) == (False, 0, "TERMINATED$")


def test_a_query_that_has_taken_on_another_epoch_is_not_stopped_in_it(query, java):
    """Spark reports the query as idle until the next epoch has begun."""
    query.at_work = False
    looks = iter(range(20))

    def time_left() -> bool:
        java.is_alive = next(looks) < 10
        return True

    assert ending.end_between_epochs(query, time_left)
    assert query.stops == 0


def test_a_query_that_has_not_ended_in_time_goes_on(query, java):
    assert not ending.end_between_epochs(query, lambda: query.looks < 3)
    assert (query.stops, query.isActive, java.now.name) == (0, True, "ACTIVE$")


def test_a_query_that_ends_when_its_time_is_over_stays_ended(query, java):
    def time_left() -> bool:
        java.is_alive = False
        return False

    assert not ending.end_between_epochs(query, time_left)
    assert not query.isActive and java.now.name == "TERMINATED$"


def test_a_query_that_begins_is_held_back_when_it_has_begun(query, java):
    java.now = java.kind("INITIALIZING$")

    def time_left() -> bool:
        if java.now.name == "INITIALIZING$":
            assert not query.looks
            java.now = java.kind("ACTIVE$")
        java.is_alive = query.looks < 3
        return True

    assert ending.end_between_epochs(query, time_left)
    assert (query.stops, java.now.name) == (0, "TERMINATED$")
