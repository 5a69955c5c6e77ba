"""Tests with a real browser and a real Prometheus (``make test-see``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.see.browser import browser


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started
