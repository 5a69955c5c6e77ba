"""Finds the rows of one key in the state of a columnar operator."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from pillarbox._errors import shorten
from pillarbox._runtime.spark.checkpoint.state import CheckpointState, CheckpointStateOperator
from pillarbox._runtime.spark.rows.any_names import quoted
from pillarbox._runtime.spark.savepoint.savepoint import table_of_logs
from pillarbox._state.chunks.head import LogHead
from pillarbox._state.keys.key_note import KeyNote

if TYPE_CHECKING:
    from pyspark.sql import Column

_PARTS = ("partials", "left", "right")


def rows_in_columns(
    files: CheckpointState,
    operator: CheckpointStateOperator,
    epoch: int,
    heads: Mapping[int, LogHead],
    keys: Sequence[Any],
) -> dict[int, list[dict[str, Any]]]:
    """Return the rows (dictionaries) of the key ``keys[0]`` in columnar state, by subtask."""
    codes = ", ".join(map(str, heads))
    _, table = table_of_logs(files.logs(operator, epoch).where(f"code IN ({codes})"), list(heads.values()))
    parts = [part for part in _PARTS if part in table.columns]
    note = next(iter(heads.values())).key or KeyNote()
    conditions = [_condition(part, _columns_of(part, note), keys[0]) for part in parts]
    lines = (
        table.where(reduce(or_, conditions))
        .selectExpr("subtask", "namespace", *(f"to_json({quoted(part)}) AS {quoted(part)}" for part in parts))
        .collect()
    )
    rows: dict[int, list[dict[str, Any]]] = {}
    seen: Counter[Any] = Counter()
    for line in sorted(lines, key=str):
        states = {}
        for part in parts:
            if line[part] is not None:
                # A key may have several rows: one per unmerged stream, or per record that a join retains.
                seen[line.namespace, part] += 1
                states[f"{part} {seen[line.namespace, part]}"] = shorten_json(line[part])
        rows.setdefault(line.subtask, []).append(
            {"key": shorten(keys[0], 200), "reading": 0, "namespace": line.namespace, "states": states, "timers": []}
        )
    return rows


def shorten_json(text: str, limit: int = 2000) -> str:
    value = {name: field for name, field in json.loads(text).items() if field is not None}
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."


def _columns_of(part: str, note: KeyNote) -> Sequence[str]:
    inputs = note.get("inputs", [note, note])
    return (inputs[1] if part == "right" else inputs[0]).get("columns", ())


def _condition(part: str, columns: Sequence[str], key: Any) -> Column:
    from pyspark.sql import functions

    values = key if len(columns) > 1 else (key,)
    conditions = [
        functions.col(f"{quoted(part)}.{quoted(column)}").eqNullSafe(functions.lit(value))
        for column, value in zip(columns, values)
    ]
    return reduce(and_, conditions, functions.col(quoted(part)).isNotNull())
