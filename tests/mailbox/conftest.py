"""Threads for tests of the mailbox, which are joined after the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

#: Seconds. Long enough for a crowded machine; only a test that fails waits for it.
PATIENCE = 60.0


class Threads:
    patience = PATIENCE

    def __init__(self) -> None:
        self._other = ThreadPoolExecutor(1, thread_name_prefix="other")
        self._started: list[tuple[threading.Thread, Future[Any]]] = []

    def call(self, function: Callable[..., T], *args: object) -> T:
        return self._other.submit(function, *args).result(PATIENCE)

    def start(self, function: Callable[..., T], *args: object) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=run, daemon=True)
        self._started.append((thread, future))
        thread.start()
        return future

    @staticmethod
    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(0.001)

    def close(self) -> None:
        self._other.shutdown()
        for thread, _ in self._started:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a test left a thread behind"


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads()
    yield threads
    threads.close()
