"""State and timers that are put back: what the log must learn of, and large maps."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from pillarbox import MapStateDescriptor, ValueStateDescriptor
from pillarbox.state import HeapKeyedStateBackend, LogIdentity, MemoryChunkStore, StateLog


class Thing:
    def __init__(self, content: Any) -> None:
        self.content = content


@pytest.mark.parametrize(
    "value", [5, "text", datetime.date(2024, 5, 1), (1, "two"), [1, 2], [[1], [2]], {"a": 1}, {"a": [1]}, {1, 2}]
)
def test_values_are_put_back(value):
    backend = HeapKeyedStateBackend("op")
    state = backend.get_state(ValueStateDescriptor("v"))
    undo = backend.allow_undo()
    backend.set_current_key("k")
    state.update(value)
    before = repr(value)
    undo.begin()
    undo.save("k")
    for change in ("append", "add", "clear"):
        if hasattr(value, change):
            getattr(value, change)(*([] if change == "clear" else [7]))
    state.update("other")
    undo.restore()
    assert repr(state.value()) == before


def test_a_users_own_object_is_put_back():
    backend = HeapKeyedStateBackend("op")
    state = backend.get_state(ValueStateDescriptor("v"))
    undo = backend.allow_undo()
    backend.set_current_key("k")
    state.update(Thing([1]))
    undo.begin()
    undo.save("k")
    state.value().content.append(2)
    undo.restore()
    assert state.value().content == [1]


def test_what_is_put_back_into_an_unchanged_row_is_written():
    """The log has a large map's elements by the object that was there before."""
    backend = HeapKeyedStateBackend("op")
    state = backend.get_state(MapStateDescriptor("m"))
    undo = backend.allow_undo()
    backend.seal()
    identity = LogIdentity("op", 0, 1, 128)
    log, store = StateLog(identity, backend), MemoryChunkStore()
    log.sync(store)
    backend.set_current_key("k")
    state.put_all({number: [f"{number}" * 200] for number in range(300)})
    log.commit(store, {})
    assert backend.dirty == {}
    undo.begin()
    undo.save("k")
    state.get(7).append("in place")
    undo.restore()
    assert state.get(7) == ["7" * 200]
    assert backend.dirty.keys() == {"k"}
    backend.set_current_key("k")
    state.put(8, ["new"])
    log.commit(store, {})
    again = HeapKeyedStateBackend("op")
    restored = again.get_state(MapStateDescriptor("m"))
    again.seal()
    StateLog(identity, again).sync(store)
    again.set_current_key("k")
    assert dict(restored.items()) == dict(state.items())
    assert list(restored.keys()) == list(range(300))
