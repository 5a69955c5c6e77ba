"""Prints the commands' results as tables.

A table wider than the console is printed row by row, so that no value is truncated. In pipes and files, only rows of
state have a width limit.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from pillarbox._task.memory import readable
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP

_CELL = 200
_ENDLESS = 1_000_000
_WIDEST = 200
_RULE = 80


def output() -> Console:
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_ENDLESS)


def checkpoint(console: Console, inspection: dict[str, Any]) -> None:
    console.print(_text(inspection["checkpoint"], "bold"))
    oldest, last = inspection["oldest_epoch"], inspection["last_epoch"]
    epochs = last if oldest is None else f"{oldest} to {last}"
    console.print(f"epoch {inspection['epoch']} of {epochs}; parallelism {inspection['parallelism']}")
    interrupted, unfinished = inspection["interrupted_rescale_to"], inspection["unfinished_epoch"]
    if interrupted is not None:
        console.print(
            f"a change to parallelism {interrupted} was interrupted: complete it with 'pillarbox rescale --parallelism"
            f" {interrupted}'",
            style="red",
        )
    elif unfinished is not None:
        console.print(
            f"epoch {unfinished} was begun, but is not committed: the query is running, or its next start repeats the"
            " epoch"
        )
    for program in inspection["programs"] or ():
        times = "event and processing time" if program.get("processing_time") else "event time"
        # Older checkpoints have more key groups than subtasks.
        subtasks, key_groups = program["parallelism"], program["max_parallelism"]
        groups = "" if key_groups == subtasks else f", {key_groups} key groups"
        console.print(f"program: max parallelism {subtasks}{groups}, {times}")
        for source in program["sources"]:
            columns = ", ".join(source["columns"] or ())
            console.print(_text(f"source {source['name']!r}" + (f": {columns}" if columns else "")))
    if inspection["programs"] is None:
        console.print("no program is recorded: the query was started without pillarbox.start(...)")
    if inspection["operators"]:
        _operators(console, inspection["operators"])
        _largest(console, inspection["operators"])
    else:
        console.print("no operator has state")
    if "changes" in inspection:
        _changes(console, inspection["changes"])


def savepoint(console: Console, inspection: dict[str, Any]) -> None:
    console.print(_text(inspection["savepoint"], "bold"))
    of = f" of {inspection['checkpoint']}" if inspection["checkpoint"] else ""
    drained = "; drained" if inspection["drained"] else ""
    console.print(
        _text(f"savepoint of epoch {inspection['epoch']}{of}, by pillarbox {inspection['pillarbox']}{drained}")
    )
    sources = inspection["sources"]
    console.print(f"positions of {counted(sources, 'source')}" if sources else "no positions of sources")
    rows = [
        {
            "uid": operator["uid"],
            "subtasks": operator["parallelism"],
            "key groups": operator["max_parallelism"],
            "keys": _keys(operator),
            "windows": operator["namespaces"],
            "timers": operator["timers"],
            "watermark": time(operator["watermark"]),
            "size": BytesCell(operator["bytes"]),
            "states": "\n".join(f"{name}: {kind}" for name, kind in operator["states"].items()),
        }
        for operator in inspection["operators"]
    ]
    _print(console, rows)


def _operators(console: Console, operators: list[dict[str, Any]]) -> None:
    rows = []
    for operator in operators:
        sizes = operator["bytes_of"]
        states = "\n".join(
            f"{name}: {kind}" + (f", about {readable(sizes[name])}" if name in sizes else "")
            for name, kind in operator["states"].items()
        )
        timers = [f"{count:,} {domain}" for domain, count in operator["timers"].items()]
        row = {
            "uid": operator["uid"],
            "made by": operator["kind"] or "",
            "keys": _keys(operator),
            "windows": operator["namespaces"],
            "timers": RightAligned("\n".join(timers) or "0"),
            "next timer": "\n".join(map(time, operator["next_timers"].values())),
            "watermark": time(operator["watermark"]),
            "state": BytesCell(operator["state_bytes"]),
            "log": BytesCell(operator["log_bytes"]),
            "states": states + ("\n(plain data)" if operator["is_plain"] else ""),
        }
        rows.append(row)
    _print(console, rows)
    for operator in operators:
        if reason := operator.get("reason_for_pickles"):
            console.print(_text(f"operator {operator['uid']!r}: its states are pickled: {reason}"))
        if operator.get("classes"):
            console.print(
                _text(f"operator {operator['uid']!r}: its state contains objects of {', '.join(operator['classes'])}")
            )
        for uid, count in operator["carried"].items():
            if count:
                are = "is" if count == 1 else "are"
                console.print(_text(f"operator {uid!r}: {counted(count, 'request')} {are} pending"))


def _keys(operator: dict[str, Any]) -> Any:
    return RightAligned("in columns") if operator["by_columns"] else operator["keys"]


def _largest(console: Console, operators: list[dict[str, Any]]) -> None:
    rows = [
        {"uid": operator["uid"], "key": key, "about": BytesCell(size)}
        for operator in operators
        for key, size in operator["largest"]
    ]
    if rows:
        console.print(_text("Largest keys", "italic"))
        _print(console, rows)


class RightAligned(str):
    """A right-aligned cell."""


class BytesCell(int):
    """A number of bytes, shown with a unit."""


def _print(
    console: Console, rows: Sequence[dict[str, Any]], columns: Sequence[str] = (), *, widest: int = _ENDLESS
) -> None:
    table = Table()
    columns = columns or list(rows[0])
    for name in columns:
        is_number = bool(rows) and isinstance(rows[0][name], int | RightAligned)
        table.add_column(_text(name), justify="right" if is_number else "left", overflow="fold")
    texts = [[_shown(row[name]) for name in columns] for row in rows]
    for cells in texts:
        table.add_row(*map(_text, cells))
    width = Measurement.get(console, console.options.update(width=_ENDLESS), table).maximum
    if not rows or width <= (widest if console.width == _ENDLESS else console.width):
        console.print(table)
        return
    for number, cells in enumerate(texts, 1):
        console.print(Rule(_text(f"row {number}"), align="left"), width=min(console.width, _RULE))
        lines = Table.grid(padding=(0, 2, 0, 0))
        lines.add_column(style="bold")
        lines.add_column(overflow="fold")
        for name, cell in zip(columns, cells):
            lines.add_row(_text(name), _text(cell))
        console.print(lines)


def _shown(cell: Any) -> str:
    return readable(cell) if isinstance(cell, BytesCell) else f"{cell:,}" if isinstance(cell, int) else str(cell or "")


def _text(text: str, style: str = "") -> Text:
    return Text(_visible(text), style)


def _visible(text: str) -> str:
    """Escape control characters, which a terminal would interpret."""
    if text.isprintable():
        return text
    return "".join(
        repr(char)[1:-1] if char != "\n" and unicodedata.category(char) in ("Cc", "Cf", "Cs") else char for char in text
    )


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _changes(console: Console, changes: dict[str, list[str]]) -> None:
    if not changes["refused"] and not changes["doubtful"]:
        console.print("The other program can resume from this checkpoint.", style="green")
    for kind, style in (("refused", "red"), ("doubtful", "yellow"), ("carried_out", "")):
        for what in changes[kind]:
            console.print(_text(f"{kind.replace('_', ' ')}: {what}", style))


def time(timestamp: int | None) -> str:
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


def rows(console: Console, columns: list[str], lines: Sequence[str], limit: int) -> None:
    """Print rows of state (JSON lines), and whether there are more rows than the limit."""
    documents = map(json.loads, lines[: limit or None])
    cells = [{name: _cell(row.get(name)) for name in columns} for row in documents]
    _print(console, cells, columns, widest=_WIDEST)
    if limit and len(lines) > limit:
        console.print(f"the first {counted(limit, 'row')}; --limit shows more")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _CELL else f"{text[:_CELL]}..."


def key(console: Console, history: dict[str, Any]) -> None:
    where = "" if history["subtask"] is None else f", subtask {history['subtask']}"
    console.print(_text(f"{history['key']}{where}, epoch {history['epoch']}", "bold"))
    _lines(console, history["messages"])
    if history["state"]:
        columns = ("state", "value", "changed in")
        cells = ((state["name"], state["value"], RightAligned(_cell(state["changed"]))) for state in history["state"])
        _print(console, [dict(zip(columns, row)) for row in cells])
        if epochs := history["epochs"][:-1]:
            console.print(_text(f"compared with epochs {', '.join(map(str, epochs))}"))
    if history["timers"]:
        timers = ((timer["domain"], time(timer["at"]), timer["waits"]) for timer in history["timers"])
        _print(console, [dict(zip(("timer", "at", "waits for"), row)) for row in timers])
    if history["calls"]:
        pending = [
            {
                "pending call of": call["uid"],
                "record": call["record"],
                "since": time(call["asked"]) if call["arrived"] is None else f"epoch {call['arrived']}",
                "waits for": call["waits"],
                "recorded calls": "\n".join(call["recorded"]),
            }
            for call in history["calls"]
        ]
        _print(console, pending)


def findings(console: Console, report: dict[str, Any], *, every: bool) -> None:
    for finding in report["findings"]:
        if finding["status"] == "wrong":
            _lines(console, [f"{finding['rule']}: {finding['message']}"], "red")
        elif every:
            unknown_fact = f": {finding['message']}" if finding["status"] == "unknown" else ""
            _lines(console, [f"{finding['rule']}: {finding['status']}{unknown_fact}"])
    counts = Counter(finding["status"] for finding in report["findings"])
    rules = counted(counts.total(), "rule")
    console.print(f"{rules}: {counts['wrong']} wrong, {counts['fine']} fine, {counts['unknown']} without facts")


def executor_memory(console: Console, report: dict[str, Any]) -> None:
    executors = report["executors"]
    console.print(_text(f"{report['checkpoint']}, as of {time(report['at'])}", "bold"))
    for executor in executors:
        process = "" if executor["executor"] is None else f", process {executor['executor']}"
        console.print(_text(f"executor on {executor['host']}{process}"))
        limit = executor["limit"]
        rows = [
            *((term["name"], term["bytes"], term["formula"]) for term in executor["terms"]),
            ("sum of the formula", executor["computed"], "beyond the heap"),
            ("homes, measured", executor["home_bytes"], "replaces homes and state of the formula"),
            ("workers, measured", executor["worker_bytes"], "workers that run tasks"),
            ("needed", executor["needed"], f"plus {readable(executor['heap'])} of heap"),
            (
                *("needed with heap", executor["needed"] + executor["heap"]),
                "no known limit" if limit is None else f"of {readable(limit)} for the container",
            ),
        ]
        measured = [row for row in rows if row[1] is not None]
        _print(console, [{"": name, "memory": BytesCell(size), " ": note} for name, size, note in measured])
    total = sum(executor["needed"] + executor["heap"] for executor in executors)
    console.print(f"{counted(len(executors), 'executor')}: {readable(total)} with their heaps")
    _lines(console, [f"{name}={value}" for name, value in report["settings"].items()])


def replayed(console: Console, report: dict[str, Any]) -> None:
    _task_of_recording(console, report)
    if report["error"] is not None:
        number = None if report["failure"] is None else report["failure"]["number"]
        end = "failed" if number is None else f"failed at record {number:,}"
    elif report["unanswered"] is not None:
        end = "stopped at a call"
    else:
        end = "stopped as requested" if report["stopped"] else "ended"
    console.print(f"{counted(report['records'], 'record')} in, {counted(report['sent'], 'record')} out; it {end}")
    messages = (report["error"], report["unanswered"], *report["differs"], report["uncompared"])
    _lines(console, [message for message in messages if message], "red")
    if report["state"] is not None:
        count = len(report["state"])
        console.print(f"{count:,} state {'entry differs' if count == 1 else 'entries differ'}")
        for entry in report["state"]:
            values = f"{entry['then']} in the checkpoint, {entry['now']} in the replay"
            part = f"; {entry['part']}" if entry["part"] else ""
            _lines(console, [f"  {entry['owner']}, {entry['state']}: {values}{part}"], "red")
    if report["reasons"]:
        _lines(console, ["Possible reasons:", *(f"  {reason}" for reason in report["reasons"])])


def compared(console: Console, report: dict[str, Any]) -> None:
    _task_of_recording(console, report)
    then, now = (counted(sent, "record") for sent in report["sent"])
    console.print(
        f"{counted(report['records'], 'record')} in; {then} out of the recorded program, {now} out of the other"
    )
    first, call = report["first"], report["unanswered"]
    if call is not None:
        _lines(console, [call], "red")
    if first is None:
        _lines(console, report["only_end"], "red")
        same = "both programs agree" if call is None else "both programs agree up to the call"
        console.print("all records agree" if report["only_end"] else same)
        return
    if report["keys"]:
        console.print(f"{counted(report['keys'], 'key')} {'differs' if report['keys'] == 1 else 'differ'} in state")
    where = "before the first record" if first["record"] is None else f"at record {first['number']:,}"
    console.print(_text(f"The first difference is {where}", "bold"))
    _lines(console, [f"{name}: {first[name]}" for name in ("key", "record") if first[name] is not None])
    _lines(console, [f"state before: {_state(first['before'])}"])
    for program, step, style in (("recorded program", first["then"], ""), ("other program", first["now"], "red")):
        lines = [f"state after, {program}: {_state(step['state'])}"]
        lines += [f"output, {program}: {record}" for record in step["output"]]
        lines += [] if step["error"] is None else [f"error, {program}: {step['error']}"]
        _lines(console, lines, style)
    _lines(console, first["parts"], "red")


def _lines(console: Console, lines: Iterable[str], style: str = "") -> None:
    for line in lines:
        console.print(_text(line, style), soft_wrap=True)


def _state(state: dict[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in state.items()) or "none"


def _task_of_recording(console: Console, report: dict[str, Any]) -> None:
    console.print(_text(f"{report['uid'] or 'source'}, subtask {report['subtask']}, epoch {report['epoch']}", "bold"))
