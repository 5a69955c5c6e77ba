# SPDX-License-Identifier: Apache-2.0
"""Writes the index of errors: ``python -m scripts.error_index`` runs the wrong programs of ``tests/errors``.

What they make pillarbox say, is in ``docs/error-index.md``. A test holds that the page is up to date.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from pillarbox import OperatorError, PillarboxError, StreamExecutionEnvironment
from tests.errors.wrong_joins import JOIN_BUILDS
from tests.errors.wrong_settings import SETTINGS_BUILDS
from tests.errors.wrong_two_inputs import TWO_INPUT_BUILDS, TWO_INPUT_RUNS
from tests.errors.wrong_uses import BUILDS, RUNS, rows
from tests.errors.wrong_windows import WINDOW_BUILDS, WINDOW_RUNS

PAGE = Path(__file__).parents[1] / "docs" / "error-index.md"
HEAD = """\
# Index of errors

<!-- Written by `python -m scripts.error_index`; do not edit. -->

This page has what pillarbox says about programs that are wrong: search it for a part of your error. Names, values and
types are those of the examples. Nothing is lost by any of these errors: those of the first part come before anything
runs, and those of the second part fail the epoch, which is not committed. Each error says what to do. For everything
else see [Something is wrong](troubleshooting.md).
"""
PARTS = {
    "While the program is built": "Raised by the line of your program that is wrong.",
    "While the program runs": "Raised by the task, at the record that does not fit. An error of your own function reads"
    " `operator 'NAME' failed at the record RECORD (subtask N): ` and then your error, with your own frames.",
}


def _said(case: Any, *, runs: bool) -> PillarboxError | None:
    """Return pillarbox's error of a wrong program; None: the error is the function's own."""
    env = StreamExecutionEnvironment()
    try:
        if runs:
            case.program(rows(env)).execute_and_collect()
        else:
            case.program(env)
    except PillarboxError as error:
        return None if type(error) is OperatorError and case.frame else error
    except BaseException as error:
        if runs:
            return None
        raise AssertionError(f"{case.name} raised no error of pillarbox's") from error
    raise AssertionError(f"{case.name} raised nothing")


def page() -> str:
    """Return the text of the page."""
    text = [HEAD]
    tables: tuple[list[Any], ...] = (
        [*BUILDS, *SETTINGS_BUILDS, *WINDOW_BUILDS, *TWO_INPUT_BUILDS, *JOIN_BUILDS],
        [*RUNS, *WINDOW_RUNS, *TWO_INPUT_RUNS],
    )
    for (title, introduction), table in zip(PARTS.items(), tables):
        found: defaultdict[str, set[str]] = defaultdict(set)
        for case in table:
            error = _said(case, runs=title.endswith("runs"))
            if error is not None:
                found[type(error).__name__].add(_line(str(error)))
        text += [f"## {title}", "", introduction, ""]
        for kind, lines in sorted(found.items()):
            text += [f"### {kind}", "", *(f"- {line}" for line in sorted(lines, key=str.lower)), ""]
    return "\n".join(text)


def _line(error: str) -> str:
    """Return an error as code, without addresses of objects."""
    first = re.sub(r" at 0x[0-9a-f]+", " at 0x...", error.splitlines()[0])
    ticks = "``" if "`" in first else "`"
    space = " " if first.startswith("`") or first.endswith("`") else ""
    return f"{ticks}{space}{first}{space}{ticks}"


if __name__ == "__main__":
    PAGE.write_text(page())
