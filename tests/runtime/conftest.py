"""Spark's tasks without Spark. They stay in this process between epochs, as in a home."""

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
    """After a task is discarded, a worker examines all objects, which would include all tests' objects."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
