"""Writes ``docs/operators.md`` from the table: ``python -m tests.operators_table.page``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.operators_table.entry import Entry, Refused
from tests.operators_table.table import OPERATORS

__all__ = ["PATH", "text"]

PATH = Path(__file__).parents[2] / "docs" / "operators.md"

HEAD = """# Operators

This page lists, for each operator, its state, its treatment of late records, its results in batch mode, and the
arguments that you must not change. `AllWindowedStream` has the same methods as `WindowedStream`. Tests check each row.

- **State** is the operator's data in the checkpoint. If you declare the types of records and key, it is stored as
  [plain data](security.md#state-of-declared-types). State marked as pickled is always pickled.
- **Late records** arrive after the watermark has passed their timestamps. To keep them, use the side output of windows
  and joins, or `allowed_lateness` of windows.
- **Batch mode** compares the results to the results of a stream that ends ([how batch mode
  works](execution.md#batch-mode)).
- **Changes** are the arguments that you must not change, because the state depends on them. If a change is refused,
  give the operator another `uid(...)` ([all other changes](operations.md#i-want-to-change-x-what-do-i-do)).

| method | state | late records | batch mode | changes |
| --- | --- | --- | --- | --- |
"""


def text() -> str:
    return HEAD + "".join(f"| {' | '.join(cells)} |\n" for cells in _rows())


def _rows() -> Iterator[tuple[str, ...]]:
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for entry in (entry for entry in OPERATORS if not entry.lacks()):
        stream, method = entry.method.split(".")
        row = stream, _state(entry), entry.late.words, entry.batch.words, _changes(entry)
        rows.setdefault(row, {}).setdefault(method, entry.case)
    for (stream, *cells), methods in rows.items():
        names = (f"`{method}` ({case})" if case else f"`{method}`" for method, case in methods.items())
        yield f"`{stream}.{', '.join(names)[1:]}", *cells


def _state(entry: Entry) -> str:
    state = entry.state
    return (
        f"{state.words} (pickled)" if (state.format or "").startswith("pickle") and not state.by_user else state.words
    )


def _changes(entry: Entry) -> str:
    if not isinstance(entry.changes, list):
        return ""
    changes = [
        f"{change.change}: refused" if isinstance(change, Refused) else f"{change.change}: {change.then}"
        for change in entry.changes
    ]
    return "; ".join(dict.fromkeys(changes))


if __name__ == "__main__":
    PATH.write_text(text())
