"""Requests to the driver of a running query, without Spark: who takes, who withdraws, and what both get to know."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox import CheckpointMismatchError, ProgramError, SavepointError, stop_with_savepoint
from pillarbox._runtime.spark import requests
from pillarbox._runtime.spark.requests import RequestWatch, request_stop
from pillarbox._runtime.spark.started import StartedQuery

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
    of_a_query = SimpleNamespace(query_id="q")
    monkeypatch.setattr(requests, "Description", lambda spark, checkpoint: of_a_query)
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
    found = RequestWatch(NO_SPARK, StartedQuery(query, None, lambda: query, "cp", []), clock.time)
    # What another thread would do, at once.
    monkeypatch.setattr(threading, "Thread", lambda target, args, **_: SimpleNamespace(start=lambda: target(*args)))
    return found


def ask(folder, number="r", until=1060.0, directory="/sp", drain=False):
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


def test_the_end_of_the_query_is_held_until_the_answer_is_written(folder, watch, stopped):
    started = watch._started
    ended: list[int] = []

    def await_termination(*timeout):
        ended.append(len(folder.of("answer")))
        return True

    started.query.awaitTermination = await_termination
    started.hold_its_end()
    ask(folder)
    held = []
    folder.when = lambda line: held.append(started._holding)
    watch.look()
    assert held == [1, 1] and started._holding == 0
    assert started.query.awaitTermination(5.0) is True and ended == [1]


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
    with pytest.raises(SavepointError, match="nobody has taken the request within 30 seconds, and it is withdrawn"):
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
    monkeypatch.setattr(requests, "Description", lambda spark, checkpoint: SimpleNamespace(query_id=None))
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
