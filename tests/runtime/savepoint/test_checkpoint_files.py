"""Errors that a checkpoint's folders alone reveal, and columns with unusual names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pillarbox import CheckpointMismatchError
from pillarbox._runtime.spark.checkpoint.state import CheckpointState, CheckpointStateOperator
from pillarbox._runtime.spark.rows.any_names import map_in_arrow

TWO_LEVELS = {"operators": [{"uid": "a", "level": 1}, {"uid": "b", "level": 1}, {"uid": "c", "level": 2}]}


class Checkpoint:
    def __init__(self, programs: list[Any] | None) -> None:
        self._programs = programs

    def programs_at(self, epoch: int) -> list[Any] | None:
        return self._programs

    def __str__(self) -> str:
        return "/cp"


@pytest.mark.parametrize(
    ("programs", "count", "says"),
    [
        ([TWO_LEVELS], 0, "/cp/pillarbox lists state for the operators 'a', 'b', 'c', but /cp/state contains none"),
        ([TWO_LEVELS], 1, "/cp/state contains only some of it: restore the missing folders"),
        ([TWO_LEVELS, TWO_LEVELS], 3, "only some of it"),
        ([TWO_LEVELS], 2, None),
        ([TWO_LEVELS, TWO_LEVELS], 4, None),
        ([{"operators": []}], 0, None),
        (None, 0, None),
        (None, 2, None),
    ],
)
def test_state_that_is_gone_is_noticed(programs: list[Any] | None, count: int, says: str | None) -> None:
    files: Any = CheckpointState.__new__(CheckpointState)
    files.checkpoint, files.epoch = Checkpoint(programs), 7
    operators = [CheckpointStateOperator(number, 2, 0) for number in range(count)]
    if says is None:
        files._check_whole(operators)
        return
    with pytest.raises(CheckpointMismatchError, match=says):
        files._check_whole(operators)


@pytest.mark.parametrize("names", [["a", "b"], ["a.b", "c"], ["a`b", "a.b"]])
def test_columns_of_any_names_are_mapped(names: list[str]) -> None:
    """Columns are renamed first, because PySpark interprets names: `df["a.b"]` is the field b of the struct a."""
    seen: list[list[str]] = []
    batch = pa.record_batch([[1], [2]], names=names)

    def frame(columns: list[str]) -> Any:
        def mapped(function: Any, schema: str) -> list[pa.RecordBatch]:
            assert not any("." in name or "`" in name for name in columns) and schema == "x INT"
            return list(function([batch.rename_columns(columns)]))

        return SimpleNamespace(columns=columns, toDF=lambda *new: frame([*new]), mapInArrow=mapped)

    def function(batches: Any) -> Any:
        for batch in batches:
            seen.append(batch.schema.names)
            yield batch

    mapped: Any = map_in_arrow(frame(names), "a test", function, "x INT")
    assert mapped == [batch]
    assert seen == [names]
