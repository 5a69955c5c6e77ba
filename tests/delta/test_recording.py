"""Recordings of a query that reads a Delta table. They read the same version of the table again."""

from __future__ import annotations

import os

import pytest

from tests.delta.shop import Shop
from tests.support.recorded import replay_epochs

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif("PILLARBOX_DELTA" not in os.environ, reason="takes Delta Lake: make test-delta runs it"),
]


def test_epochs_are_replayed(shop: Shop) -> None:
    for _ in range(3):
        shop.pay("payments")
    shop.run("first", shop.environment(2), {"payments": shop.read("payments", maxFilesPerTrigger=1)})
    before = shop.found()
    again = shop.writer("first", shop.environment(2), {"payments": shop.read("payments", maxFilesPerTrigger=1)})
    tasks = [("total", 0), ("total", 1)]
    assert replay_epochs(again, str(shop.folder / "first"), tasks, shop.folder) >= 4
    assert shop.found() == before
