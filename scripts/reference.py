# SPDX-License-Identifier: Apache-2.0
"""Writes the reference pages: ``python -m scripts.reference``. A test checks that they are up to date.

``docs/error-index.md`` contains the errors of the wrong programs in ``tests/errors``, and ``docs/command-line.md`` the
help of each command.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from pillarbox import OperatorError, PillarboxError, StreamExecutionEnvironment
from pillarbox_tools.cli.all_commands import commands as pillarbox
from tests.errors.wrong_joins import JOIN_BUILDS
from tests.errors.wrong_settings import SETTINGS_BUILDS
from tests.errors.wrong_two_inputs import TWO_INPUT_BUILDS, TWO_INPUT_RUNS
from tests.errors.wrong_uses import BUILDS, RUNS, rows
from tests.errors.wrong_windows import WINDOW_BUILDS, WINDOW_RUNS

DOCS = Path(__file__).parents[1] / "docs"
HEAD = """\
# Index of errors

<!-- Written by `python -m scripts.reference`; do not edit. -->

Search this page for a part of your error. Names, values and types are from examples. Errors of the first part occur
before anything runs. Errors of the second part fail the epoch, which is not committed, so nothing is lost. For other
problems, see [Something is wrong](troubleshooting.md).
"""
PARTS = {
    "While the program is built": "Raised by the line of your program that is wrong.",
    "While the program runs": "Raised by the task, at the record that does not fit. An error of your function begins"
    " with `operator 'NAME' failed at the record RECORD (subtask N): `, and continues with your error and traceback.",
}


def _error_of(case: Any, *, runs: bool) -> PillarboxError | None:
    """Return the error that pillarbox raises for a wrong program, or None if the function itself raises."""
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


def error_index() -> str:
    """Return the page of errors."""
    text = [HEAD]
    tables: tuple[list[Any], ...] = (
        [*BUILDS, *SETTINGS_BUILDS, *WINDOW_BUILDS, *TWO_INPUT_BUILDS, *JOIN_BUILDS],
        [*RUNS, *WINDOW_RUNS, *TWO_INPUT_RUNS],
    )
    for (title, introduction), table in zip(PARTS.items(), tables):
        messages: defaultdict[str, set[str]] = defaultdict(set)
        for case in table:
            error = _error_of(case, runs=title.endswith("runs"))
            if error is not None:
                messages[type(error).__name__].add(_line(str(error)))
        text += [f"## {title}", "", introduction, ""]
        for kind, lines in sorted(messages.items()):
            text += [f"### {kind}", "", *(f"- {line}" for line in sorted(lines, key=str.lower)), ""]
    return "\n".join(text)


def _line(error: str) -> str:
    """Return an error as Markdown code, without objects' addresses."""
    first = re.sub(r" at 0x[0-9a-f]+", " at 0x...", error.splitlines()[0])
    ticks = "``" if "`" in first else "`"
    space = " " if first.startswith("`") or first.endswith("`") else ""
    return f"{ticks}{space}{first}{space}{ticks}"


COMMANDS = """\
# Command line

<!-- Written by `python -m scripts.reference`; do not edit. -->

`pip install './pillarbox[cli]'` brings the command `pillarbox`; `python -m pillarbox` is the same.
[Operating a query](operations.md) says when to use which command.
"""


def command_line() -> str:
    """Return the page with each command's help."""
    text = [COMMANDS]
    wide: dict[str, Any] = {"resilient_parsing": True, "max_content_width": 100, "terminal_width": 100}
    group = pillarbox.make_context("pillarbox", [], **wide)
    helps = {"pillarbox": pillarbox.get_help(group)}
    for name, command in sorted(pillarbox.commands.items()):
        context = command.make_context(name, [], parent=group, **wide)
        helps[f"pillarbox {name}"] = command.get_help(context)
    for name, usage in helps.items():
        text += [f"## {name}", "", "```", usage, "```", ""]
    return "\n".join(text)


PAGES = {DOCS / "error-index.md": error_index, DOCS / "command-line.md": command_line}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page())
