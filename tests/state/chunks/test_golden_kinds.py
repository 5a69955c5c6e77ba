"""Every record kind of the format is in a golden checkpoint, and can be read."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from pillarbox import CheckpointMismatchError
from pillarbox._state.chunks.chunk import _KNOWN
from pillarbox._state.chunks.head import FORMAT, META, LogHead
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.types.opaque import AnyNames
from pillarbox._time.clock_log import ClockLog
from pillarbox._types.scalars import SCALARS
from pillarbox._unpickle import loads, loads_allowed
from tests.data import make_clock, make_kinds, make_own
from tests.data.make_checkpoint import HERE, load

GOLDEN = [path for path in sorted(HERE.glob(f"*-format-{FORMAT}*.zip")) if not path.name.startswith("savepoint-")]


def logs() -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    names = AnyNames()
    for path in GOLDEN:
        for store in load(path).values():
            head = pickle.loads(store.chunks[META][15:])
            yield head, [loads_allowed(payload, names) for number, payload in store.chunks.items() if number > META]


@pytest.fixture(scope="module")
def _logs():
    return list(logs())


def test_each_field_of_heads_and_chunks_is_in_one(_logs):
    assert {name for head, _ in _logs for name in head} == {field_.name for field_ in fields(LogHead)}
    assert {name for _, chunks in _logs for chunk in chunks for name in chunk} == _KNOWN
    assert {head.get("codes") for head, _ in _logs} == {None, 2}


def test_each_kind_of_slot_is_in_one(_logs):
    both = [head.get(which, ()) for head, _ in _logs for which in ("layouts", "space_layouts")]
    slots = [slot for layouts in both for _, layout in layouts for slot in layout]
    kinds = {kind for _, kind in slots}
    assert kinds == {"value", "list", "map", "reducing", "aggregating", "timers"}
    leads = {name.partition("/")[0] for name, kind in slots if kind != "timers"}
    assert leads == {"state", "late", "ttl", "list", "union"}
    lates = [any(name.startswith("late/") for _, layout in head["layouts"] for name, _ in layout) for head, _ in _logs]
    assert True in lates


def test_large_rows_and_elements_of_keys_and_of_namespaces_are_in_one(_logs):
    results: set[Any] = set()
    for _, chunks in _logs:
        for chunk in chunks:
            keys, rows = len(chunk["keys"]), len(chunk["keys"]) + len(chunk.get("spaces", [()])[0])
            results |= {"key" if n < keys else "namespace" if n < rows else "element" for n in chunk.get("large", ())}
            for address, _, (_, width, _), names, _ in chunk.get("elements", ()):
                results.add((len(address), "list" if names is None else "map"))
                results.add(("width", width))
    assert results >= {"key", "namespace", "element", (1, "list"), (1, "map"), (2, "list"), (2, "map")}
    assert results >= {("width", 0), ("width", 1)}
    assert {chunk["replaced"][0] for _, chunks in _logs for chunk in chunks if "replaced" in chunk} >= {1, 2}


def test_each_kind_of_the_tasks_own_state_is_in_one(_logs):
    tasks = [loads_allowed(head["task"], AnyNames()) for head, _ in _logs if head["task"]]
    assert {name for task in tasks for name in task} == {"gate", "operators", "event_time"}
    requests = [request for task in tasks for of in (task.get("operators") or {}).values() for request in of]
    assert {request[0] for request in requests} == {"request", "watermark", "idle"}
    assert {request[1] for request in requests if request[0] == "idle"} >= {True}
    times = [task["event_time"] for task in tasks if "event_time" in task]
    states = [state for time in times for state in time["operators"].values()]
    assert {name for state in states for name in state} == {"watermark", "idle", "quiet_since", "silent"}
    assert {state.get("silent") for state in states} == {None, True, False}
    assert any(time["meetings"] for time in times)
    assert {name for time in times for name in time} == {"operators", "meetings", "heard"}


def test_each_plain_type_is_in_one(_logs):
    text = " ".join(kind for head, _ in _logs for kind in head.get("types", {}).values())
    assert {scalar for scalar in SCALARS if scalar not in text} == set()
    assert all(f"{kind}(" in text for kind in ("LIST", "MAP", "ROW", "TUPLE"))
    assert "?" in text


# -- they are read --


def test_what_a_clock_showed_is_read_and_the_program_resumes():
    with make_clock.job() as undisturbed:
        make_clock.CLOCK.set_current_time(make_clock.NOW)
        for _ in range(2):
            expected = make_clock.run(undisturbed)
    savepoint = load(make_clock.PATH)
    (store,) = [store for store in savepoint.values() if META in store.chunks]
    log = ClockLog.of_bytes(pickle.loads(store.chunks[META][15:])["clock"])
    assert [time for _, _, time in log.readings][:2] == [make_clock.NOW, make_clock.NOW + 1_000]
    assert log.firings[0] == (10, make_clock.NOW + 3_500)
    with make_clock.job(savepoint) as golden:
        make_clock.CLOCK.set_current_time(make_clock.NOW + 1_000 * len(make_clock.KEYS))
        assert make_clock.run(golden) == expected


def test_operators_own_state_and_event_time_go_on():
    asked: list[str] = []
    with make_own.job(0) as undisturbed:
        for epoch in range(make_own.EPOCHS + 1):
            expected = make_own.run(undisturbed, epoch)
            asked += expected["asked"]
    assert all(expected.values())
    savepoint = load(make_own.PATH)
    tasks = [loads_allowed(pickle.loads(store.chunks[META][15:])["task"], AnyNames()) for store in savepoint.values()]
    carried = sum(call[0] == "request" for task in tasks for call in task["operators"].get("asked", ()))
    with make_own.job(make_own.EPOCHS, savepoint) as golden:
        result = make_own.run(golden, make_own.EPOCHS)
    # Timing determines which requests are carried.
    assert carried > 5 and len(result["asked"]) == carried + 5 and set(result["asked"]) <= set(asked)
    assert {**result, "asked": []} == {**expected, "asked": []}


@pytest.fixture
def _kinds():
    return load(make_kinds.PATH)


def test_states_that_were_renamed_and_deleted_stay_so(_kinds):
    store = _kinds["renamed", 1]
    assert pickle.loads(store.chunks[META][15:])["former"] == {"state/sum": "state/total", "state/gone": ""}
    task = make_kinds.Renamed(store, changed=True)
    assert list(task.late(7)) == ["late"]
    for key in range(make_kinds.KEYS):
        task.backend.set_current_key(key)
        assert task.total.value() == (-1 if key in (0, make_kinds.KEYS - 1) else key)
    with pytest.raises(CheckpointMismatchError, match=r"'total' of operator 'renamed', .*renamed_from\('total'\)"):
        make_kinds.Renamed(store, changed=False)


def test_all_plain_types_are_read(_kinds):
    store: MemoryChunkStore = _kinds["scalars", 0]
    task = make_kinds.Scalars(store)
    assert task.log.reason_for_pickles is None
    for key in range(10):
        result = task.backend.contents(key)
        assert result == make_kinds.scalars(key)
        assert {name: type(value) for name, value in result.items()} == {
            name: type(value) for name, value in make_kinds.scalars(key).items()
        }
    assert loads(store.chunks[1])["epoch"] == 1
