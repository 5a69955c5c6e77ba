"""Requests to a running query's driver: accepted and withdrawn requests, and messages to command and driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox import CheckpointMismatchError, ConfigurationError, ProgramError, SavepointError, stop_with_savepoint
from pillarbox._json import plain
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.homes.processes import OsProcess
from pillarbox._runtime.spark.running import heartbeat, monitoring, query_command, request_watch
from pillarbox._runtime.spark.running.heartbeat import Heartbeat
from pillarbox._runtime.spark.running.query_command import request_record, request_savepoint, stop_query
from pillarbox._runtime.spark.running.request_watch import RequestWatch
from pillarbox._runtime.spark.running.requests import (
    ObservedState,
    QueryRequest,
    QueryStateRequest,
    RequestLog,
    RequestStatus,
)
from pillarbox._runtime.spark.starting.started import StartedQuery

NO_SPARK: Any = None


class Folder:
    """A request folder in memory. Calls ``when`` with each line that is written."""

    def __init__(self) -> None:
        self.content: list[Any] = []
        self.when: Callable[[Any], object] = lambda line: None
        self.reads = 0

    def write(self, line: Any) -> None:
        self.content.append(line)
        self.when(line)

    def files(self) -> frozenset[str]:
        return frozenset(map(str, range(len(self.content))))

    def make_folder(self) -> None:
        pass

    def lines(self) -> RequestLog:
        self.reads += 1
        return RequestLog([plain(line) for line in self.content])

    def of(self, kind: type[Any]) -> list[Any]:
        return [line for line in self.content if isinstance(line, kind)]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    result = Clock()
    monkeypatch.setattr(query_command, "time", result)
    return result


@pytest.fixture
def folder(monkeypatch):
    result = Folder()
    for module in (query_command, request_watch):
        monkeypatch.setattr(module, "Requests", lambda spark, checkpoint: result)
    monkeypatch.setattr(Checkpoint, "query_id", "q")
    monkeypatch.setattr(query_command, "dead_driver", lambda spark, checkpoint: None)
    return result


@pytest.fixture
def calls(monkeypatch):
    results = []

    def savepoint(query, directory, **options):
        results.append((directory, options))
        if directory == "bad":
            raise SavepointError("the disk is full")
        if directory == "worse":
            raise OSError("no disk")

    def record(writer, directory, **options):
        results.append((directory, options))

    def end(started, has_time):
        results.append(("stop", {}))
        return True

    monkeypatch.setattr(request_watch, "stop_with_savepoint", savepoint)
    monkeypatch.setattr(monitoring, "record", record)
    monkeypatch.setattr(request_watch, "end_query", end)
    return results


@pytest.fixture
def watch(folder, clock, monkeypatch):
    query: Any = SimpleNamespace(id="q", isActive=True)
    start: Any = SimpleNamespace(checkpoint="cp", spark=NO_SPARK, writer="writer")
    request_watch = RequestWatch(StartedQuery(query, start), clock.time)
    # Run another thread's work at once.
    monkeypatch.setattr(threading, "Thread", lambda target, args, **_: SimpleNamespace(start=lambda: target(*args)))
    request_watch.look()  # as at the start of the query
    return request_watch


@pytest.fixture
def savepoints(monkeypatch):
    results = set[str]()

    def open_savepoint(spark, directory):
        if directory not in results:
            raise CheckpointMismatchError(f"{directory} is no savepoint")

    monkeypatch.setattr(query_command, "open_savepoint", open_savepoint)
    return results


@pytest.fixture
def started(folder, watch):
    def start():
        request_watch = RequestWatch(watch._started, watch._clock)
        request_watch.look()
        request_watch.look()
        return request_watch

    return start


def ask(folder, number="r", until=1060.0, directory="/sp", drain=False):
    folder.content.append(QueryRequest(number, "savepoint", directory, int(until * 1000), drain))


def want_stop(folder, generation=1, until=1060.0):
    folder.content.append(QueryStateRequest(generation, "stopped", int(until * 1000)))


def stop(notices=None):
    stop_query(NO_SPARK, "cp", timeout=30.0, notify=print if notices is None else notices.append)


def savepoint(notices=None, directory="/sp", drain=False):
    hear = print if notices is None else notices.append
    request_savepoint(NO_SPARK, "cp", directory, drain=drain, timeout=30.0, notify=hear)


# -- the driver --


def test_a_request_is_taken_once_and_answered(folder, watch, calls):
    watch.look()
    ask(folder, drain=True)
    watch.look()
    watch.look()
    assert calls == [("/sp", {"drain": True, "timeout": 60.0})]
    assert folder.of(RequestStatus) == [RequestStatus("r", "taken"), RequestStatus("r", "done")]
    assert folder.of(ObservedState) == [ObservedState(1, "stopped")]
    reads = folder.reads
    watch.look()
    assert folder.reads == reads, "nothing is read where no file is new"


@pytest.mark.parametrize(
    ("directory", "words"), [("bad", "the disk is full"), ("worse", "OSError: no disk")], ids=["ours", "another"]
)
def test_a_failed_request_is_answered_with_its_error(folder, watch, calls, directory, words):
    ask(folder, directory=directory)
    watch.look()
    assert folder.of(RequestStatus)[1:] == [RequestStatus("r", "failed", words)] and not folder.of(ObservedState)


def test_a_task_is_recorded_of_the_last_committed_epoch(folder, watch, calls, monkeypatch):
    monkeypatch.setattr(Checkpoint, "last_committed", 7)
    folder.content.append(QueryRequest("r", "record", "/rec", 1_060_000, task={"uid": "count", "epoch": None}))
    watch.look()
    assert calls == [("/rec", {"checkpointLocation": "cp", "uid": "count", "epoch": 7})]
    assert folder.of(RequestStatus)[1:] == [RequestStatus("r", "done")] and not folder.of(ObservedState)


@pytest.mark.parametrize(
    ("ends", "failure", "observed"),
    [
        (True, None, ObservedState(1, "stopped")),
        (False, None, ObservedState(1, "stopped")),
        (
            False,
            RuntimeError("the disk is full"),
            ObservedState(1, "running", "the query failed before it could be stopped: RuntimeError: the disk is full"),
        ),
        (OSError("no disk"), None, ObservedState(1, "running", "OSError: no disk")),
    ],
    ids=["behind its epoch", "at once", "failed", "broken"],
)
def test_a_query_that_is_to_stop_is_stopped(folder, watch, clock, monkeypatch, ends, failure, observed):
    def end(started, has_time):
        assert started is watch._started and has_time()
        clock.now = 1060.0
        assert not has_time()
        if isinstance(ends, Exception):
            raise ends
        return ends

    monkeypatch.setattr(request_watch, "end_query", end)
    watch._started.query.exception = lambda: failure
    want_stop(folder)
    watch.look()
    assert folder.of(ObservedState) == [ObservedState(1, "stopping"), observed]


def test_the_newest_desired_state_holds(folder, watch, calls):
    want_stop(folder, 3)
    folder.content.append(QueryStateRequest(4, "running"))
    watch.look()
    assert not calls and not folder.of(ObservedState)
    want_stop(folder, 5)
    watch.look()
    assert calls == [("stop", {})] and folder.of(ObservedState)[-1] == ObservedState(5, "stopped")


def test_a_stop_that_is_no_longer_wanted_when_the_driver_begins_is_not_carried_out(folder, watch, calls):
    want_stop(folder)
    folder.when = lambda line: (
        folder.content.append(QueryStateRequest(2, "running")) if isinstance(line, ObservedState) else None
    )
    watch.look()
    assert not calls and folder.of(ObservedState) == [ObservedState(1, "stopping"), ObservedState(2, "running")]


def test_requests_whose_time_has_run_out_or_that_are_withdrawn_or_taken_are_left_alone(folder, watch, calls):
    want_stop(folder, until=1000.0)
    ask(folder, "late", until=1000.0)
    ask(folder, "withdrawn")
    ask(folder, "taken")
    folder.content += [RequestStatus("withdrawn", "withdrawn"), RequestStatus("taken", "taken")]
    before = list(folder.content)
    watch.look()
    assert not calls and folder.content == before


def test_lines_of_other_versions_are_passed_over():
    lines = RequestLog([{"later": "version"}, {"taken": "r"}, {"desired": 1}, {"observed": 7, "state": "dancing"}, {}])
    assert (lines.desired, lines.newest, lines.requests) == (
        QueryStateRequest(0, "running"),
        ObservedState(0, "running"),
        [],
    )


def test_one_that_is_withdrawn_while_it_is_taken_is_not_carried_out(folder, watch, calls):
    ask(folder)
    accepted = RequestStatus("r", "taken")
    folder.when = lambda line: folder.content.append(RequestStatus("r", "withdrawn")) if line == accepted else None
    watch.look()
    assert not calls and folder.of(RequestStatus)[-1] == RequestStatus("r", "failed", "the request was withdrawn")


def test_open_requests_are_answered_when_the_query_ends(folder, watch, calls):
    watch.look()
    want_stop(folder)
    ask(folder)
    watch.end()
    assert folder.of(ObservedState) == [ObservedState(1, "stopped")]
    assert folder.of(RequestStatus) == [RequestStatus("r", "failed", "the query has ended")] and not calls


def test_a_folder_that_cannot_be_read_does_not_end_the_watch(folder, watch, calls, monkeypatch, caplog):
    def broken():
        raise OSError("no route to host")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "pillarbox"):
        patch.setattr(folder, "files", broken)
        watch.look()
        watch.look()
        watch.end()
    assert [record.getMessage() for record in caplog.records] == [
        "requests to query q could not be read or answered: OSError: no route to host"
    ]
    ask(folder)
    watch.look()
    assert calls


def test_nothing_is_said_of_requests_to_a_query_that_has_ended(folder, watch, monkeypatch, caplog):
    def broken():
        raise OSError("this SparkContext was shut down")

    watch._started.query.isActive = False
    monkeypatch.setattr(folder, "files", broken)
    with caplog.at_level(logging.WARNING, "pillarbox"):
        watch.look()
        watch.end()
    assert not caplog.records


def test_the_end_of_the_query_is_held_until_the_answer_is_written(folder, watch, calls):
    started = watch._started
    ended: list[int] = []

    def await_termination(*timeout):
        ended.append(len(folder.of(RequestStatus)))
        return True

    started.await_end = await_termination
    started.hold_end()
    ask(folder)
    held = []
    folder.when = lambda line: held.append(started._holding)
    watch.look()
    assert held == [1, 1, 1] and started._holding == 0
    assert started.query.awaitTermination(5.0) is True and ended == [2]


def test_whoever_waits_for_the_end_waits_until_functions_are_closed_but_not_at_an_interrupt(watch):
    closed: list[str] = []
    started = watch._started
    started.hold_end(lambda: closed.append("closed"))

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


# -- the command --


def test_the_command_waits_for_the_answer(folder, clock, savepoints):
    def driver(line):
        if isinstance(line, QueryRequest):
            assert (line.directory, line.drain, line.until) == ("/sp", True, 1_030_000)
            folder.content += [RequestStatus(line.request, "taken"), RequestStatus(line.request, "done")]

    folder.when = driver
    messages: list[str] = []
    savepoint(messages, drain=True)
    assert messages == ["waiting for the query's driver to accept the request"]


def test_the_command_waits_until_the_query_is_stopped(folder, clock):
    observed = [ObservedState(1, "stopping"), ObservedState(1, "stopped")]
    clock.sleep = lambda seconds: folder.content.append(observed.pop(0))
    messages: list[str] = []
    stop(messages)
    assert folder.of(QueryStateRequest) == [QueryStateRequest(1, "stopped", 1_030_000)]
    assert messages == ["waiting for the query's driver to accept the request", "the driver accepted the request"]


def test_a_recording_is_asked_for(folder, clock):
    def driver(line):
        if isinstance(line, QueryRequest):
            assert (line.what, line.directory, line.task) == ("record", "/rec", {"uid": "count", "timeout": 30.0})
            folder.content.append(RequestStatus(line.request, "failed", "no such task"))

    folder.when = driver
    with pytest.raises(ConfigurationError, match=r"^no such task"):
        request_record(NO_SPARK, "cp", "/rec", timeout=30.0, uid="count")
    folder.when = lambda line: None
    with pytest.raises(ConfigurationError, match=r"within 30 seconds, .* for an ended query, pass its script"):
        request_record(NO_SPARK, "cp", "/rec", timeout=30.0, uid="count")


def test_a_request_that_no_driver_accepts_is_withdrawn(folder, clock, savepoints):
    with pytest.raises(SavepointError, match="no driver accepted the request within 30 seconds, so it was with"):
        savepoint()
    assert folder.of(RequestStatus) == [RequestStatus(folder.content[0].request, "withdrawn")]
    with pytest.raises(SavepointError, match=r"or the two machines' clocks differ\Z"):
        stop()
    assert folder.of(QueryStateRequest) == [
        QueryStateRequest(1, "stopped", folder.content[2].until),
        QueryStateRequest(2, "running"),
    ]


@pytest.mark.parametrize("call", [stop, savepoint])
def test_a_request_to_a_dead_driver_is_withdrawn_early(folder, clock, savepoints, monkeypatch, call):
    clock.time_ns = lambda: int(clock.now * 1e9)
    monkeypatch.setattr(heartbeat, "time", clock)
    dead = Heartbeat(700_000, "r", "one", 9)
    monkeypatch.setattr(query_command, "dead_driver", lambda spark, checkpoint: dead)
    why = r"is not running \(its driver, process 9 on one, wrote its last heartbeat 321 seconds ago\)"
    with pytest.raises(SavepointError, match=rf"no driver accepted the request, so it was withdrawn\. The query {why}"):
        call()
    assert clock.now == 1021, "a driver under Spark Connect, which writes no heartbeat, had time to accept it"
    asked, withdrawn = folder.content
    assert withdrawn == (QueryStateRequest(2, "running") if call is stop else RequestStatus(asked.request, "withdrawn"))


def test_a_driver_that_accepts_a_request_needs_no_heartbeat(folder, clock, monkeypatch):
    monkeypatch.setattr(query_command, "dead_driver", lambda spark, checkpoint: Heartbeat(0, "r", "one", 9))
    observed = {1010.0: ObservedState(1, "stopping"), 1029.0: ObservedState(1, "stopped")}

    def sleep(seconds):
        clock.now += seconds
        folder.content += [observed[clock.now]] if clock.now in observed else []

    clock.sleep = sleep
    stop()
    assert folder.of(QueryStateRequest) == [QueryStateRequest(1, "stopped", 1_030_000)]


@pytest.mark.parametrize(
    ("beat", "dead"),
    [
        (None, False),
        (Heartbeat(999_000, "r", "elsewhere", 9, 7), False),
        (Heartbeat(840_000, "r", "elsewhere", 9, 7), True),
        (Heartbeat(960_000, "r", "here", 9, 7), True),
        (Heartbeat(960_000, "r", "here", 9), False),
        (Heartbeat(971_000, "r", "here", 9, 7), False),
    ],
    ids=["none", "recent", "silent", "ended", "unknown process", "perhaps another container"],
)
def test_a_driver_is_dead_if_it_is_silent_or_its_process_has_ended(clock, monkeypatch, beat, dead):
    clock.time_ns = lambda: int(clock.now * 1e9)
    monkeypatch.setattr(heartbeat, "time", clock)
    monkeypatch.setattr(heartbeat, "newest_heartbeat", lambda spark, checkpoint: beat)
    monkeypatch.setattr(heartbeat, "this_process", lambda: ("here", 1, 1))
    monkeypatch.setattr(OsProcess, "has_ended", lambda process: True)
    assert heartbeat.dead_driver(NO_SPARK, "cp") == (beat if dead else None)


@pytest.mark.parametrize("call", [stop, savepoint])
def test_it_is_withdrawn_if_the_command_is_interrupted(folder, clock, savepoints, monkeypatch, call):
    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(clock, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call()
    asked, withdrawn = folder.content
    assert withdrawn == (QueryStateRequest(2, "running") if call is stop else RequestStatus(asked.request, "withdrawn"))


def test_nothing_is_asked_where_no_query_was_ever_started(folder, monkeypatch):
    monkeypatch.setattr(Checkpoint, "query_id", None)
    with pytest.raises(
        CheckpointMismatchError, match=r"^wrong/path is not a checkpoint of a query: pass the checkpoint"
    ):
        stop_query(NO_SPARK, "wrong/path", timeout=30.0)
    assert not folder.content


@pytest.mark.parametrize("dies", [True, False])
def test_one_that_is_taken_at_the_last_moment_is_waited_for(folder, clock, savepoints, dies):
    def driver(line):
        if isinstance(line, RequestStatus) and line.status == "withdrawn":
            folder.content.append(RequestStatus(line.of, "taken"))
            if not dies:
                folder.content.append(RequestStatus(line.of, "failed", "the request was withdrawn"))

    folder.when = driver
    words = "accepted the request, but has not responded" if dies else "^the request was withdrawn"
    with pytest.raises(SavepointError, match=words):
        savepoint()
    assert clock.now < 1000 + 30 + 600 + 5


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_stop_that_begins_at_the_last_moment(folder, clock, carried_out):
    def driver(line):
        if line == QueryStateRequest(2, "running"):
            folder.content += [
                ObservedState(1, "stopping"),
                ObservedState(1, "stopped") if carried_out else ObservedState(2, "running"),
            ]

    folder.when = driver
    if carried_out:
        stop()
    else:
        with pytest.raises(SavepointError, match="no driver accepted the request"):
            stop()


def test_a_stop_that_never_ends(folder, clock):
    folder.when = lambda line: folder.content.append(ObservedState(1, "stopping"))
    with pytest.raises(SavepointError, match="accepted the request, but has not responded"):
        stop()
    assert clock.now < 1000 + 30 + 120 + 5 and len(folder.content) == 2, "it was not withdrawn, so it may still happen"


# -- commands that are killed, and called again --


def test_to_stop_twice_is_the_same_wish(folder, clock):
    want_stop(folder, 4)
    observed = [ObservedState(4, "stopping"), ObservedState(4, "stopped")]
    clock.sleep = lambda seconds: folder.content.append(observed.pop(0))
    messages: list[str] = []
    stop(messages)
    assert messages[0] == "waiting for an earlier command that requested it" and len(folder.of(QueryStateRequest)) == 1
    messages.clear()
    stop(messages)
    assert messages == ["an earlier command has already done it"] and len(folder.of(QueryStateRequest)) == 1


def test_two_calls_wait_for_one_stop_and_the_first_is_interrupted(folder, clock):
    want_stop(folder)
    lines = [QueryStateRequest(2, "running"), ObservedState(3, "stopped")]
    clock.sleep = lambda seconds: folder.content.append(lines.pop(0))
    messages: list[str] = []
    stop(messages)
    assert folder.of(QueryStateRequest)[-1].desired == 3 and messages[1] == "asking the query's driver again"


def test_an_earlier_stop_with_less_time_is_asked_again(folder, clock):
    want_stop(folder, until=1010.0)
    with pytest.raises(SavepointError, match="no driver accepted the request within 30 seconds"):
        stop()
    assert [(line.desired, line.state) for line in folder.of(QueryStateRequest)] == [
        (1, "stopped"),
        (2, "running"),
        (3, "stopped"),
        (4, "running"),
    ]
    assert folder.of(QueryStateRequest)[2].until == 1_030_000


def test_the_same_savepoint_again_finds_that_it_is_done(folder, clock, savepoints):
    ask(folder)
    folder.content.append(RequestStatus("r", "taken"))  # the driver died after the savepoint, and before its answer
    savepoints.add("/sp")
    before, messages = list(folder.content), list[str]()
    savepoint(messages, directory="/sp/")
    assert folder.content == before and messages == ["an earlier command has already done it"]


def test_a_driver_does_it_for_an_earlier_call(folder, clock, savepoints, watch, calls):
    ask(folder)

    def sleep(seconds):
        watch.look()
        savepoints.add("/sp")
        watch.end()

    clock.sleep = sleep
    savepoint()
    assert [directory for directory, _ in calls] == ["/sp"]
    assert folder.of(RequestStatus)[-1].error == "the query has ended"


@pytest.mark.parametrize("is_taken", [False, True], ids=["not taken yet", "taken"])
@pytest.mark.parametrize("options", [{"directory": "/other"}, {"drain": True}], ids=["another place", "other options"])
def test_another_savepoint_is_not_asked_for_meanwhile(folder, clock, savepoints, is_taken, options):
    ask(folder)
    folder.content += [RequestStatus("r", "taken")] * is_taken
    before = list(folder.content)
    words = "to stop the query with a savepoint in /sp, is under way, so nothing was requested"
    with pytest.raises(SavepointError, match=words):
        savepoint(**options)
    assert folder.content == before


def test_a_query_that_an_earlier_call_has_stopped_is_not_asked(folder, clock, savepoints):
    folder.content += [ObservedState(4, "running"), ObservedState(5, "stopped")]
    with pytest.raises(
        SavepointError, match=r"has started it since, so nothing was requested.* 'pillarbox savepoint cp DIR'"
    ):
        savepoint()
    messages: list[str] = []
    stop(messages)
    assert messages == ["an earlier command has already done it"] and len(folder.content) == 2


@pytest.mark.parametrize("ended", ["failed", "withdrawn", "over", "late", "forgotten"])
def test_finished_requests_do_not_block_new_ones(folder, clock, savepoints, ended):
    ask(folder, directory="/other", until=900.0 if ended == "late" else 300.0 if ended == "forgotten" else 1060.0)
    lines: dict[str, list[Any]] = {
        "failed": [RequestStatus("r", "taken"), RequestStatus("r", "failed", "no disk")],
        "withdrawn": [RequestStatus("r", "withdrawn")],
        "over": [RequestStatus("r", "taken"), RequestStatus("r", "done"), RequestStatus("r", "over")],
        "late": [],
        "forgotten": [RequestStatus("r", "taken")],
    }
    folder.content += lines[ended]

    def driver(line):
        if isinstance(line, QueryRequest):
            folder.content += [RequestStatus(line.request, "taken"), RequestStatus(line.request, "done")]

    folder.when = driver
    savepoint()
    assert [line.directory for line in folder.of(QueryRequest)] == ["/other", "/sp"]


# -- queries that are started again --


def test_a_query_does_not_stop_for_what_was_desired_before_its_start(folder, started, calls, caplog):
    """After a stop command is killed, its request remains. A query that starts hours later must not stop for it."""
    want_stop(folder, until=1000 + 24 * 3600.0)
    ask(folder, until=1000 + 24 * 3600.0)
    with caplog.at_level(logging.WARNING, "pillarbox"):
        started()
    assert (
        not calls
        and folder.of(RequestStatus) == [RequestStatus("r", "over")]
        and folder.of(ObservedState) == [ObservedState(1, "running")]
    )
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("query q: the request to stop the query is older than this start, so it is ignored")
    assert "to stop the query with a savepoint in /sp is older than this start, so it is ignored" in second
    started()
    assert len(folder.of(RequestStatus)) == len(folder.of(ObservedState)) == 1, "it is said once"


@pytest.mark.parametrize("call", [stop, savepoint])
def test_a_command_that_still_waits_asks_the_query_that_was_started(folder, clock, savepoints, started, calls, call):
    def sleep(seconds):
        clock.now += seconds
        if not watches:
            watches.append(started())
        watches[0].look()

    watches: list[RequestWatch] = []
    clock.sleep = sleep
    messages: list[str] = []
    call(messages)
    assert len(calls) == 1
    assert messages == ["waiting for the query's driver to accept the request", "asking the query's driver again"]


@pytest.mark.parametrize("call", [stop, savepoint])
def test_a_driver_dies_at_its_work_and_the_query_is_started_again(folder, clock, savepoints, started, calls, call):
    def sleep(seconds):
        number = getattr(folder.content[0], "request", "")
        folder.content.append(ObservedState(1, "stopping") if call is stop else RequestStatus(number, "taken"))
        started()

    clock.sleep = sleep
    hint = (
        "If the query still runs, call" if call is stop else r"If /sp/manifest exists, the savepoint is complete; if n"
    )
    with pytest.raises(SavepointError, match=f"started again before the driver.*{hint}"):
        call()
    assert not calls
    newest = started()
    folder.when = lambda line: newest.look() if isinstance(line, QueryRequest | QueryStateRequest) else None
    call()
    assert len(calls) == 1


@pytest.mark.parametrize("call", [stop, savepoint])
def test_a_query_that_was_stopped_and_started_again_can_be_stopped_again(
    folder, clock, savepoints, watch, started, calls, call
):
    ask(folder, directory="/other")
    watch.look()
    assert folder.of(ObservedState)[-1].state == "stopped"
    newest = started()
    folder.when = lambda line: newest.look() if isinstance(line, QueryRequest | QueryStateRequest) else None
    call()
    assert [folder for folder, _ in calls] == ["/other", "stop" if call is stop else "/sp"]


def test_requests_of_before_that_cannot_be_read_are_passed_over_when_they_can(folder, watch, calls, monkeypatch):
    def broken():
        raise OSError("no route to host")

    ask(folder)
    request_watch = RequestWatch(watch._started, watch._clock)
    with monkeypatch.context() as patch:
        patch.setattr(folder, "files", broken)
        request_watch.look()
    request_watch.look()
    request_watch.look()
    assert not calls and folder.of(RequestStatus) == [RequestStatus("r", "over")]


def test_a_query_that_is_not_ours_is_left_alone():
    query: Any = SimpleNamespace(id="somebody else's", isActive=True, awaitTermination=None)
    with pytest.raises(SavepointError, match="contains no pillarbox program, or another process started it: noth"):
        stop_with_savepoint(query, "/sp")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0}, "timeout= must be a number of seconds above 0, not 0"),
        ({"timeout": True}, "timeout= must be a number of seconds above 0, not True"),
        ({"timeout": "1 minute"}, "timeout= must be a number of seconds above 0, not '1 minute'"),
        ({"drain": "no"}, "drain= must be True or False, not 'no'"),
    ],
)
def test_wrong_arguments(options, words):
    with pytest.raises(ProgramError, match=words):
        stop_with_savepoint(NO_SPARK, "/sp", **options)
