from __future__ import annotations

import os
import socket
import sys
from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient
from pyspark.sql.types import StructType

from pillarbox._runtime.spark.worker import worker_sockets
from pillarbox._runtime.spark.worker.worker_sockets import acknowledge_at_once, wait_without_timeout


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux has it")
def test_thousands_of_connections_are_not_looked_at(monkeypatch):
    looked_at: list[int] = []

    numbers = [str(number) for number in range(20_000, -1, -1)]
    monkeypatch.setattr(worker_sockets, "os", SimpleNamespace(listdir=lambda path: numbers))
    monkeypatch.setattr(worker_sockets, "_set_option", lambda: looked_at.append)
    acknowledge_at_once()
    assert len(looked_at) < 1_000 and {0, 20_000} <= set(looked_at)


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux has it")
def test_it_does_without_proc(monkeypatch):
    asked: list[str] = []

    def listdir(path: str) -> list[str]:
        asked.append(path)
        raise FileNotFoundError(path)

    monkeypatch.setattr(worker_sockets, "os", SimpleNamespace(listdir=listdir))
    acknowledge_at_once()
    assert asked == ["/proc/self/fd"]


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux has it")
@pytest.mark.parametrize("default_timeout", [None, 30.0])
def test_data_through_tcp_is_acknowledged_immediately(default_timeout):
    local, remote = socket.socketpair()
    listens = socket.create_server(("127.0.0.1", 0))
    java = socket.create_connection(listens.getsockname())
    worker, _ = listens.accept()
    with local, remote, listens, java, worker:
        worker.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        assert worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 0
        before = open_files()
        socket.setdefaulttimeout(default_timeout)  # as functions do for their own sockets
        try:
            acknowledge_at_once()
        finally:
            socket.setdefaulttimeout(None)
        # It examines all files of the process in every task, and leaves none open.
        assert open_files() <= before
        assert worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
        assert all(os.get_blocking(sock.fileno()) for sock in (local, java, worker))
        java.sendall(b"task")
        local.sendall(b"other")
        assert (worker.recv(4), remote.recv(5)) == (b"task", b"other")


@pytest.mark.parametrize("missing", ["ctypes", "TCP_QUICKACK"])
def test_it_does_without_what_a_system_lacks(monkeypatch, missing):
    if missing == "ctypes":
        monkeypatch.setitem(sys.modules, "ctypes", None)
    else:
        monkeypatch.delattr(socket, "TCP_QUICKACK", raising=False)
    monkeypatch.setattr(os, "listdir", lambda path: pytest.fail("there is nothing to set"))
    acknowledge_at_once()


def test_a_default_timeout_of_functions_does_not_limit_the_state_store():
    with socket.create_server(("localhost", 0)) as java:
        socket.setdefaulttimeout(30.0)
        try:
            client = StatefulProcessorApiClient(java.getsockname()[1], StructType())
        finally:
            socket.setdefaulttimeout(None)
        with client._client_socket as connection:
            wait_without_timeout(StatefulProcessorHandle(client))
            assert connection.gettimeout() is None
