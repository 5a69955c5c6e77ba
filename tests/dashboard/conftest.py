from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from pillarbox_tools.dashboard.server import Dashboard, open_dashboard
from tests.dashboard.live import Live, served
from tests.model.made import keyed, progress, source


@pytest.fixture
def live() -> Live:
    query = Live()
    query.model.progressed(
        progress(
            1,
            source(records_in=9, busy_ms=10, operators=[[9, 8]], started=1_699_999_981_100),
            keyed(records_in=8, busy_ms=600, back_pressured_ms=200, operators=[[8, 3], [3, 3]], keys=2,
                  counters={"ask.completed": 4, "ask.failed": 0, "ask.timed_out": 0, "ask.requests": 5,
                            "count.late_records_dropped": 1,
                            "agent.longest_key": 3, "agent.budget.model.spent": 40}, hot_keys={"agent": "'ann'"},
                  started=1_699_999_981_200),
        )
    )  # fmt: skip
    return query


@pytest.fixture(scope="module")
def shared() -> Iterator[httpx.Client]:
    yield from served(Live())


@pytest.fixture
def client(live: Live) -> Iterator[httpx.Client]:
    yield from served(live)


@pytest.fixture
def dashboard(live: Live) -> Iterator[Dashboard]:
    with open_dashboard([live], "127.0.0.1", 0) as opened:
        yield opened
