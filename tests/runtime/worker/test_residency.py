from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow("a process for each test")

_WORKER = """
import os, sys, threading, time

from pillarbox import MapFunction, StreamExecutionEnvironment
from pillarbox._graph.transformations import SinkTransformation
from pillarbox._runtime.shipping import ship
from pillarbox._runtime.spark.tasks import residency
from pillarbox._runtime.spark.tasks.task_info import TaskInfo


class Noted(MapFunction):
    def open(self, runtime_context):
        print("open", flush=True)

    def map(self, value):
        {in_map}
        return value

    def close(self):
        print("close", threading.current_thread() is threading.main_thread(), flush=True)
        {in_close}


env = StreamExecutionEnvironment()
stream = env.from_collection([1]).map(Noted())
sink = SinkTransformation(env._next(), "out", [stream._plain_step()], output="out", uid="out")
program = env._compile("test", [sink])
task = residency.here.source_task(ship(program.vertices[0]), TaskInfo(program.layout))
{then}
"""


@pytest.fixture
def run(workers_python: str, tmp_path: Path) -> Any:
    def run(*, in_map: str = "pass", in_close: str = "pass", then: str) -> tuple[int, list[str]]:
        (tmp_path / "noted_worker.py").write_text(_WORKER.format(in_map=in_map, in_close=in_close, then=then))
        done = subprocess.run(
            [workers_python, "-m", "noted_worker"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            timeout=600,
            check=False,
        )
        return done.returncode, done.stdout.splitlines()

    return run


def test_they_are_closed_before_pysparks_daemon_ends_the_worker(run: Any) -> None:
    assert run(then="os._exit(3)") == (3, ["open", "close True"])


def test_they_are_closed_where_a_worker_ends_without_a_daemon(run: Any) -> None:
    assert run(then="sys.exit(3)") == (3, ["open", "close True"])


def test_a_close_that_never_returns_does_not_keep_the_worker(run: Any) -> None:
    then = """
class LastMoment(threading.Timer):
    def run(self):  # when the function is being closed, however long that takes
        print(self.interval, residency.closing.wait(250), flush=True)
        self.function(*self.args)

residency.closing = threading.Event()
residency._CLOSING_SECONDS, threading.Timer = 7.0, LastMoment
os._exit(3)
"""
    assert run(in_close="residency.closing.set(); time.sleep(1000)", then=then) == (
        3,
        ["open", "close True", "7.0 True"],
    )


def test_a_close_that_fails_does_not_keep_the_worker(run: Any) -> None:
    assert run(in_close="raise SystemExit(4)", then="os._exit(3)") == (3, ["open", "close True"])


@pytest.mark.parametrize(
    "then",
    [
        # A process that a function has forked has the worker's residents in its memory, not in its hands.
        "pid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0); os.kill(os.getpid(), 9)",
        "t = threading.Thread(target=os._exit, args=(3,)); t.start(); time.sleep(1000)",
    ],
    ids=["forked", "another thread"],
)
def test_they_are_left_alone(run: Any, then: str) -> None:
    assert run(then=then)[1] == ["open"]


def test_user_code_that_leaves_in_the_middle_of_an_epoch_leaves(run: Any) -> None:
    then = """
from pillarbox._elements.records import Records
list(task.run_epoch([Records([1])], subtask=0, checkpoint_id=0, bounded=False))
"""
    assert run(in_map="os._exit(5)", then=then) == (5, ["open"])


def test_a_querys_residents_are_closed_when_it_has_ended(run: Any) -> None:
    then = "close = residency.here.close_run; print(close('other'), close(''), close('')); os._exit(0)"
    assert run(then=then) == (0, ["open", "close True", "0 1 0"])
