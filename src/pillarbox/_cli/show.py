"""Tables of what the commands found."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pillarbox._time.timestamps import MAX_WATERMARK, MIN_TIMESTAMP

__all__ = ["Rows", "checkpoint", "savepoint", "size", "time"]

# Values are cut short in tables, not in JSON.
_CELL = 200


def checkpoint(console: Console, found: dict[str, Any]) -> None:
    """Print what ``inspect_checkpoint`` found."""
    console.print(Text(found["checkpoint"], style="bold"))
    console.print(f"epoch {found['epoch']} of {_epochs(found)}; parallelism {found['parallelism']}")
    interrupted, unfinished = found["interrupted_rescale_to"], found["unfinished_epoch"]
    if interrupted is not None:
        console.print(
            f"a change to parallelism {interrupted} was interrupted: run 'pillarbox rescale' to {interrupted} again",
            style="red",
        )
    elif unfinished is not None:
        console.print(f"epoch {unfinished} was begun, and is not committed: the query runs, or will run it again")
    for program in found["programs"] or ():
        times = "event and processing time" if program.get("processing_time") else "event time"
        # Older checkpoints have more key groups than subtasks.
        subtasks, key_groups = program["parallelism"], program["max_parallelism"]
        groups = "" if key_groups == subtasks else f", {key_groups} key groups"
        console.print(f"program: max parallelism {subtasks}{groups}, {times}")
        for source in program["sources"]:
            columns = ", ".join(source["columns"] or ())
            console.print(Text(f"source {source['name']!r}" + (f": {columns}" if columns else "")))
    if found["programs"] is None:
        console.print("no program is noted beside it: the query was started without pillarbox.start(...)")
    if found["operators"]:
        _operators(console, found["operators"])
        _largest(console, found["operators"])
    else:
        console.print("no operator has state")
    if "changes" in found:
        _changes(console, found["changes"])


def savepoint(console: Console, found: dict[str, Any]) -> None:
    """Print what ``inspect_savepoint`` found."""
    console.print(Text(found["savepoint"], style="bold"))
    of = f" of {found['checkpoint']}" if found["checkpoint"] else ""
    drained = "; drained" if found["drained"] else ""
    console.print(Text(f"savepoint of epoch {found['epoch']}{of}, by pillarbox {found['pillarbox']}{drained}"))
    console.print(f"{found['sources']} sources" if found["sources"] else "no positions of sources")
    table = Table()
    for name, is_number in (
        ("uid", False), ("subtasks", True), ("key groups", True), ("keys", True), ("windows", True), ("timers", True),
        ("watermark", False), ("size", True), ("states", False),
    ):  # fmt: skip
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for operator in found["operators"]:
        counts = [operator[name] for name in ("parallelism", "max_parallelism", "keys", "namespaces", "timers")]
        table.add_row(
            Text(operator["uid"]),
            *(f"{count:,}" for count in counts),
            time(operator["watermark"]),
            size(operator["bytes"]),
            Text("\n".join(f"{name}: {kind}" for name, kind in operator["states"].items())),
        )
    console.print(table)


def _epochs(found: dict[str, Any]) -> str:
    oldest = found["oldest_epoch"]
    return f"{found['last_epoch']}" if oldest is None else f"{oldest} to {found['last_epoch']}"


def _operators(console: Console, operators: list[dict[str, Any]]) -> None:
    table = Table()
    for name, is_number in (
        ("uid", False), ("made by", False), ("keys", True), ("windows", True), ("timers", True), ("next timer", False),
        ("watermark", False), ("state", True), ("log", True), ("states", False),
    ):  # fmt: skip
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for operator in operators:
        timers, due = operator["timers"], operator["next_timers"]
        states = "\n".join(f"{name}: {kind}" for name, kind in operator["states"].items())
        table.add_row(
            *map(
                Text,
                (
                    operator["uid"],
                    operator["kind"] or "",
                    f"{operator['keys']:,}",
                    f"{operator['namespaces']:,}",
                    "\n".join(f"{count:,} {domain}" for domain, count in timers.items()) or "0",
                    "\n".join(time(timestamp) for timestamp in due.values()),
                    time(operator["watermark"]),
                    size(operator["state_bytes"]),
                    size(operator["log_bytes"]),
                    states + ("\n(plain data)" if operator["is_plain"] else ""),
                ),
            )
        )
    console.print(table)
    for operator in operators:
        if operator.get("classes"):
            console.print(Text(f"operator {operator['uid']!r}: its state names {', '.join(operator['classes'])}"))
        for uid, count in operator["carried"].items():
            if count:
                console.print(Text(f"operator {uid!r}: {count:,} requests are carried on"))


def _largest(console: Console, operators: list[dict[str, Any]]) -> None:
    rows = [(operator["uid"], *each) for operator in operators for each in operator["largest"]]
    if not rows:
        return
    table = Table(title="Largest keys", title_justify="left")
    table.add_column("uid")
    table.add_column("key", overflow="fold")
    table.add_column("about", justify="right")
    for uid, key, bytes_ in rows:
        table.add_row(Text(uid), Text(key), size(bytes_))
    console.print(table)


def _changes(console: Console, changes: dict[str, list[str]]) -> None:
    if not changes["refused"] and not changes["doubtful"]:
        console.print("The other program can go on with this checkpoint.", style="green")
    for what in changes["refused"]:
        console.print(Text(f"refused: {what}", style="red"))
    for what in changes["doubtful"]:
        console.print(Text(f"doubtful: {what}", style="yellow"))
    for what in changes["carried_out"]:
        console.print(Text(f"carried out: {what}"))


def time(timestamp: int | None) -> str:
    """Return a timestamp (epoch ms) for people: in UTC, or as a number where it is no date."""
    if timestamp is None:
        return ""
    if timestamp >= MAX_WATERMARK:
        return "the end"
    if timestamp <= MIN_TIMESTAMP:
        return "none yet"
    try:
        at = datetime.fromtimestamp(timestamp / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return str(timestamp)
    return at.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def size(count: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError("there is no end of units")


class Rows:
    """Rows of state: a table, or a JSON object a line as they come.

    Args:
        limit: how many to show, of which there may be more; 0: all.
    """

    def __init__(self, console: Console, columns: list[str], *, as_json: bool, limit: int) -> None:
        self._console = console
        self._as_json = as_json
        self._limit = limit
        self._count = 0
        self._columns = columns
        self._table = Table()
        for name in columns:
            self._table.add_column(Text(name), overflow="fold")

    def add(self, line: str) -> None:
        """Add a row, as JSON."""
        self._count += 1
        if self._limit and self._count > self._limit:
            return
        if self._as_json:
            self._console.out(line, highlight=False)
            return
        row = json.loads(line)
        self._table.add_row(*(Text(_cell(row.get(name))) for name in self._columns))

    def end(self) -> None:
        """Print what is left."""
        if self._as_json:
            return
        self._console.print(self._table)
        if self._limit and self._count > self._limit:
            self._console.print(f"the first {self._limit} rows; --limit shows more")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _CELL else f"{text[:_CELL]}..."
