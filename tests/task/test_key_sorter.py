"""The external merge sort of batch mode: each key once, its records by time; in memory, spilled, with equal hashes."""

from __future__ import annotations

import datetime
from collections import defaultdict
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import OperatorError
from pillarbox._elements import Records
from pillarbox._task.network import key_sorter
from pillarbox._task.network.key_sorter import KeySorter
from pillarbox.testing import row

KEYS = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.sampled_from([1.0, True, "a", "b", "", b"a", (1, "a"), (1.0, "a"), datetime.date(2024, 5, 1)]),
)
RECORD = st.tuples(KEYS, st.none() | st.integers(-5, 5))
RUNS = st.lists(st.tuples(st.integers(0, 1), st.lists(RECORD, min_size=1, max_size=8)), max_size=30)


def sort(runs: list[tuple[int, list[tuple[Any, int | None]]]], size: int = 100) -> list[list[tuple[int, Any]]]:
    """What comes out for each key: input and record, where a record is its key, its time, and its number."""
    sorter = KeySorter("bill")
    number = 0
    for way_in, records in runs:
        values = [(key, time, number + position) for position, (key, time) in enumerate(records)]
        number += len(values)
        times = [time for _, time in records]
        untimed = all(time is None for time in times)
        sorter.add(way_in, Records(values, None if untimed else times), [key for key, _ in records], size)
    groups: list[list[tuple[int, Any]]] = [[]]
    for step in sorter.groups():
        for way_in, found in step:
            if found is None:
                groups.append([])
                continue
            times = [None] * len(found) if found.timestamps is None else list(found.timestamps)
            assert times == [time for _, time, _ in found.values]
            groups[-1] += [(way_in, value) for value in found.values]
    assert groups.pop() == []
    return groups


def check(runs: list[tuple[int, list[tuple[Any, int | None]]]]) -> None:
    expected: dict[Any, list[tuple[int, Any]]] = defaultdict(list)
    number = 0
    for way_in, records in runs:
        for key, time in records:
            expected[key].append((way_in, (key, time, number)))
            number += 1
    groups = sort(runs)
    assert len(groups) == len(expected)
    for group in groups:
        assert len({key for _, (key, _, _) in group}) == 1
        wanted = expected[group[0][1][0]]
        assert sorted(number for _, (_, _, number) in group) == [number for _, (_, _, number) in wanted]
        times = [-9 if time is None else time for _, (_, time, _) in group]
        assert times == sorted(times)
        # Of one input and time they stay in their order.
        for _, same in groupby(group, lambda each: (each[1][1], each[0])):
            numbers = [number for _, (_, _, number) in same]
            assert numbers == sorted(numbers)


@given(RUNS)
def test_in_memory(runs):
    check(runs)


@pytest.fixture(scope="module")
def small():
    """Bounds so small that everything is spilled, in many runs of many blocks, which are merged in several rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_sorter, "_OBJECT_BYTES", 0)
        patch.setattr(key_sorter, "_PORTION_BYTES", 250)
        patch.setattr(key_sorter, "_BLOCK_BYTES", 60)
        patch.setattr(key_sorter, "_FAN_IN", 2)
        patch.setattr(key_sorter, "_STEP_RECORDS", 3)
        patch.setattr(key_sorter, "_REMEMBERED", 2)
        yield


@given(RUNS)
def test_spilled(small, runs):
    check(runs)


@given(RUNS, st.integers(1, 3))
def test_keys_that_share_a_hash(small, runs, hashes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_sorter, "stable_hash", lambda key: hash(key) % hashes)
        check(runs)


def test_what_is_in_memory_is_bounded(monkeypatch):
    """Most of 50 portions are in the file: of each run, one block at a time is read."""
    monkeypatch.setattr(key_sorter, "_OBJECT_BYTES", 0)
    monkeypatch.setattr(key_sorter, "_PORTION_BYTES", 4_000)
    monkeypatch.setattr(key_sorter, "_BLOCK_BYTES", 400)
    most = 0
    together = key_sorter._together

    def watched(parts):
        nonlocal most
        most = max(most, sum(len(part.keys) for part in parts))
        return together(parts)

    monkeypatch.setattr(key_sorter, "_together", watched)
    sorter = KeySorter("bill")
    for start in range(0, 5_000, 10):
        values = list(range(start, start + 10))
        sorter.add(0, Records([row(key=value % 477, at=value) for value in values]), [v % 477 for v in values], 400)
        assert sum(len(gathered.keys) for gathered in sorter._gathered.values()) <= 100
    file = sorter._spool._file
    assert file is not None
    found = [records.values for step in sorter.groups() for _, records in step if records is not None]
    assert sorted(value.at for values in found for value in values) == list(range(5_000))
    assert most <= 64 * 10
    assert file.closed


def test_closed_before_it_was_read(monkeypatch):
    monkeypatch.setattr(key_sorter, "_PORTION_BYTES", 10)
    sorter = KeySorter("bill")
    sorter.add(0, Records([1, 2]), [1, 2], 20)
    file = sorter._spool._file
    assert file is not None
    sorter.close()
    assert file.closed


class Unwritable:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Unwritable({self.name!r})"

    def __reduce__(self) -> Any:
        raise TypeError("it is a connection")


@pytest.mark.parametrize("guilty", ["record", "key"])
def test_what_cannot_be_written_is_named(monkeypatch, guilty):
    monkeypatch.setattr(key_sorter, "_PORTION_BYTES", 10_000)
    sorter = KeySorter("bill")
    values: list[Any] = [Unwritable("v") if guilty == "record" and n == 2 else n for n in range(4)]
    keys: list[Any] = [Unwritable("k") if guilty == "key" and n == 3 else n for n in range(4)]
    monkeypatch.setattr(key_sorter, "stable_hash", lambda key: 7)
    sorter.add(0, Records([1, 2]), [1, 2], 0)
    words = {
        "record": r"operator 'bill' gets the record Unwritable\('v'\), which cannot be pickled",
        "key": r"operator 'bill' gets the record 3 with the key Unwritable\('k'\), which cannot be pickled",
    }
    with pytest.raises(OperatorError, match=words[guilty] + r".*batch mode.*TypeError: it is a connection") as caught:
        sorter.add(1, Records(values), keys, 10_000)
    assert isinstance(caught.value.__cause__, TypeError)
    sorter.close()


def test_what_cannot_wait_beside_a_key_of_the_same_hash_is_named(monkeypatch):
    monkeypatch.setattr(key_sorter, "stable_hash", lambda key: 7)
    sorter = KeySorter("bill")
    sorter.add(0, Records(["a", Unwritable("v")]), ["one", "other"], 0)
    words = r"operator 'bill' gets the record Unwritable\('v'\), which cannot be pickled"
    with pytest.raises(OperatorError, match=words):
        list(sorter.groups())
    sorter.close()
