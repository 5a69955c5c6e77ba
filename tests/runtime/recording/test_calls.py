"""In a replay, user code calls no other machine, even if it catches the error of a refused call. Loopback works."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pillarbox import KeyedProcessFunction, ValueStateDescriptor
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox.testing import ProgramTestHarness
from pillarbox_tools.recording.recording import read_recording
from pillarbox_tools.replay.refused_calls import RefusedCallError, UnansweredCallOperator
from pillarbox_tools.replay.replay import Replay, replay
from tests.support.recorded import recorded


@contextmanager
def service() -> Iterator[tuple[int, list[bytes]]]:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        heard.append(client.recv(100))
                        client.sendall(b"done")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], heard
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def connect(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"charge")
        assert client.recv(10) == b"done"


def send(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"charge", ("127.0.0.1", port))


def send_message(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendmsg([b"charge"], (), 0, ("127.0.0.1", port))


def by_name(port: int) -> None:
    with suppress(OSError):
        socket.create_connection(("no-host.invalid", port))


def run(port: int) -> None:
    subprocess.run([sys.executable, "-c", ""], check=False)


def run_by_shell(port: int) -> None:
    os.system("true")


def in_a_thread(port: int) -> None:
    thread = threading.Thread(target=connect, args=(port,))
    thread.start()
    thread.join()


def with_a_fallback(port: int) -> None:
    try:
        connect(port)
    except BaseException:
        pass


def to_itself(port: int) -> None:
    async def exchange() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            await reader.read()
            writer.close()

    asyncio.run(exchange())
    local, remote = socket.socketpair()
    local.close()
    remote.close()


class Charges(KeyedProcessFunction):
    def __init__(self, call: Any, port: int) -> None:
        self.call = call
        self.port = port

    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen"))

    def process_element(self, key: Any, ctx: Any) -> Any:
        self.call(self.port)
        self.seen.update((self.seen.value() or 0) + 1)
        yield key


def replayed(folder: Path, call: Any, port: int, **options: Any) -> Replay:
    def build(env: Any, records: Any) -> Any:
        return records.key_by(lambda key: key).process(Charges(call, port)).uid("charges")

    folder.mkdir(exist_ok=True)
    with recorded(folder) as tasks, ProgramTestHarness(build) as harness:
        harness.push("records", "a", "b")
        harness.run_epoch()
    (task,) = [task for task in tasks if read_recording(task).facts.level]
    return replay(read_recording(task), diff=True, **options)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (connect, "connect to 127.0.0.1:"),
        (send, "send to 127.0.0.1:"),
        (send_message, "send to 127.0.0.1:"),
        (by_name, "look up the host 'no-host.invalid'"),
        (run, "run a program, "),
        (run_by_shell, "run a program, "),
        (in_a_thread, "connect to 127.0.0.1:"),
        (with_a_fallback, "connect to 127.0.0.1:"),
    ],
)
def test_the_first_call_stops_it(tmp_path: Path, call: Any, says: str) -> None:
    with service() as (port, heard):
        result = replayed(tmp_path, call, port)
    assert says in str(result.unanswered)
    assert str(result.unanswered).startswith("operator 'charges'")
    assert __file__ in str(result.unanswered)
    assert "pass --allow-calls" in str(result.unanswered)
    assert result.uncompared == "it stopped at a service call, so nothing can be compared"
    assert result.failure is None
    assert len(heard) == (2 if call in (connect, in_a_thread, with_a_fallback) else 0)  # the query's calls


def test_calls_that_are_allowed(tmp_path: Path) -> None:
    with service() as (port, heard):
        result = replayed(tmp_path, connect, port, allow_calls=True)
    assert result.is_same
    assert heard == [b"charge"] * 4


def test_a_function_may_talk_to_itself(tmp_path: Path) -> None:
    result = replayed(tmp_path, to_itself, 0)
    assert (result.unanswered, result.is_same) == (None, True)


@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_a_library_in_c_finds_no_network() -> None:
    program = (
        "from pillarbox_tools.cli.replay_process import leave_network\n"
        "left = leave_network()\n"
        "from tests.runtime.recording.test_calls import to_itself\n"
        "to_itself(0)\n"
        "devices = [line.split(':')[0].strip() for line in open('/proc/self/net/dev')][2:]\n"
        "print(devices if left else ['lo'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "['lo']\n", done.stderr


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        (("request", [1], None, None), "1"),
        (("answer", [2], None, ["two"]), "2"),
    ],
)
def test_a_replay_stops_at_work_of_the_epoch_before(entry: tuple[Any, ...], name: str) -> None:
    """A replay replaces asynchronous operators, so it would silently ignore pending requests."""
    operator = UnansweredCallOperator(OperatorContext("ask", "ask", 0, 1, Mock(), Mock()))
    operator.restore_state(None)
    with pytest.raises(RefusedCallError, match=f"'ask' calls a service, .* Pending requests: .*{name}"):
        operator.restore_state([("watermark", 5), entry])
