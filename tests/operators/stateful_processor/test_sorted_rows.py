from __future__ import annotations

import pyarrow as pa
import pytest

from pillarbox._operators.stateful_processor.sorted_rows import SortedRows


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([2.0, -0.0, None, 0.0, 2.0, -0.0], [([2], None), ([1, 3, 5], -0.0), ([0, 4], 2.0)]),
        (
            [{"a": 1, "b": "x"}, {"a": 1, "b": None}, None, {"a": 1, "b": "x"}, None, {"a": 0, "b": "y"}],
            [([2, 4], None), ([5], {"a": 0, "b": "y"}), ([1], {"a": 1, "b": None}), ([0, 3], {"a": 1, "b": "x"})],
        ),
        ([{"a": {"b": -0.0}}, {"a": None}, {"a": {"b": 0.0}}], [([1], {"a": None}), ([0, 2], {"a": {"b": -0.0}})]),
    ],
    ids=["zeros", "structs", "structs in structs"],
)
def test_equal_keys_are_one_group(keys, expected):
    table = pa.table({"key": pa.array(keys), "row": range(len(keys))})
    rows = SortedRows(table, ["key"])
    values = [row.row for row in rows.rows()]
    groups = [values[start : start + count] for start, count in zip(rows.starts, rows.counts)]
    assert list(zip(groups, rows.keys.column("key").to_pylist())) == expected
