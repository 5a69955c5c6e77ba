"""The sockets between Spark and its Python workers."""

from __future__ import annotations

import os
import socket

import pytest

from pillarbox._runtime.spark.worker_sockets import acknowledge_at_once


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux has it")
def test_what_has_come_through_tcp_is_acknowledged_at_once():
    one, other = socket.socketpair()
    listens = socket.create_server(("127.0.0.1", 0))
    java = socket.create_connection(listens.getsockname())
    worker, _ = listens.accept()
    with one, other, listens, java, worker:
        worker.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        assert worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 0
        before = open_files()
        acknowledge_at_once()
        # It goes through all files of the process in every task, and leaves none open.
        assert open_files() <= before
        assert worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
        java.sendall(b"task")
        one.sendall(b"other")
        assert (worker.recv(4), other.recv(5)) == (b"task", b"other")
