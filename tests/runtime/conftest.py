"""Fixtures that run Spark's tasks without Spark. Tasks stay in this process between epochs, as in a home process."""

from __future__ import annotations

import gc

import pytest

from pillarbox._runtime.spark.tasks import residency


@pytest.fixture(autouse=True)
def _tasks_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency.here, "_stay", True)
    monkeypatch.setattr(residency, "_collect_young_objects_only", lambda: None)  # of this process and its other tests


@pytest.fixture(autouse=True)
def _collections_leave_other_tests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it discards a task, a worker collects garbage, which would examine the objects of all tests."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
