# SPDX-License-Identifier: Apache-2.0
"""The blocks of README.md and ``docs`` that are filled with what the benchmarks said."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.reporting import first_page, sentences, tables
from benchmarks.reporting.results import Report
from benchmarks.support import ROOT

Block = tuple[Callable[[Report], str], tuple[str, ...]]

# What makes each block, and the results that it is made of. Commands come before tables ...
TABLES: dict[str, Block] = {
    "keyed": (tables.keyed, ("keyed",)),
    "keyed sizes": (tables.keyed_sizes, ("keyed-10k-keys", "keyed", "keyed-1m-keys", "keyed-100k-rows")),
    "sessions": (tables.sessions, ("sessions",)),
    "windows": (tables.windows, ("windows",)),
    "join": (tables.join, ("join",)),
    "stateless": (tables.stateless, ("stateless",)),
    "epoch": (tables.epoch, ("epoch",)),
    "start": (tables.start, ("start",)),
    "latency": (tables.latency, ("latency",)),
    "async": (tables.asynchronous, ("async",)),
    "recovery": (tables.recovery, ("recovery",)),
    "operate": (tables.operate, ("operate",)),
    "growth": (tables.growth, ("growth",)),
    "state": (tables.state, ("state-spark", "state")),
    "memory": (tables.memory, ("memory", "memory-async")),
    "mechanisms": (tables.mechanisms, ("mailbox", "timers")),
    "subtasks": (tables.subtasks, ("epoch",)),
}
# ... and the others stand by themselves.
WORDS: dict[str, Block] = {
    "first page": (first_page.first_page, ("keyed", "windows", "join", "latency")),
    "machine": (first_page.machines, ()),
    "keyed in words": (sentences.keyed_words, ("keyed-10k-keys", "keyed", "keyed-1m-keys")),
    "recovery in words": (sentences.recovery_words, ("recovery",)),
    "state in words": (sentences.state_words, ("state-spark", "state")),
    "where the time goes": (sentences.where_time_goes, ("keyed",)),
    "epochs in words": (sentences.epoch_words, ("epoch",)),
    "latency in words": (sentences.latency_words, ("latency",)),
    "slots in words": (sentences.slot_words, ("slots",)),
    "the hop in words": (sentences.hop_words, ("windows",)),
    "panes in words": (sentences.pane_words, ("windows",)),
    "a cold start in words": (sentences.cold_start_words, ("recovery",)),
    "memory of a key": (sentences.key_words, ("state",)),
}
BLOCK = re.compile(r"^<!-- begin (?P<name>[^>\n]+) -->\n.*?^<!-- end (?P=name) -->$", re.DOTALL | re.MULTILINE)


def pages(home: Path = ROOT) -> list[Path]:
    """Return the pages that may have blocks."""
    return [home / "README.md", *sorted((home / "docs").glob("*.md"))]


def fill(page: str, report: Report, notes: list[str] | None = None) -> str:
    """Fill in a page's blocks.

    Args:
        notes: is given a line for each block that stays as it is.
    """

    def block(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in TABLES and name not in WORDS:
            raise SystemExit(f"{name!r} is no block: known are {', '.join([*TABLES, *WORDS])}")
        make, needed = {**TABLES, **WORDS}[name]
        if missing := [each for each in needed if each not in report]:
            if notes is not None:
                notes.append(f"{name}: left as it is, {', '.join(missing)} was not run")
            return found[0]
        commands = [f"    {report.kept[each]['command']}" for each in needed] if name in TABLES else []
        filling = "\n\n".join(filter(None, ["\n".join(commands), make(report)]))
        return f"<!-- begin {name} -->\n\n{filling}\n\n<!-- end {name} -->"

    return BLOCK.sub(block, page)


def filled(report: Report, home: Path = ROOT, notes: list[str] | None = None) -> Mapping[Path, str]:
    """Return what each page is to be."""
    return {page: fill(page.read_text(), report, notes) for page in pages(home)}


def write() -> None:
    """Draw the charts, and fill in the blocks whose results exist."""
    notes: list[str] = []
    for page, text in filled(Report.read(), notes=notes).items():
        page.write_text(text)
    print(*notes, sep="\n", end="\n" if notes else "")
