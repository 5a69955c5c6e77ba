"""A time-to-live that is added later starts, for existing state, at the end of the first epoch with the setting."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox import StateTtlConfig
from pillarbox._state.chunks.store import MemoryChunkStore
from tests.state.heap.test_ttl import KINDS, Task

LAZY = StateTtlConfig(1000, cleanup_in_background=False)
WRITES = {"value": 5, "list": 5, "map": 1, "sum": 5, "mean": 5}
NOTHING: dict[str, Any] = {"value": None, "list": [], "map": [], "sum": None, "mean": None}


@pytest.mark.parametrize("kind", KINDS)
def test_older_state_expires_without_a_cleanup_in_the_background(kind):
    task = Task(MemoryChunkStore(), {})
    task.call(1, kind, "write", WRITES[kind])
    there = task.call(1, kind, "read", 0)
    task.commit()

    task = Task(task.store, {kind: LAZY})
    task.backend.now = 10_000
    task.commit()
    task.backend.now = 10_999
    assert task.call(1, kind, "read", 0) == there
    task.commit()
    task.backend.now = 11_000
    assert task.call(1, kind, "read", 0) == NOTHING[kind]


def test_older_entries_of_a_map_expire_beside_new_ones():
    task = Task(MemoryChunkStore(), {})
    task.call(1, "map", "write", 1)
    task.commit()
    task = Task(task.store, {"map": LAZY})
    task.backend.now = 10_000
    task.call(1, "map", "write", 2)
    task.commit()
    task.backend.now = 11_500
    task.call(1, "map", "write", 3)
    assert task.call(1, "map", "read", 0) == [(3, 3)]
