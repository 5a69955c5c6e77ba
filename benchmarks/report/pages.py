# SPDX-License-Identifier: Apache-2.0
"""Fills the blocks in README.md and ``docs`` with the results of benchmarks.

A block is the text between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``. All measured figures are in blocks, so
the pages show the results of the last run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.cases import CASES, load
from benchmarks.harness.case import Block, Results
from benchmarks.harness.process import ROOT
from benchmarks.report import first_page
from benchmarks.report.results import read_results
from benchmarks.report.words import page as join

BLOCK = re.compile(r"^<!-- begin (?P<name>[^>\n]+) -->\n.*?^<!-- end (?P=name) -->$", re.DOTALL | re.MULTILINE)


def blocks() -> dict[str, Block]:
    """Return all blocks by name."""
    by_name = dict(first_page.BLOCKS)
    for name in CASES:
        by_name.update(load(name).BLOCKS)
    return by_name


def pages(home: Path = ROOT) -> list[Path]:
    """Return the pages that may have blocks."""
    return [home / "README.md", *sorted((home / "docs").rglob("*.md"))]


def fill(page: str, results: Results, notes: list[str] | None = None) -> str:
    """Fill a page's blocks.

    Args:
        notes: receives a line for each unchanged block.
    """

    named = blocks()

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in named:
            raise SystemExit(f"{name!r} is no block: known are {', '.join(named)}")
        block_of = named[name]
        if missing := [run for run in block_of.needed if run not in results]:
            if notes is not None:
                notes.append(f"{name}: left as it is, {', '.join(missing)} was not run")
            return match[0]
        commands = [f"    {results.runs[run]['command']}" for run in block_of.needed] if block_of.commands else []
        filling = join("\n".join(commands), block_of.make(results))
        return f"<!-- begin {name} -->\n\n{filling}\n\n<!-- end {name} -->"

    return BLOCK.sub(block, page)


def filled(results: Results, home: Path = ROOT, notes: list[str] | None = None) -> Mapping[Path, str]:
    """Return the new text of each page."""
    return {page: fill(page.read_text(), results, notes) for page in pages(home)}


def write() -> None:
    """Draw the charts, and fill the blocks whose results exist."""
    notes: list[str] = []
    for page, text in filled(read_results(), notes=notes).items():
        page.write_text(text)
    print(*notes, sep="\n", end="\n" if notes else "")
