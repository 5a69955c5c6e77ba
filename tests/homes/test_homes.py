from __future__ import annotations

import copy
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import TaskContext

from pillarbox import KeyedProcessFunction, OperatorError, ValueStateDescriptor
from pillarbox._elements.buffers import Buffer, decode
from pillarbox._runtime.spark.homes import relay, sockets
from pillarbox._runtime.spark.homes.settings import IDLE, MODE, MOST
from pillarbox._runtime.spark.homes.starter_connection import NoHomesError
from pillarbox._runtime.spark.rows.buffer_rows import BUFFER_COLUMNS
from pillarbox._runtime.spark.rows.output import BATCH_TIMESTAMP
from pillarbox._runtime.spark.worker.processor import Processor
from tests.homes.conftest import Executor, wait_until
from tests.runtime.spark_of_dicts import Handle, Query, Times, context_of_task, keyed_query, rows_of

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes in /proc"),
]


class Count(KeyedProcessFunction):
    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.field: dict[Any, int] = {}

    def note(self, what: str) -> None:
        with self.notes.open("a") as file:
            file.write(f"{what} {os.getpid()} {threading.current_thread() is threading.main_thread()}\n")

    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))
        self.note("open")

    def process_element(self, value, ctx):
        if value == 1300:
            raise ValueError("thirteen")
        if value == 99:
            self.note("hangs")
            time.sleep(1000)
        self.field[value] = self.field.get(value, 0) + 1
        self.seen.update((self.seen.value() or 0) + 1)
        yield value, self.field[value], self.seen.value(), os.getpid()

    def close(self):
        self.note("close")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes"
    path.touch()
    return path


def counting(
    notes: Path, *, run: str = "run", parallelism: int = 2, mode: str = "fork", settings: dict[str, str] | None = None
) -> Query:
    return keyed_query(Count(notes), parallelism, 2 * parallelism, run=run, settings={MODE: mode, **(settings or {})})


def noted(notes: Path, what: str) -> list[int]:
    return [int(line.split()[1]) for line in notes.read_text().splitlines() if line.split()[0] == what]


@pytest.mark.parametrize("mode", ["fork", pytest.param("spawn", marks=pytest.mark.long("it imports everything"))])
def test_a_subtask_lives_in_one_process(executor: Executor, notes: Path, mode: str) -> None:
    query = counting(notes, mode=mode)
    for epoch in range(1, 5):
        out = query.run_batch([*range(20)])
        assert sorted(row[:3] for row in out) == [(key, epoch, epoch) for key in range(20)]
        assert {row[3] for row in out} == executor.homes
        assert {report.process for report in query.reports if report.level} == executor.homes
    assert len(executor.homes) == 2
    assert len(noted(notes, "open")) == 2, "once for each subtask"
    assert " False" not in notes.read_text(), "functions run in the main thread"


STARTS_HERE = """
import importlib, sys, zipimport
from pillarbox._runtime.spark.homes.imports import import_and_freeze
import_and_freeze()
assert not [each for each in sys.path_importer_cache.values() if isinstance(each, zipimport.zipimporter)]
before = set(sys.modules)
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment
import in_an_archive
stream = StreamExecutionEnvironment().from_collection([1, 2]).key_by(lambda n: n).map(lambda n: n + in_an_archive.ONE)
assert list(stream.execute_and_collect()) == [2, 3]
print(sorted(name for name in set(sys.modules) - before if name != "in_an_archive"))
"""


def test_processes_are_forked_with_all_that_they_need(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("in_an_archive.py", "ONE = 1")
    path = os.pathsep.join([str(tmp_path / "archive.zip"), *sys.path])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", STARTS_HERE], check=False, capture_output=True, text=True, env=env)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_an_error_of_a_function_is_the_workers(executor: Executor, notes: Path) -> None:
    query = counting(notes)
    query.run_batch([1, 2])
    with pytest.raises(
        OperatorError, match=r"operator 'process: Count' failed at the record 1300: ValueError: thirteen"
    ) as raised:
        query.run_batch([1, 1300])
    assert "in process_element" in str(raised.value) and "pillarbox/_" not in str(raised.value)
    assert sorted(row[2] for row in query.run_batch([1, 2])) == [2, 2]


def test_an_epoch_that_was_not_committed_has_left_nothing(executor: Executor, notes: Path) -> None:
    query = counting(notes)
    query.run_batch([1, 2])
    query.run_batch([1, 2], commit=False)
    assert sorted(row[2] for row in query.run_batch([1, 2])) == [2, 2]


def test_a_home_that_was_killed_has_a_successor_that_reads_the_log(executor: Executor, notes: Path) -> None:
    query = counting(notes)
    query.run_batch([1, 2])
    before = executor.homes
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    out = query.run_batch([1, 2])
    assert sorted(row[1:3] for row in out) == [(1, 2), (1, 2)] and not {row[3] for row in out} & before


@pytest.mark.long("it waits for a home that does not answer; others are killed")
def test_a_home_that_hangs_is_replaced(executor: Executor, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox._runtime.spark.homes.relay._DOOR_SECONDS", 1.0)
    query = counting(notes, parallelism=1)
    query.run_batch([1])
    (before,) = executor.homes
    os.kill(before, signal.SIGSTOP)
    assert [row[1:3] for row in query.run_batch([1])] == [(1, 2)]
    wait_until(lambda: before not in executor.processes)


def test_a_home_that_closes_new_connections_is_replaced(
    executor: Executor, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = counting(notes, parallelism=1)
    addresses: list[str] = []
    ends: list[socket.socket] = []

    def closed(address: str, timeout: float) -> socket.socket:
        addresses.append(address)
        if address != addresses[0] or len(addresses) == 1:
            return sockets.connect(address, timeout)
        ours, homes = socket.socketpair()
        homes.shutdown(socket.SHUT_WR)
        ends.append(homes)
        return ours

    monkeypatch.setattr(relay, "connect", closed)
    query.run_batch([1])
    relay._idle.clear()  # another worker has its turn, while the idle home ends
    assert [row[1:3] for row in query.run_batch([1])] == [(1, 2)]
    assert len(set(addresses)) == 2
    ends[0].close()


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_starter_that_fails_has_a_successor_that_adopts_its_homes(
    executor: Executor, notes: Path, fault: signal.Signals
) -> None:
    query = counting(notes)
    query.run_batch([1, 2])
    before, starter = executor.homes, executor.starter
    os.kill(starter, fault)
    assert sorted(row[1:3] for row in query.run_batch([1, 2])) == [(2, 2), (2, 2)], "homes live on"
    executor.keeper.ask("over", runs=[])
    assert executor.starter != starter and executor.homes == before
    assert executor.keeper.ask("end", run="run", secrets=[], within=30.0) == {"ended": 2}
    assert sorted(noted(notes, "close")) == sorted(before)


def counts(query: Query) -> list[tuple[int, int, int]]:
    reports = [report for report in query.reports if report.level]
    return [(report.home_cold_starts, report.home_restarts, report.home_adoptions) for report in reports]


def test_reports_tell_what_happened_to_homes(executor: Executor, notes: Path) -> None:
    query = counting(notes, parallelism=1)
    query.run_batch([1])
    assert counts(query) == [(1, 0, 0)]
    query.run_batch([1])
    assert counts(query) == [(0, 0, 0)]
    os.kill(executor.homes.pop(), signal.SIGKILL)
    query.run_batch([1])
    assert counts(query) == [(0, 1, 0)]
    os.kill(executor.starter, signal.SIGKILL)
    relay._idle.clear()  # another worker has its turn
    query.run_batch([1])
    assert counts(query) == [(0, 0, 1)]
    query.run_batch([1])
    assert counts(query) == [(0, 0, 0)]


def test_a_report_says_why_a_task_has_no_home(executor: Executor, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NoHomesError("no process can be started here")

    monkeypatch.setattr(executor.keeper, "ask", refuse)
    query = counting(notes, parallelism=1)
    assert [row[1:3] for row in query.run_batch([1])] == [(1, 1)]
    assert [report.fallback for report in query.reports] == [None, "no process can be started here"]


def test_rows_are_not_lost_where_a_home_was_lost_and_no_other_can_be_had(
    executor: Executor, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NoHomesError("no process can be started here")

    query = counting(notes, parallelism=1)
    query.run_batch([1])
    os.kill(executor.homes.pop(), signal.SIGKILL)
    with monkeypatch.context() as patch:
        patch.setattr(executor.keeper, "ask", refuse)
        with pytest.raises(
            OperatorError, match="was lost, and no other home process responded: no process can be started here"
        ):
            query.run_batch([1])
    assert [row[2] for row in query.run_batch([1])] == [2]


def test_an_executors_end_is_that_of_its_processes(executor: Executor, notes: Path) -> None:
    counting(notes).run_batch([1, 2])
    executor.end()
    wait_until(lambda: not executor.processes, 10.0)
    assert sorted(noted(notes, "close")) == sorted(noted(notes, "open"))


def test_a_runs_end_closes_its_functions(executor: Executor, notes: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch()
    counting(notes).run_batch([1, 2])
    env_of_other = counting(other, run="another run")
    env_of_other.settings["sql.streaming.queryId"] = "another query"
    env_of_other.run_batch([1, 2])
    assert len(executor.homes) == 4
    assert executor.keeper.ask("end", run="run", secrets=[], within=30.0) == {"ended": 2}
    assert sorted(noted(notes, "close")) == sorted(noted(notes, "open")) and not noted(other, "close")
    assert len(executor.homes) == 2


def test_a_newer_run_of_a_query_ends_the_homes_of_the_older_one(executor: Executor, notes: Path) -> None:
    query = counting(notes)
    query.run_batch([1, 2])
    before = executor.homes
    query.settings["spark.jobGroup.id"] = "next run"
    assert sorted(row[1:3] for row in query.run_batch([1, 2])) == [(1, 2), (1, 2)]
    wait_until(lambda: not executor.homes & before)


def test_a_home_that_is_idle_ends(executor: Executor, notes: Path) -> None:
    query = counting(notes, settings={IDLE: "300 ms"})
    query.run_batch([1, 2])
    wait_until(lambda: not executor.homes)
    assert noted(notes, "close") and sorted(noted(notes, "close")) == sorted(noted(notes, "open"))
    assert sorted(row[2] for row in query.run_batch([1, 2])) == [2, 2]


def test_state_partitions_share_homes_where_there_may_be_no_more(executor: Executor, notes: Path) -> None:
    query = counting(notes, parallelism=4, settings={MOST: "2"})
    for epoch in range(1, 4):
        out = query.run_batch([*range(20)])
        assert sorted(row[:3] for row in out) == [(key, epoch, epoch) for key in range(20)]
    assert len(executor.homes) == 2 and len(noted(notes, "open")) == 4


def buffers_of(query: Query, values: list[int]) -> list[tuple[Any, ...]]:
    sent: list[list[tuple[Any, ...]]] = []

    def take(level: int, handle: Handle, buffers: list[tuple[Any, ...]], now: int) -> list[tuple[Any, ...]]:
        sent.append(buffers)
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query, "_run_level", take)
        query.run_batch(values, commit=False)
    return sent[0]


class Attempts:
    def __init__(self, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
        self.query = query
        self._monkeypatch = monkeypatch

    def begin(self, number: int, frames: Iterator[list[tuple[Any, ...]]]) -> tuple[Handle, Iterator[Any]]:
        context = context_of_task(0, number, {"streaming.sql.batchId": "7", **self.query.settings})
        self._monkeypatch.setattr(TaskContext, "_taskContext", context)
        handle = copy.deepcopy(self.query.handles[0])
        processor = Processor(self.query.host(1))
        processor.init(handle)
        frame_of = lambda rows: pd.DataFrame(rows, columns=[*BUFFER_COLUMNS]).assign(**{BATCH_TIMESTAMP: 0})  # noqa: E731
        (handle.key,) = handle.state
        return handle, processor.handleInputRows((handle.key,), map(frame_of, frames), Times(0))

    def run(self, number: int, values: list[int]) -> list[Any]:
        handle, out = self.begin(number, iter([buffers_of(self.query, values)]))
        rows = rows_of([pa.RecordBatch.from_pandas(frame) for frame in out])
        self.query.handles[0] = handle
        buffers = [Buffer(row[0], row[1], row[2], row[5]) for row in rows if row[0] is not None]
        return [value for buffer in buffers for value in decode(buffer.payload).values]  # type: ignore[union-attr]


def test_an_older_attempt_that_sends_late_changes_nothing(
    executor: Executor, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_AHEAD_BYTES", 0)  # it begins before it has all its input
    query = counting(notes, parallelism=1)
    query.run_batch([1])
    attempts = Attempts(query, monkeypatch)
    newer: list[Any] = []

    def frames() -> Iterator[list[tuple[Any, ...]]]:
        first, *rest = buffers_of(query, [1])
        yield [first]
        newer.extend(attempts.run(1001, [1]))  # which is committed before the older one continues
        yield rest

    _, older = attempts.begin(1000, frames())
    with pytest.raises(OperatorError, match="ended during an epoch, or has moved on to a newer attempt"):
        list(older)
    assert [row[2] for row in newer] == [2]
    assert [row[2] for row in attempts.run(1002, [1])] == [3]


def test_an_older_attempt_that_comes_late_is_not_let_in(
    executor: Executor, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = counting(notes, parallelism=1)
    query.run_batch([1])
    attempts = Attempts(query, monkeypatch)
    assert [row[2] for row in attempts.run(1001, [1])] == [2]
    _, older = attempts.begin(1000, iter([buffers_of(query, [1])]))
    with pytest.raises(OperatorError, match="newer attempt"):
        list(older)
    assert [row[2] for row in attempts.run(1002, [1])] == [3]
