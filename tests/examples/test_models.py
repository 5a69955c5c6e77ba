from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from examples.shipped.fraud import model as fraud
from examples.shipped.support_chats import model as support_chats

MODULES = {"fraud": fraud, "support_chats": support_chats}


@contextmanager
def served(name: str) -> Iterator[fraud.ModelServer | support_chats.ModelServer]:
    with fraud.serve(0) if name == "fraud" else support_chats.serve(0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def status(server: fraud.ModelServer | support_chats.ModelServer) -> int:
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        if isinstance(server, fraud.ModelServer):
            with urlopen(f"{address}/score?card=c001&amount=1200", timeout=60) as answer:
                return int(answer.status)
        with urlopen(f"{address}/summarize", b"Where is my order?", timeout=60) as answer:
            return int(answer.status)
    except HTTPError as error:
        assert error.headers["Retry-After"] == "1"
        return error.code


class Guarded(deque[float]):
    """Times of recent requests. Access without the lock raises."""

    def __init__(self, most: int, lock: threading.Lock) -> None:
        super().__init__(maxlen=most)
        self._lock = lock

    def __len__(self) -> int:
        assert self._lock.locked()
        return super().__len__()

    def append(self, at: float) -> None:
        assert self._lock.locked()
        super().append(at)


@pytest.mark.parametrize("name", MODULES)
def test_a_model_answers_as_many_requests_a_second_as_it_says(name: str, monkeypatch: pytest.MonkeyPatch):
    now, limit = [100.0], MODULES[name].LIMIT
    monkeypatch.setattr(MODULES[name], "time", SimpleNamespace(monotonic=lambda: now[0]))
    with served(name) as server:
        server.limit.recent = Guarded(limit, server.limit.lock)
        assert [server.limit.admits() for _ in range(limit - 1)] == [True] * (limit - 1)
        assert status(server) == 200
        assert status(server) == 429
        now[0] += 1
        assert status(server) == 200


def test_each_server_of_a_model_has_its_own_limit_and_counts():
    with served("support_chats") as server:
        assert status(server) == 200
        assert isinstance(server, support_chats.ModelServer) and server.answers == {200: 1}
    with support_chats.serve(0) as other:
        assert other.answers == {} and not other.limit.recent
