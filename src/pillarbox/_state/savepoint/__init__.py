"""Savepoints: state as plain tables, from which logs are written for any number of subtasks.

A savepoint is a directory of Parquet tables with a manifest (docs/savepoint-format.md). Imports all other packages of
`_state`, and Arrow; it knows neither Spark nor a program. Start with `table.py`, then `log_builder.py`. Weak spot: what
has no declared type is a pickle in a column.
"""

from pillarbox._state.savepoint.files import LocalSavepoint, write_savepoint
from pillarbox._state.savepoint.log_builder import LogBuilder, build_log
from pillarbox._state.savepoint.manifest import FileDigest, Manifest, OperatorTable, Sources
from pillarbox._state.savepoint.own_state import (
    TASKS,
    OwnState,
    gate_with_edges,
    is_drained,
    own_states,
    redistribute,
    task_row,
)
from pillarbox._state.savepoint.table import Table

__all__ = [
    "TASKS",
    "FileDigest",
    "LocalSavepoint",
    "LogBuilder",
    "Manifest",
    "OperatorTable",
    "OwnState",
    "Sources",
    "Table",
    "build_log",
    "gate_with_edges",
    "is_drained",
    "own_states",
    "redistribute",
    "task_row",
    "write_savepoint",
]
