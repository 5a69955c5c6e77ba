"""Batch mode's external merge sort: each key once, with records by time; in memory, spilled, with equal hashes."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pillarbox import OperatorError
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.frame.keying import Keying
from pillarbox._task.network import key_sorter, sorted_records
from pillarbox._task.network.key_sorter import KeySorter
from pillarbox.testing import row

KEYS = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.sampled_from([1.0, True, "a", "b", "", b"a", (1, "a"), (1.0, "a"), datetime.date(2024, 5, 1)]),
)
RECORD = st.tuples(KEYS, st.none() | st.integers(-5, 5))
RUNS = st.lists(st.tuples(st.integers(0, 1), st.lists(RECORD, min_size=1, max_size=8)), max_size=30)
# Runs of rows: of one input some have columns, and whether they have times may differ.
COLUMNS = {
    "whole": st.integers(-3, 3),
    "perhaps": st.none() | st.integers(-2, 2),
    "text": st.sampled_from(["", "a", "b"]),
}
ROWS = st.tuples(*COLUMNS.values(), st.integers(-5, 5))
ROW_RUNS = st.lists(
    st.tuples(st.integers(0, 1), st.booleans(), st.booleans(), st.lists(ROWS, min_size=1, max_size=8)), max_size=20
)

TYPES = {"whole": pa.int64(), "perhaps": pa.int32(), "text": pa.string(), "number": pa.int64()}
ITSELF = Keying(lambda value: value, "bill")
FIRST = Keying(lambda value: value[0], "bill")


def grouped(sorter: KeySorter) -> list[list[tuple[int, Any, int | None, Any]]]:
    groups: list[list[tuple[int, Any, int | None, Any]]] = [[]]
    for run in sorter.runs():
        assert len(run.records) <= key_sorter._RUN_RECORDS
        times = run.records.timestamps or [None] * len(run.records)
        for key, start, end, ended in run.stretches():
            columns = run.records.values[start:end], times[start:end]
            groups[-1] += [(run.input_index, *row, key) for row in zip(*columns)]
            if ended:
                groups.append([])
    assert groups.pop() == [], "the last key ends, too"
    return groups


def check_groups(
    groups: list[list[tuple[int, Any, int | None, Any]]], arrived: list[tuple[Any, int, int | None]]
) -> None:
    numbers: dict[Any, list[int]] = defaultdict(list)
    for number, (key, _, _) in enumerate(arrived):
        numbers[key].append(number)
    assert len(groups) == len(numbers)
    for group in groups:
        results = [value[-1] for _, value, _, _ in group]
        assert sorted(results) == numbers[arrived[results[0]][0]]
        assert [(key, way_in, time) for way_in, _, time, key in group] == [arrived[number] for number in results]
        order = [(-9 if time is None else time, way_in, number) for (way_in, _, time, _), number in zip(group, results)]
        assert [time for time, _, _ in order] == sorted(time for time, _, _ in order)
        # Of one input and time they stay in their order.
        for _, same in groupby(order, lambda position: position[:2]):
            came = [number for _, _, number in same]
            assert came == sorted(came)


def check(runs: list[tuple[int, list[tuple[Any, int | None]]]], size: int = 100) -> None:
    sorter = KeySorter("bill")
    arrived: list[tuple[Any, int, int | None]] = []
    for way_in, records in runs:
        values = [(key, len(arrived) + position) for position, (key, _) in enumerate(records)]
        arrived += [(key, way_in, time) for key, time in records]
        times = [time for _, time in records]
        sorter.add(way_in, Records(values, None if all(time is None for time in times) else times), FIRST, size)
    check_groups(grouped(sorter), arrived)


def check_rows(runs: list[Any], names: tuple[str, ...], size: int = 100) -> None:
    sorter = KeySorter("bill")
    # (The inputs may have the same columns, and be keyed by others.)
    columns = [names, names[::-1]]
    keyings = [Keying(column, "bill") for column in columns]
    arrived: list[tuple[Any, int, int | None]] = []
    for way_in, columnar, timed, rows in runs:
        times = [row[-1] for row in rows] if timed else None
        lists = dict(zip([*COLUMNS, "number"], zip(*((*row[:-1], len(arrived) + at) for at, row in enumerate(rows)))))
        batch = pa.record_batch({name: pa.array(column, TYPES[name]) for name, column in lists.items()})
        stamps = np.array(times) if times is not None else None
        records: Records = ArrowRecords(batch, stamps)
        if not columnar:
            records = Records(records.values, times)
        key_of = attrgetter(*columns[way_in])
        arrived += [(key_of(row), way_in, times[at] if times else None) for at, row in enumerate(records.values)]
        sorter.add(way_in, records, keyings[way_in], size)
    check_groups(grouped(sorter), arrived)


@given(RUNS)
def test_in_memory(runs):
    check(runs)


NAMES = st.sampled_from([("whole",), ("perhaps",), ("text",), ("whole", "text"), ("perhaps", "whole")])


@example([(way_in, True, True, [(n, 0, "a", 0) for n in range(8)]) for way_in in (0, 1)], ("whole", "text"))
@given(ROW_RUNS, NAMES)
def test_rows_in_memory(runs, names):
    check_rows(runs, names)


@contextmanager
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_sorter, "_OBJECT_BYTES", 0)
        patch.setattr(key_sorter, "_COLUMN_BYTES", 0)
        patch.setattr(key_sorter, "_PORTION_BYTES", 250)
        patch.setattr(key_sorter, "_BLOCK_BYTES", 60)
        patch.setattr(key_sorter, "_FAN_IN", 2)
        patch.setattr(key_sorter, "_RUN_RECORDS", 3)
        patch.setattr(key_sorter, "_REMEMBERED", 2)
        yield


@given(RUNS)
def test_spilled(runs):
    with small():
        check(runs)


@given(ROW_RUNS, NAMES)
def test_rows_spilled(runs, names):
    with small():
        check_rows(runs, names)


@given(RUNS, st.integers(0, 3))
def test_keys_that_share_a_hash(runs, bits):
    with small(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_sorter, "_HASH_BITS", np.uint64(bits))
        check(runs)


@given(ROW_RUNS, NAMES, st.integers(0, 3))
def test_rows_with_keys_that_share_a_hash(runs, names, bits):
    with small(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_sorter, "_HASH_BITS", np.uint64(bits))
        check_rows(runs, names)


def test_columns_stay_columns(monkeypatch):
    monkeypatch.setattr(key_sorter, "_PORTION_BYTES", 2_000)
    sorter = KeySorter("bill")
    keying = Keying("key", "bill")
    rows = pa.record_batch({"key": [number % 7 for number in range(100)], "text": ["as it is"] * 100})
    for _ in range(5):
        sorter.add(0, ArrowRecords(rows), keying, 2_000)
    runs = list(sorter.runs())
    assert all(isinstance(run.records, ArrowRecords) for run in runs if len(run.records))
    assert sum(len(run.records) for run in runs) == 500


def test_runs_are_whole_where_no_keys_share_a_hash():
    sorter = KeySorter("bill")
    sorter.add(0, Records([(number % 50, number) for number in range(1_000)]), FIRST, 100)
    *runs, end = sorter.runs()
    assert [len(run.records) for run in runs] == [1_000]
    assert list(runs[0].ends) == list(range(20, 1_000, 20))
    assert (list(end.keys), list(end.ends)) == ([], [0])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 3)), max_size=30))
def test_order(pairs):
    hashes, times = np.array(pairs, np.int64).reshape(-1, 2).T
    result = sorted_records._order(hashes.astype(np.uint64) + np.uint64(2**32 - 6), times)
    assert result.tolist() == np.lexsort((times, hashes)).tolist()


def test_memory_of_the_sorter_is_bounded(monkeypatch):
    monkeypatch.setattr(key_sorter, "_OBJECT_BYTES", 0)
    monkeypatch.setattr(key_sorter, "_PORTION_BYTES", 4_000)
    monkeypatch.setattr(key_sorter, "_BLOCK_BYTES", 400)
    most = 0
    together = sorted_records.together

    def watched(parts):
        nonlocal most
        most = max(most, sum(map(len, parts)))
        return together(parts)

    keying = Keying("key", "bill")
    sorter = KeySorter("bill")
    for start in range(0, 5_000, 10):
        values = list(range(start, start + 10))
        sorter.add(0, Records([row(key=value % 477, at=value) for value in values]), keying, 400)
        assert sum(map(len, sorter._buffered.get(0, ()))) <= 100
    monkeypatch.setattr(key_sorter, "together", watched)
    file = sorter._spool._file
    assert file is not None
    results = [run.records.values for run in sorter.runs()]
    assert sorted(value.at for values in results for value in values) == list(range(5_000))
    assert most <= 64 * 10
    assert file.closed


def test_closed_before_it_was_read(monkeypatch):
    monkeypatch.setattr(key_sorter, "_PORTION_BYTES", 10)
    sorter = KeySorter("bill")
    sorter.add(0, Records([1, 2]), ITSELF, 20)
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
def test_values_that_cannot_be_written_are_named(monkeypatch, guilty):
    monkeypatch.setattr(key_sorter, "_PORTION_BYTES", 10_000)
    sorter = KeySorter("bill")
    values: list[Any] = [Unwritable("v") if guilty == "record" and n == 2 else n for n in range(4)]
    keying = Keying(lambda value: Unwritable("k") if guilty == "key" and value == 3 else value, "bill")
    monkeypatch.setattr(key_sorter, "stable_hash", lambda key: 7)
    sorter.add(0, Records([1, 2]), ITSELF, 0)
    words = {
        "record": r"operator 'bill' gets the record Unwritable\('v'\), which cannot be pickled",
        "key": r"operator 'bill' gets the record 3 with the key Unwritable\('k'\), which cannot be pickled",
    }
    with pytest.raises(OperatorError, match=words[guilty] + r".*batch mode.*TypeError: it is a connection") as caught:
        sorter.add(1, Records(values), keying, 10_000)
    assert isinstance(caught.value.__cause__, TypeError)
    sorter.close()


def test_an_incomparable_key_with_the_same_hash_is_named(monkeypatch):
    monkeypatch.setattr(key_sorter, "stable_hash", lambda key: 7)
    sorter = KeySorter("bill")
    sorter.add(0, Records(["a", Unwritable("v")]), ITSELF, 0)
    words = r"operator 'bill' gets the record Unwritable\('v'\), which cannot be pickled"
    with pytest.raises(OperatorError, match=words):
        list(sorter.runs())
    sorter.close()
