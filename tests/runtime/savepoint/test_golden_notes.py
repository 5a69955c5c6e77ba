from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pillarbox import CheckpointMismatchError, SlidingEventTimeWindows, TumblingEventTimeWindows
from pillarbox._state.chunks.head import META
from pillarbox._state.types.opaque import AnyNames
from pillarbox._unpickle import loads_allowed
from tests.data import make_noted
from tests.data.make_checkpoint import load
from tests.state.inspect.test_view import restored

LAST = (make_noted.EPOCHS, make_noted.EPOCHS + 1)


def notes(path: Path) -> set[tuple[str, Any, Any]]:
    results = set()
    for (uid, _), store in load(path).items():
        for address, row in restored(store).items():
            if isinstance(address, tuple):
                space = address[1]
                side = space[0] if isinstance(space, tuple) else None
                results |= {(uid, side, _metadata(stream)) for stream in _streams(space, row)}
    return results


def _streams(space: Any, row: dict[str, Any]) -> Iterator[bytes]:
    yield from row.get("state/partials", {}).values()
    if "state/rows" in row and space[0] != "matches":
        yield row["state/rows"]


def _metadata(stream: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((pa.ipc.open_stream(stream).schema.metadata or {}).items())


def heard(path: Path) -> dict[str, list[Any]]:
    results = {}
    for (uid, _), store in load(path).items():
        task = loads_allowed(pickle.loads(store.chunks[META][15:])["task"], AnyNames())
        if "heard" in task.get("event_time", {}):
            results[uid] = task["event_time"]["heard"]
    return results


def test_the_golden_checkpoint_has_them():
    assert {uid: {name[1] for name in names} for uid, names in heard(make_noted.PATH).items()} == {
        "passed": {"tumbling", "sliding", "sessions", "inner", "left"}
    }
    result = notes(make_noted.PATH)
    windows = {uid: dict(metadata)[b"pillarbox.windows"] for uid, side, metadata in result if side is None}
    assert windows.keys() == make_noted.WINDOWS.keys() and len(set(windows.values())) == 3
    assert {(uid, side): dict(metadata) for uid, side, metadata in result if side is not None} == {
        ("inner", "left"): {b"pillarbox.matches": b"not kept"},
        ("inner", "right"): {},
        ("left", "left"): {},
        ("left", "right"): {},
    }


def test_it_goes_on_as_if_nothing_had_been():
    expected, sent = [], []
    with make_noted.job() as undisturbed:
        for number in range(LAST[-1] + 1):
            out = make_noted.run(undisturbed, number)
            if number in LAST:
                expected.append(out)
                sent.append([(report.vertex, report.subtask, report.bytes_out) for report in undisturbed.reports])
    assert all(any(out[name] for out in expected) for name in expected[0])
    with make_noted.job(load(make_noted.PATH)) as golden:
        for number, out, sizes in zip(LAST, expected, sent):
            assert make_noted.run(golden, number) == out
            assert [(report.vertex, report.subtask, report.bytes_out) for report in golden.reports] == sizes


def test_whoever_listens_now_is_told_that_the_stream_is_idle():
    with make_noted.job() as undisturbed:
        expected = [make_noted.run(undisturbed, number) for number in range(LAST[0] + 1)][-1]
    assert expected["counted"]
    with make_noted.job(load(make_noted.PATH), listens=True) as golden:
        assert make_noted.run(golden, LAST[0]) == expected


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("tumbling", TumblingEventTimeWindows.of(500)),
        ("tumbling", SlidingEventTimeWindows.of(500, 250)),
        ("sliding", SlidingEventTimeWindows.of(400, 100)),
        ("sliding", TumblingEventTimeWindows.of(300)),
    ],
)
def test_windows_of_another_size_or_kind_are_refused(name: str, window: Any):
    windows = {**make_noted.WINDOWS, name: window}
    with (
        make_noted.job(load(make_noted.PATH), windows=windows) as golden,
        pytest.raises(CheckpointMismatchError, match=f"'{name}': the checkpoint holds windows of another kind"),
    ):
        make_noted.run(golden, LAST[0])


def test_an_outer_join_of_what_an_inner_one_has_kept_is_refused():
    with (
        make_noted.job(load(make_noted.PATH), kinds={"inner": "left", "left": "left"}) as golden,
        pytest.raises(CheckpointMismatchError, match="'inner': the checkpoint holds left rows of an inner join"),
    ):
        make_noted.run(golden, LAST[0])
