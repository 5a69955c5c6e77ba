"""Tasks on Spark without Spark: they stay in this process from epoch to epoch, as they do in a home."""

from __future__ import annotations

import pytest

from pillarbox._runtime.spark.tasks import residency


@pytest.fixture(autouse=True)
def _tasks_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency.here, "_stay", True)
