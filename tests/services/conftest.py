from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.enrichment.service import running_service
from examples.service_process import RunningService
from tests.services.redis_server import MISSING, find_redis, running_redis


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as service:
        yield service


@pytest.fixture(scope="session")
def _redis_program() -> str:
    program = find_redis()
    if program is None:
        pytest.skip(MISSING)
    return program


@pytest.fixture
def redis_url(_redis_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(_redis_program, tmp_path_factory.mktemp("redis")) as url:
        yield url
