# SPDX-License-Identifier: Apache-2.0
"""What a case is, and how one is run.

A case is a module. Its docstring is the method: what is compared, how, and to whose favour. It has:

- ``options(parser)``, its own options, and ``SMALL``: their values for ``--size small``, which takes about a minute and
  installs nothing: it is without the peers that need an environment of their own;
- ``run(arguments, directory)``, which measures and returns an ``Outcome``;
- ``present(result, charts)``, which shows the figures of an outcome as tables and charts in Markdown;
- ``BLOCKS``, where pages show its figures: the blocks of the pages by name.
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
    """What a case has measured.

    Attributes:
        figures: for the last line, beside the name and the ratio.
        wrong: a line for each result that is not the expected one.
    """

    name: str
    ratio: float
    figures: Mapping[str, Any]
    wrong: Sequence[str] = field(default=())

    def result(self) -> Result:
        """Return the object of the last line."""
        agree = {"results_agree": not self.wrong}
        return {"name": self.name, "ratio": round(self.ratio, 3), **agree, **self.figures, **machine()}


@dataclass(frozen=True)
class Results:
    """The results that a block is made of, by the name of their run.

    Attributes:
        runs: of each run its command, date, machine and result.
        charts: the folder into which charts are drawn; None: they are not drawn.
    """

    runs: Mapping[str, dict[str, Any]]
    charts: Path | None

    def __getitem__(self, name: str) -> Result:
        """Return the object with which a run ended."""
        result: Result = self.runs[name]["result"]
        return result

    def __contains__(self, name: object) -> bool:
        """Whether there was such a run."""
        return name in self.runs


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Attributes:
        make: its Markdown.
        needed: the runs that it is made of.
        commands: whether their commands come first.
    """

    make: Callable[[Results], str]
    needed: tuple[str, ...]
    commands: bool = False


def shown(present: Callable[[Result, Path | None], str], name: str) -> Block:
    """Return the block with the command, the tables and the charts of one run."""
    return Block(lambda results: present(results[name], results.charts), (name,), commands=True)


def run_case(name: str, case: Any, argv: Sequence[str]) -> None:
    """Run a case, show its figures, and print the last line.

    Args:
        case: the module.
        argv: the command line after the name.
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
