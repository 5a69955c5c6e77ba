from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from http.client import RemoteDisconnected
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from examples.enrichment.data import aircraft, flights, weather
from examples.enrichment.service import running_service
from examples.service_process import RunningService

pytestmark = pytest.mark.slow("a server in a process of its own")


def status(service: RunningService, path: str) -> int | str:
    try:
        with urlopen(service.url + path, timeout=100) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code
    except RemoteDisconnected:
        return "cut"


def test_it_knows_weather_and_aircraft(service):
    paths = ["/weather/EWR/2013-01-01T10", "/aircraft/N14228", "/square/7"]
    unknown = ["/weather/EWR/2012-01-01T10", "/aircraft/N0"]
    assert [status(service, path) for path in paths + unknown] == [200, 200, 200, 404, 404]
    with urlopen(f"{service.url}/aircraft/N14228") as answer:
        assert answer.read() == b'{"manufacturer": "BOEING", "model": "737-824", "built": 1999, "seats": 149}'
    assert service.stats()["outcomes"] == {"200": 4, "404": 2}


@pytest.mark.long("make demo-enrichment reads them")
def test_the_tables():
    assert len(weather()) == 26_115
    assert len(aircraft()) == 3_322
    assert aircraft()["N14228"] == {"manufacturer": "BOEING", "model": "737-824", "built": 1999, "seats": 149}
    assert flights(1).num_rows == 843
    assert flights(1).num_rows < flights(2).num_rows


def test_its_errors_depend_on_the_seed_alone():
    seen = []
    for seed in (1, 1, 2):
        with running_service(errors=0.3, seed=seed) as service:
            seen.append([status(service, f"/square/{n % 10}") for n in range(25)])
    assert seen[0] == seen[1] != seen[2]
    assert 2 < seen[0].count(500) < 15


def test_it_hangs_and_dies_and_comes_back(service):
    service.control(hangs=1)
    address = urlsplit(service.url)
    with socket.create_connection((address.hostname, address.port), timeout=100) as connection:
        connection.sendall(b"GET /square/2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while service.stats()["outcomes"] != {"hung": 1}:
            time.sleep(0.01)
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)
    service.control(hangs=0, die_after=1, dead_requests=2)
    assert [status(service, "/square/2") for _ in range(4)] == [200, "cut", "cut", 200]
    service.control(dead_seconds=0.5)
    assert status(service, "/square/2") == "cut"
    deadline = time.monotonic() + 100
    while status(service, "/square/2") != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(HTTPError, match="400"):
        service.control(mood=1)


def test_it_answers_twice(service):
    service.control(twice=1)
    address = urlsplit(service.url)
    with socket.create_connection((address.hostname, address.port), timeout=100) as connection:
        connection.sendall(b"GET /square/7 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while received.count(b'{"number": 7, "square": 49}') < 2:
            received += (more := connection.recv(10_000))
            assert more, received
    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert service.stats()["outcomes"] == {"twice": 1, "200": 1}


def test_it_ends_with_its_block():
    with running_service() as service:
        os.kill(service.pid, 0)
    with suppress(ProcessLookupError):
        os.kill(service.pid, 0)
        pytest.fail("the service is still there")
