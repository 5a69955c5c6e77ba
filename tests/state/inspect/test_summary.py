from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import MapStateDescriptor, ValueStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.inspect.summary import LogSummary
from pillarbox._state.inspect.view import LogView
from pillarbox._state.log.state_log import StateLog
from pillarbox._time.internal_timer_service import InternalTimerService
from pillarbox._time.manual_clock import ManualProcessingTimeService
from tests.data import make_checkpoint as golden


@pytest.mark.parametrize("name", ["checkpoint-format-2", "checkpoint-format-2-elements"])
def test_the_summary_of_a_golden_checkpoint(name):
    total = LogSummary()
    stores = golden.load(golden.HERE / f"{name}.zip").values()
    for store in stores:
        view = LogView(store, 7)
        total.add(LogSummary.of(view, 3), 3)
        assert LogSummary(**LogSummary.of(view, 3).as_data()) == LogSummary.of(view, 3)
    model = golden.Model()
    for records in golden.epochs():
        for record in records:
            model.apply(record)
    empty: dict[str, Any] = {"value": None, "list": [], "map": {}, "numbers": [], "more": None}
    keys = {key for key, state in model.states.items() if state != empty} | {key for key, _, _ in model.timers}
    assert total.keys == len(keys) and total.namespaces == 0
    assert total.timers == Counter(domain for _, domain, _ in model.timers)
    assert total.next_timers == {
        domain: min(at for _, of, at in model.timers if of == domain) for domain in ("event", "processing")
    }
    assert total.carried == {"ask": len(model.slow)}
    assert total.watermark == 1_000 * (golden.EPOCHS - 1) + 900 - 1
    assert 0.3 < total.state_bytes / sum(len(chunk) for store in stores for chunk in store.chunks.values()) < 1
    assert len(total.largest) == 3


def test_the_largest_keys_and_those_of_namespaces():
    store = MemoryChunkStore()
    backend = KeyedStateBackend("op")
    own = backend.get_state(ValueStateDescriptor("own"))
    of_window = backend.get_state(ValueStateDescriptor("window"), namespaced=True)
    nobody: Any = None
    timers = InternalTimerService("timers", backend, ManualProcessingTimeService(0), nobody, namespaced=True)
    backend.seal()
    log = StateLog(LogIdentity("op", 0, 1, 128), backend)
    log.sync(store)
    for key in range(50):
        backend.set_current_key(key)
        own.update(bytes(10))
        for start in range(20 if key == 7 else 1):  # much in many small rows
            backend.set_current_namespace((start, start + 10))
            of_window.update(bytes(30))
            timers.register_event_time_timer((start, start + 10), start + 10)
    backend.set_current_key(9)
    own.update(bytes(5_000))
    log.commit(store, {})
    result = LogSummary.of(LogView(store, 7), 2)
    assert (result.keys, result.namespaces, result.timers) == (50, 69, {"event": 69})
    assert result.next_timers == {"event": 10} and result.watermark is None
    (first, most), (second, more) = result.largest
    assert (first, second) == ("9", "7") and 3_500 < most < 6_000 and 600 < more < 2_500
    # 49 values of 10 bytes and one of 5,000, and 69 of 30 bytes. (Of the namespaces' rows, the addresses take a part.)
    assert result.bytes_of.keys() == {"own", "window"}
    assert 4_500 < result.bytes_of["own"] < 7_000 and 1_200 < result.bytes_of["window"] < 3_500
    assert sum(result.bytes_of.values()) < result.state_bytes


def test_keys_of_one_hash_and_the_operators_own_state():
    store = MemoryChunkStore()
    backend = KeyedStateBackend("op")
    value = backend.get_state(ValueStateDescriptor("value"))
    backend.get_operator_state(MapStateDescriptor("rules")).put("a", "x" * 500)
    backend.seal()
    log = StateLog(LogIdentity("op", 0, 1, 128), backend)
    log.sync(store)
    keys: list[Any] = [-1, -2, (-1, "a"), (-2, "a"), None, (0, (-1,)), (0, (-2,))]
    for size, key in enumerate(keys):
        backend.set_current_key(key)
        value.update(bytes(100 * size))
    log.commit(store, {})
    result = LogSummary.of(LogView(store, 7), 20)
    assert (result.keys, result.namespaces) == (len(keys), 0)
    assert sorted(key for key, _ in result.largest) == sorted(map(repr, keys))
    assert 500 < result.own_bytes < 700 and result.state_bytes > 2_100 + result.own_bytes
    by_columns = LogSummary.of(LogView(store, 7), 20, by_columns=True)
    assert (by_columns.keys, by_columns.largest, by_columns.state_bytes) == (0, [], result.state_bytes)
