"""Requests to the driver of a running query, without Spark: who takes, who withdraws, and what both get to know."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox import CheckpointMismatchError, ProgramError, SavepointError, stop_with_savepoint
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.running import requests
from pillarbox._runtime.spark.running.requests import RequestWatch, request_stop
from pillarbox._runtime.spark.starting.started import StartedQuery

NO_SPARK: Any = None


class Folder:
    """The folder with requests, in memory; ``when`` is called with each line that is written."""

    def __init__(self, when=lambda line: None) -> None:
        self.content: list[dict[str, Any]] = []
        self.when = when
        self.reads = 0

    def write(self, **facts) -> None:
        self.content.append(facts)
        self.when(facts)

    def files(self):
        return frozenset(range(len(self.content)))

    def make_folder(self):
        pass

    def lines(self):
        self.reads += 1
        return list(self.content)

    def of(self, kind):
        return [line for line in self.content if kind in line]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(requests, "time", found)
    return found


@pytest.fixture
def folder(monkeypatch):
    found = Folder()
    monkeypatch.setattr(requests, "Requests", lambda spark, checkpoint: found)
    monkeypatch.setattr(Checkpoint, "query_id", "q")
    return found


@pytest.fixture
def stopped(monkeypatch):
    """The calls that stop a query; a test may let them raise."""
    calls = []

    def stop(query, directory, **options):
        calls.append((directory, options))
        if directory == "bad":
            raise SavepointError("the disk is full")
        if directory == "worse":
            raise OSError("no disk")

    monkeypatch.setattr(requests, "stop_with_savepoint", stop)
    return calls


@pytest.fixture
def watch(folder, clock, monkeypatch):
    query: Any = SimpleNamespace(id="q", isActive=True)
    start: Any = SimpleNamespace(checkpoint="cp", spark=NO_SPARK)
    found = RequestWatch(StartedQuery(query, start), clock.time)
    # What another thread would do, at once.
    monkeypatch.setattr(threading, "Thread", lambda target, args, **_: SimpleNamespace(start=lambda: target(*args)))
    found.look()  # as at the start of the query
    return found


@pytest.fixture
def savepoints(monkeypatch):
    """The places where there is a whole savepoint."""
    found = set[str]()

    def open_savepoint(spark, directory):
        if directory not in found:
            raise CheckpointMismatchError(f"{directory} is no savepoint")

    monkeypatch.setattr(requests, "open_savepoint", open_savepoint)
    return found


def ask(folder, number="r", until=1060.0, directory: str | None = "/sp", drain=False):
    folder.content.append(
        {"request": number, "what": "stop", "directory": directory, "drain": drain, "until": int(until * 1000)}
    )


def test_a_request_is_taken_once_and_answered(folder, watch, stopped):
    watch.look()
    ask(folder, drain=True)
    watch.look()
    watch.look()
    assert stopped == [("/sp", {"drain": True, "timeout": 60.0})]
    assert folder.of("taken") == [{"taken": "r"}] and folder.of("answer") == [{"answer": "r", "done": True}]
    reads = folder.reads
    watch.look()
    assert folder.reads == reads, "nothing is read where no file is new"


@pytest.mark.parametrize(
    ("directory", "words"), [("bad", "the disk is full"), ("worse", "OSError: no disk")], ids=["ours", "another"]
)
def test_what_went_wrong_is_the_answer(folder, watch, stopped, directory, words):
    ask(folder, directory=directory)
    watch.look()
    assert [(line["done"], line["error"]) for line in folder.of("answer")] == [(False, words)]


@pytest.mark.parametrize(
    ("ends", "failure", "answer"),
    [
        (True, None, {"done": True}),
        (False, None, {"done": True}),
        (
            False,
            RuntimeError("the disk is full"),
            {"done": False, "error": "the query failed before it could be stopped: RuntimeError: the disk is full"},
        ),
        (OSError("no disk"), None, {"done": False, "error": "OSError: no disk"}),
    ],
    ids=["behind its epoch", "at once", "failed", "broken"],
)
def test_a_query_is_stopped_without_a_savepoint(folder, watch, clock, stopped, monkeypatch, ends, failure, answer):
    def end(started, has_time):
        assert started is watch._started and has_time()
        clock.now = 1060.0
        assert not has_time()
        if isinstance(ends, Exception):
            raise ends
        return ends

    monkeypatch.setattr(requests, "end_query", end)
    watch._started.query.exception = lambda: failure
    ask(folder, directory=None)
    watch.look()
    assert folder.of("answer") == [{"answer": "r", **answer}] and not stopped


def test_the_same_stop_again_is_done_and_another_request_is_not(folder, clock):
    told: list[str] = []
    ask(folder, directory=None)
    folder.content += [{"taken": "r"}]
    with pytest.raises(
        SavepointError, match=r"asked to stop the query, which is under way: nothing was asked\. 'pillarbox s"
    ):
        request_stop(NO_SPARK, "cp", "/sp", drain=False, timeout=30.0)
    folder.content += [{"answer": "r", "done": True}]
    request_stop(NO_SPARK, "cp", None, drain=False, timeout=30.0, tell=told.append)
    assert told == ["an earlier call has asked for it, and it is done"]
    folder.content += [{"over": ["r"]}]
    with pytest.raises(SavepointError, match=r"or the clocks of both machines differ\Z"):
        request_stop(NO_SPARK, "cp", None, drain=False, timeout=30.0)
    assert folder.of("request")[1]["directory"] is None


def test_requests_whose_time_has_run_out_or_that_are_withdrawn_or_taken_are_left_alone(folder, watch, stopped):
    ask(folder, "late", until=1000.0)
    ask(folder, "withdrawn")
    ask(folder, "taken")
    folder.content += [{"withdrawn": "withdrawn"}, {"taken": "taken"}, {"later": "version"}]
    before = list(folder.content)
    watch.look()
    assert not stopped and folder.content == before


def test_one_that_is_withdrawn_while_it_is_taken_is_not_carried_out(folder, watch, stopped):
    ask(folder)
    folder.when = lambda line: folder.content.append({"withdrawn": "r"}) if "taken" in line else None
    watch.look()
    assert not stopped
    assert folder.of("answer") == [{"answer": "r", "done": False, "error": "the request was withdrawn"}]


def test_a_folder_that_cannot_be_read_does_not_end_the_watch(folder, watch, stopped, monkeypatch, caplog):
    def broken():
        raise OSError("no route to host")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "pillarbox"):
        patch.setattr(folder, "files", broken)
        watch.look()
        watch.look()
    assert [record.getMessage() for record in caplog.records] == ["requests to query q: OSError: no route to host"]
    ask(folder)
    watch.look()
    assert stopped


def test_nothing_is_said_of_requests_to_a_query_that_has_ended(folder, watch, monkeypatch, caplog):
    """Its Spark may be gone as well."""

    def broken():
        raise OSError("this SparkContext was shut down")

    watch._started.query.isActive = False
    monkeypatch.setattr(folder, "files", broken)
    with caplog.at_level(logging.WARNING, "pillarbox"):
        watch.look()
    assert not caplog.records


def test_the_end_of_the_query_is_held_until_the_answer_is_written(folder, watch, stopped):
    started = watch._started
    ended: list[int] = []

    def await_termination(*timeout):
        ended.append(len(folder.of("answer")))
        return True

    started.await_end = await_termination
    started.hold_its_end()
    ask(folder)
    held = []
    folder.when = lambda line: held.append(started._holding)
    watch.look()
    assert held == [1, 1] and started._holding == 0
    assert started.query.awaitTermination(5.0) is True and ended == [1]


def test_whoever_waits_for_the_end_waits_until_functions_are_closed_but_not_at_an_interrupt(watch):
    closed: list[str] = []
    started = watch._started
    started.hold_its_end(lambda: closed.append("closed"))

    def interrupted() -> None:
        raise KeyboardInterrupt

    def failed(timeout: float) -> None:
        raise RuntimeError("the query has failed")

    started.await_end = lambda timeout: False
    assert started.query.awaitTermination(1) is False and not closed
    started.await_end = interrupted
    with pytest.raises(KeyboardInterrupt):
        started.query.awaitTermination()
    started.await_end = failed
    with pytest.raises(RuntimeError):
        started.query.awaitTermination(1)
    assert not closed, "it still runs"
    started.query.isActive = False
    with pytest.raises(RuntimeError):
        started.query.awaitTermination(1)
    started.await_end = lambda: None
    started.query.awaitTermination()
    assert closed == ["closed"] * 2


def test_the_command_waits_for_the_answer(folder, clock):
    def driver(line):
        if "request" in line:
            assert (line["directory"], line["drain"], line["until"]) == ("/sp", True, 1_030_000)
            folder.content += [{"taken": line["request"]}, {"answer": line["request"], "done": True}]

    folder.when = driver
    told: list[str] = []
    request_stop(NO_SPARK, "cp", "/sp", drain=True, timeout=30.0, tell=told.append)
    assert told == ["waiting for the query's driver to take the request"]


def test_a_request_that_nobody_takes_is_withdrawn(folder, clock):
    with pytest.raises(SavepointError, match="no driver has accepted the request within 30 seconds, and it is with"):
        request_stop(NO_SPARK, "cp", "/sp", drain=False, timeout=30.0)
    assert [line["withdrawn"] for line in folder.of("withdrawn")] == [folder.content[0]["request"]]


def test_a_request_is_withdrawn_where_the_command_is_interrupted(folder, clock, monkeypatch):
    """Else a query that is started within the timeout would stop for it."""

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(clock, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        request_stop(NO_SPARK, "cp", "/sp", drain=False, timeout=30.0)
    assert [line["withdrawn"] for line in folder.of("withdrawn")] == [folder.content[0]["request"]]


def test_nothing_is_asked_where_no_query_was_ever_started(folder, monkeypatch):
    monkeypatch.setattr(Checkpoint, "query_id", None)
    with pytest.raises(CheckpointMismatchError, match=r"^wrong/path is no checkpoint of a query: give the checkpoint"):
        request_stop(NO_SPARK, "wrong/path", "/sp", drain=False, timeout=30.0)
    assert not folder.content


@pytest.mark.parametrize("dies", [True, False])
def test_one_that_is_taken_at_the_last_moment_is_waited_for(folder, clock, dies):
    def driver(line):
        if "withdrawn" in line:
            folder.content.append({"taken": line["withdrawn"]})
            if not dies:
                error = {"answer": line["withdrawn"], "done": False, "error": "the request was withdrawn"}
                folder.content.append(error)

    folder.when = driver
    words = "has taken the request, and does not answer" if dies else "^the request was withdrawn"
    with pytest.raises(SavepointError, match=words):
        request_stop(NO_SPARK, "cp", "/sp", drain=False, timeout=30.0)
    assert clock.now < 1000 + 30 + 600 + 5


# -- commands that are killed, and called again --


def again(told=None, directory="/sp", drain=False):
    hear = print if told is None else told.append
    request_stop(NO_SPARK, "cp", directory, drain=drain, timeout=30.0, tell=hear)


@pytest.mark.parametrize("taken", [False, True], ids=["not taken yet", "taken"])
def test_the_same_call_again_joins_the_earlier_one(folder, clock, savepoints, taken):
    ask(folder)
    folder.content += [{"taken": "r"}] * taken
    lines = [{"taken": "r"}, {"answer": "r", "done": True}]
    clock.sleep = lambda seconds: folder.content.append(lines.pop(0))
    told: list[str] = []
    again(told, directory="/sp/")
    assert len(folder.of("request")) == 1 and not folder.of("withdrawn")
    assert told[0] == "an earlier call has asked for it: waiting for that"


def test_the_same_call_again_finds_that_it_is_done(folder, clock, savepoints):
    ask(folder)
    folder.content += [{"taken": "r"}, {"answer": "r", "done": True}]
    savepoints.add("/sp")
    before, told = list(folder.content), list[str]()
    again(told)
    assert folder.content == before and told == ["an earlier call has asked for it, and it is done"]


def test_a_driver_that_died_before_its_answer_has_done_it_nevertheless(folder, clock, savepoints):
    ask(folder)
    folder.content.append({"taken": "r"})
    savepoints.add("/sp")
    told: list[str] = []
    again(told)
    assert told == ["an earlier call has asked for it, and it is done"] and len(folder.content) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"directory": "/other"}, "to stop the query with a savepoint in /sp, which is under way: nothing was asked"),
        ({"drain": True}, "'pillarbox savepoint cp /sp --stop' waits for it, and withdraws it"),
    ],
    ids=["another place", "other options"],
)
@pytest.mark.parametrize("taken", [False, True], ids=["not taken yet", "taken"])
def test_something_else_is_not_asked_meanwhile(folder, clock, savepoints, taken, options, words):
    ask(folder)
    folder.content += [{"taken": "r"}] * taken
    before = list(folder.content)
    with pytest.raises(SavepointError, match=words):
        again(**options)
    assert folder.content == before


def test_a_query_that_an_earlier_call_has_stopped_is_not_asked(folder, clock, savepoints):
    ask(folder, drain=True)
    folder.content += [{"taken": "r"}, {"answer": "r", "done": True}]
    savepoints.add("/sp")
    before = list(folder.content)
    with pytest.raises(
        SavepointError, match="asked to drain the query with a savepoint in /sp, which was done, and no"
    ):
        again(directory="/other")
    assert folder.content == before


@pytest.mark.parametrize("ended", ["failed", "withdrawn", "over", "late", "forgotten"])
def test_what_has_ended_is_in_nobodys_way(folder, clock, savepoints, ended):
    ask(folder, directory="/other", until=900.0 if ended == "late" else 300.0 if ended == "forgotten" else 1060.0)
    lines: dict[str, list[dict[str, Any]]] = {
        "failed": [{"taken": "r"}, {"answer": "r", "done": False, "error": "no disk"}],
        "withdrawn": [{"withdrawn": "r"}],
        "over": [{"taken": "r"}, {"answer": "r", "done": True}, {"over": ["r"]}],
        "late": [],
        "forgotten": [{"taken": "r"}],
    }
    folder.content += lines[ended]

    def driver(line):
        if "request" in line:
            folder.content += [{"taken": line["request"]}, {"answer": line["request"], "done": True}]

    folder.when = driver
    again()
    assert [line["directory"] for line in folder.of("request")] == ["/other", "/sp"]


def test_an_earlier_request_with_less_time_is_asked_again(folder, clock, savepoints):
    """Nobody takes it within its own time; the call that waits for it has more."""
    ask(folder, until=1010.0)
    with pytest.raises(SavepointError, match="no driver has accepted the request within 30 seconds"):
        again()
    first, second = (line["request"] for line in folder.of("request"))
    assert [line["withdrawn"] for line in folder.of("withdrawn")] == [first, second]
    assert folder.of("request")[1]["until"] == 1_030_000


def test_two_calls_wait_for_one_request_and_the_first_is_interrupted(folder, clock, savepoints):
    ask(folder)

    def driver(line):
        if "request" in line:
            folder.content += [{"taken": line["request"]}, {"answer": line["request"], "done": True}]

    folder.when = driver
    clock.sleep = lambda seconds: folder.content.append({"withdrawn": "r"})
    told: list[str] = []
    again(told)
    assert len(folder.of("request")) == 2 and told[1] == "the query's driver is asked once more"


# -- queries that are started again --


@pytest.fixture
def started(folder, watch):
    """A start of the query behind all that is in the folder; returns its watch."""

    def start():
        found = RequestWatch(watch._started, watch._clock)
        found.look()
        found.look()
        return found

    return start


def test_a_query_does_not_stop_for_a_request_of_before_its_start(folder, started, stopped, caplog):
    """Whoever asked was killed: hours later nobody would expect it, be the timeout as long as it is."""
    ask(folder, until=1000 + 24 * 3600.0)
    with caplog.at_level(logging.WARNING, "pillarbox"):
        started()
    assert not stopped and folder.of("over") == [{"over": ["r"]}]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(
        "query q: a request that is older than this start, to stop the query with a savepoint in /sp, is ign"
    )
    started()
    assert len(folder.of("over")) == 1, "it is said once"


def test_a_command_that_still_waits_asks_the_query_that_was_started(folder, clock, savepoints, started, stopped):
    def sleep(seconds):
        clock.now += seconds
        if not folder.of("over"):
            watches.append(started())
        watches[0].look()

    watches: list[RequestWatch] = []
    clock.sleep = sleep
    told: list[str] = []
    again(told, drain=True)
    assert len(folder.of("request")) == 2 and folder.of("over") == [{"over": [folder.content[0]["request"]]}]
    assert stopped == [("/sp", {"drain": True, "timeout": 28.0})]
    assert told == ["waiting for the query's driver to take the request", "the query's driver is asked once more"]


def test_a_driver_dies_with_a_request_and_the_query_is_started_again(folder, clock, savepoints, started, stopped):
    """The command does not wait for the dead one; whether the savepoint was written, it says how to see."""
    ask(folder)
    folder.content.append({"taken": "r"})
    clock.sleep = lambda seconds: started() and None
    with pytest.raises(
        SavepointError, match=r"started again before the driver.*complete if there is /sp/manifest; if n"
    ):
        again()
    assert not stopped

    newest = started()
    folder.when = lambda line: newest.look() if "request" in line else None
    again()
    assert [place for place, _ in stopped] == ["/sp"]


def test_a_query_that_was_stopped_and_started_again_can_be_stopped_again(folder, clock, savepoints, started, stopped):
    ask(folder)
    folder.content += [{"taken": "r"}, {"answer": "r", "done": True}]
    savepoints.add("/sp")
    watch = started()
    folder.when = lambda line: watch.look() if "request" in line else None
    again(directory="/sp-2")
    assert [place for place, _ in stopped] == ["/sp-2"]


def test_requests_of_before_that_cannot_be_read_are_passed_over_when_they_can(folder, watch, stopped, monkeypatch):
    def broken():
        raise OSError("no route to host")

    ask(folder)
    found = RequestWatch(watch._started, watch._clock)
    with monkeypatch.context() as patch:
        patch.setattr(folder, "files", broken)
        found.look()
    found.look()
    found.look()
    assert not stopped and folder.of("over") == [{"over": ["r"]}]


def test_a_query_that_is_not_ours_is_left_alone():
    query: Any = SimpleNamespace(id="somebody else's", isActive=True, awaitTermination=None)
    with pytest.raises(SavepointError, match="holds no program of pillarbox, or another process has started it: noth"):
        stop_with_savepoint(query, "/sp")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0}, "timeout is a number of seconds above 0, not 0"),
        ({"timeout": True}, "timeout is a number of seconds above 0, not True"),
        ({"timeout": "1 minute"}, "timeout is a number of seconds above 0, not '1 minute'"),
        ({"drain": "no"}, "drain is True or False, not 'no'"),
    ],
)
def test_wrong_arguments(options, words):
    with pytest.raises(ProgramError, match=words):
        stop_with_savepoint(NO_SPARK, "/sp", **options)
