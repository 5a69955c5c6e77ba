from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pillarbox._runtime.spark.homes import sockets, starter_connection
from pillarbox._runtime.spark.homes.processes import OsProcess, status
from pillarbox._runtime.spark.homes.starter_connection import NoHomesError, StarterConnection
from tests.homes.conftest import Executor, wait_until
from tests.homes.forks import SECRET

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes in /proc"),
]


def has_ended(pid: int) -> bool:
    try:
        return OsProcess.of(pid).has_ended()
    except OSError:
        return True


def talk(name: str, secret: str, *lines: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(30.0)
        asked.connect(sockets._address(name))
        answer = b""
        asked.sendall(secret.encode() + b"\n")
        try:
            for line in lines:
                asked.sendall(line)
                answer = asked.recv(1 << 16)
        except OSError:
            return b""
        return answer


@pytest.mark.parametrize(
    "line",
    [
        b"{\n",
        b"[]\n",
        b"7\n",
        b'{"request": "nothing"}\n',
        b'{"request": "end", "run": "x"}\n',
        b'{"request": "home", "place": 7}\n',
        b'{"request": "holds", "run": "x", "pid": null}\n',
        b"\xff\xfe\n",
    ],
)
def test_a_request_that_is_not_understood_is_answered_and_harms_nobody(executor: Executor, line: bytes) -> None:
    home = executor.home()
    name = sockets.starter_name(executor.process.pid, executor.process.pid)
    assert b"does not understand" in talk(name, SECRET, line)
    assert executor.home() == {**home, "origin": "known"}


def test_only_who_knows_the_secret_is_given_homes(executor: Executor) -> None:
    executor.home()
    name = sockets.starter_name(executor.process.pid, executor.process.pid)
    request = {"place": "mine", "run": "r", "query": "", "epoch": 0, "secret": "mine", "mode": "fork"}
    line = json.dumps({"request": "home", "most": 9, "idle": 60.0, "without": 0, **request}).encode()
    assert b"the secret of this executor's workers is wrong" in talk(name, "a guess", line + b"\n")
    assert len(executor.homes) == 1


class Runs:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("secret, plan", [("a guess", "s"), (SECRET, "a guess")])
def test_a_home_unpickles_nothing_of_those_who_do_not_know_both_secrets(
    executor: Executor, tmp_path: Path, secret: str, plan: str
) -> None:
    home = executor.home()["home"]
    hello = json.dumps({"place": "a", "secret": plan}).encode()
    bad = pickle.dumps(Runs(f"touch {tmp_path}/taken"))
    frames = b"".join(len(frame).to_bytes(8, "big") + frame for frame in (hello, bad))
    assert talk(home, secret, frames) == b""  # it hangs up
    assert not (tmp_path / "taken").exists()


def test_requests_of_an_executor_that_was_killed_make_no_homes(executor: Executor) -> None:
    executor.home()
    starter = executor.starter
    os.kill(starter, signal.SIGSTOP)
    name = sockets.starter_name(executor.process.pid, executor.process.pid)
    connected = [sockets.connect(name, 30.0) for _ in range(4)]
    for number, asked in enumerate(connected):
        request = {"place": str(number), "run": "run", "query": "query", "epoch": 0, "secret": "s", "mode": "fork"}
        asked.sendall(json.dumps({"request": "home", "most": 9, "idle": 60.0, "without": 0, **request}).encode())
    executor.end()
    for asked in connected:
        asked.sendall(b"\n")
    os.kill(starter, signal.SIGCONT)
    wait_until(lambda: not executor.processes)
    for asked in connected:
        asked.close()
    assert not [name_ for name_ in os.listdir(Path(sockets._address("")).parent) if name_.startswith(name)]


def test_a_starter_whose_socket_has_vanished_is_replaced(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter_connection, "_BEGIN_SECONDS", 0.0)
    home = executor.home()
    os.unlink(sockets._address(sockets.starter_name(executor.process.pid, executor.process.pid)))
    executor.keeper.disconnect()
    assert executor.home() == {**home, "origin": "adopted"}


def test_workers_that_begin_at_once_have_one_starter(executor: Executor) -> None:
    keepers = [StarterConnection(executor.process.pid, executor.process.pid) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda keeper: keeper.ask("over", runs=[]), keepers))
    assert answers == [{"over": []}] * 4
    started = [process.pid for client in keepers for process in client._started]
    assert len(started) == 1
    os.kill(started[0], signal.SIGTERM)
    wait_until(lambda: has_ended(started[0]))
    for client in keepers:
        client.disconnect()


def test_a_starter_that_ends_takes_its_homes_along_and_has_a_successor(executor: Executor) -> None:
    home, starter = executor.home(), executor.starter
    os.kill(starter, signal.SIGTERM)
    wait_until(lambda: has_ended(starter) and has_ended(home["pid"]))
    again = executor.home()
    assert again["origin"] == "new" and executor.starter != starter


def test_a_home_that_hangs_is_not_adopted(executor: Executor) -> None:
    hangs, lives = executor.home("hangs")["pid"], executor.home("lives")["pid"]
    os.kill(executor.starter, signal.SIGKILL)
    wait_until(lambda: has_ended(executor.starter))  # the kernel continues stopped children
    os.kill(hangs, signal.SIGSTOP)
    assert executor.home("lives") | {"home": ""} == {"home": "", "pid": lives, "origin": "adopted"}
    wait_until(lambda: has_ended(hangs))
    assert executor.home("hangs")["origin"] == "new"


def test_a_home_that_was_stopped_when_its_starter_was_killed_lives_on(executor: Executor) -> None:
    stopped, other = executor.home("stopped")["pid"], executor.home("other")["pid"]
    os.kill(stopped, signal.SIGSTOP)
    wait_until(lambda: status(stopped)[0] == "T")  # the kernel continues only children that have stopped already
    os.kill(executor.starter, signal.SIGKILL)
    assert [executor.home(name)["pid"] for name in ("stopped", "other")] == [stopped, other]


def test_the_exit_of_a_home_is_reported(executor: Executor) -> None:
    pid = executor.home()["pid"]
    assert executor.keeper.ask("fate", pid=pid) == {"fate": None}
    os.kill(pid, signal.SIGSEGV)
    wait_until(lambda: executor.keeper.ask("fate", pid=pid)["fate"] is not None)
    assert executor.keeper.ask("fate", pid=pid) == {"fate": "signal SIGSEGV"}
    assert executor.home()["origin"] == "restarted"


def test_a_daemons_end_is_that_of_its_homes(executor: Executor) -> None:
    daemon = Executor()
    its_keeper = StarterConnection(executor.process.pid, daemon.process.pid)
    request: dict[str, Any] = {"place": "a", "run": "run", "query": "query", "secret": "s", "epoch": 0, "most": 9}
    pid = its_keeper.ask("home", mode="fork", idle=99.0, **request)["pid"]
    assert pid != executor.home()["pid"], "each daemon's workers have homes of their own"
    assert set(sockets.daemons_of(executor.process.pid)) == {executor.process.pid, daemon.process.pid}
    daemon.end()
    wait_until(lambda: has_ended(pid) and has_ended(its_keeper._started[-1].pid))
    its_keeper.disconnect()


def test_without_a_starter_nobody_is_asked(executor: Executor) -> None:
    with pytest.raises(NoHomesError, match="is left on this executor"):
        executor.keeper.ask("end", starts=False, run="run", secrets=[], within=1.0)


@pytest.mark.long("it imports everything")
def test_secrets_are_no_arguments_of_commands(executor: Executor) -> None:
    pid = executor.home(secret="THE-SECRET", mode="spawn")["pid"]
    assert b"THE-SECRET" not in Path(f"/proc/{pid}/cmdline").read_bytes()
