# SPDX-License-Identifier: Apache-2.0
"""Defines and runs cases.

A case is a module. Its docstring describes the method: the sides, the measurement, and which side it favours. It has:

- ``options(parser)``, its own options, and ``SMALL``, their values for ``--size small``. This size takes about a minute
  and omits peers that need their own environment;
- ``run(arguments, directory)``, which measures and returns an ``Outcome``;
- ``present(result, charts)``, which returns an outcome's tables and charts in Markdown;
- ``BLOCKS``, the blocks of pages that show its figures, by name.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.findings import findings_in, read_findings
from benchmarks.harness.machine import load_before, machine

Result = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The measurements of a case.

    Attributes:
        figures: further figures for the last line.
        wrong: a line for each unexpected result.
    """

    name: str
    ratio: float
    figures: Mapping[str, Any]
    wrong: Sequence[str] = field(default=())

    def result(self) -> Result:
        """Return the last line's object."""
        agree = {"results_agree": not self.wrong}
        return {"name": self.name, "ratio": round(self.ratio, 3), **agree, **self.figures, **machine()}


@dataclass(frozen=True)
class Results:
    """The results for a block, by name of the run.

    Attributes:
        runs: the command, date, machine and result of each run.
        charts: the folder for charts, or None to draw no charts.
    """

    runs: Mapping[str, dict[str, Any]]
    charts: Path | None

    def __getitem__(self, name: str) -> Result:
        """Return a run's result."""
        result: Result = self.runs[name]["result"]
        return result

    def __contains__(self, name: object) -> bool:
        """Return whether a run has a result."""
        return name in self.runs


@dataclass(frozen=True)
class Block:
    """A generated block of a page.

    Attributes:
        make: returns its Markdown.
        needed: the runs whose results it shows.
        commands: whether it begins with the runs' commands.
    """

    make: Callable[[Results], str]
    needed: tuple[str, ...]
    commands: bool = False


def shown(present: Callable[[Result, Path | None], str], name: str) -> Block:
    """Return a block with one run's command, tables and charts."""
    return Block(lambda results: present(results[name], results.charts), (name,), commands=True)


def run_case(name: str, case: Any, argv: Sequence[str]) -> None:
    """Run a case, show its figures, and print the last line.

    Args:
        case: the module.
        argv: the command line after the case's name.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=case.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", choices=("full", "small"), default="full", help="small: about a minute, to try it")
    case.options(parser)
    if parser.parse_known_args(argv)[0].size == "small":
        parser.set_defaults(**case.SMALL)
    arguments = parser.parse_args(argv)
    load = load_before()
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-", ignore_cleanup_errors=True) as directory:
        file = Path(directory) / "findings.jsonl"
        with findings_in(file) if arguments.size == "small" else nullcontext():
            outcome = case.run(arguments, Path(directory))
        findings = read_findings(file)
    examined = {"examined": findings.queries, "findings": findings.wrong} if arguments.size == "small" else {}
    last = json.dumps({**outcome.result(), **examined, "load_before": load})
    print(f"\n{case.present(json.loads(last), None)}\n")
    for line in outcome.wrong:
        print(f"WRONG RESULTS: {line}")
    for query, rule, message in findings.wrong:
        print(f"THE DOCTOR FINDS ({rule}) in {query}: {message}")
    print(last, flush=True)
    if outcome.wrong:
        sys.exit(1)
