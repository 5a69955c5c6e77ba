# SPDX-License-Identifier: Apache-2.0
"""The command line: ``python -m benchmarks CASE [--size small]``, and ``list``, ``run`` and ``report``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.cases import CASES, load
from benchmarks.harness.case import run_case
from benchmarks.harness.process import adopt_orphans, find_pillarbox

USAGE = """python -m benchmarks CASE [OPTIONS]   run a case; CASE --help says what it compares, and how
       python -m benchmarks list             list the cases
       python -m benchmarks run [NAME ...]   run those of which the pages show figures, all or some; keep their results
       python -m benchmarks report           write the kept figures into README.md and the pages of docs"""


def main(argv: Sequence[str]) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", usage=USAGE, description=__doc__)
    parser.add_argument("what", choices=(*CASES, "list", "run", "report"), metavar="CASE")
    what = parser.parse_args(argv[:1]).what
    find_pillarbox()
    adopt_orphans()
    if what in CASES:
        run_case(what, load(what), argv[1:])
    elif what == "list":
        for name in CASES:
            print(f"  {name:12}{load(name).__doc__.partition(chr(10))[0]}")
    else:
        from benchmarks.report import pages, results

        if what == "run":
            if unknown := set(argv[1:]) - set(results.RUNS):
                parser.error(f"{', '.join(sorted(unknown))}: known are {', '.join(results.RUNS)}")
            results.run(argv[1:] or list(results.RUNS))
        pages.write()


if __name__ == "__main__":
    main(sys.argv[1:])
