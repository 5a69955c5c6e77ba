# SPDX-License-Identifier: Apache-2.0
"""The findings of pillarbox's doctor about a case's queries after their end.

Collected only with ``--size small``, to detect false alarms without disturbing measurements.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

# The variable with the findings' file, for this process and its sides. Set only if findings are requested.
_FILE = "BENCHMARKS_FINDINGS"
_noticed: list[Any] = []


class Findings(NamedTuple):
    """The doctor's findings.

    Attributes:
        queries: number of examined queries that have had epochs.
        wrong: query, rule and message of each finding.
    """

    queries: int
    wrong: list[list[str]]


@contextmanager
def findings_in(file: Path) -> Iterator[None]:
    """Within the block, make this process and the sides that it starts write findings to a file."""
    os.environ[_FILE] = str(file)
    try:
        yield
    finally:
        del os.environ[_FILE]


def read_findings(file: Path) -> Findings:
    """Return the findings in a file, if any."""
    lines = file.read_text().splitlines() if file.exists() else []
    looked = [json.loads(line) for line in lines]
    return Findings(
        sum(bool(line["epochs"]) for line in looked),
        [[line["query"], *finding] for line in looked for finding in line["wrong"]],
    )


def notice_queries() -> None:
    """Register each query of pillarbox that starts in this process, if findings are requested."""
    if _FILE not in os.environ:
        return
    try:
        importlib.import_module("pillarbox_tools.doctor.rules")
        start: Any = importlib.import_module("pillarbox._runtime.spark.starting.start")
    except ImportError:  # another revision, which has no doctor
        return
    remember = start.remember

    def remember_and_notice(started: Any) -> Any:
        _noticed.append(started)
        return remember(started)

    if not hasattr(remember, "__wrapped__"):
        functools.update_wrapper(remember_and_notice, remember)
        start.remember = remember_and_notice


def examine_queries() -> None:
    """Examine the registered queries. Call this after the queries' end and before Spark's end."""
    if not _noticed:
        return
    from pillarbox._runtime.spark.running.progress_reader import ProgressReader
    from pillarbox_tools.doctor.rules import wrong
    from pillarbox_tools.watching.watched import WatchedQuery

    with Path(os.environ[_FILE]).open("a") as file:
        for started in _noticed:
            watched = WatchedQuery(started)
            watched.take(ProgressReader(started.query).new())
            findings = [[finding.rule, finding.message] for finding in wrong(watched.snapshot())]
            epochs = len(watched.snapshot().epochs)
            file.write(json.dumps({"query": started.checkpoint, "epochs": epochs, "wrong": findings}) + "\n")
    _noticed.clear()
