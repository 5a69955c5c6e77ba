"""``scripts/english.py`` counts phrases and names by folder. ``scripts/messages.py`` prints messages."""

from __future__ import annotations

import ast
import json
import re

import pytest

from scripts.english import NAMES, ODD_NAMES, PATTERNS, ROOT, Occurrence, check, count, find, odd_names, risen
from scripts.messages import messages

# By the name of a pattern: text that it finds, and text that it does not.
EXAMPLES: dict[str, tuple[str, str]] = {
    "what": ("Return what all keys have.", "Return the contents. What does it cost?"),
    "those": ("Drop the late rows, and those of other keys.", "Drop late rows and rows of other keys."),
    "tells": ("The task is told its number.", "The task receives its number."),
    "comes": ("A record that comes late is dropped.", "A late record is dropped."),
    "None:": ("Return the key; None: it has no key.", "Return the key, or None."),
    "of which": ("The level in which the task runs.", "The task's level."),
    "of Spark's": ("A setting of Spark's.", "A Spark setting. A setting of Spark."),
    "none": ("The tag is none.", "None of the tags fits. The tag is None."),
    "where": ("Where there is a key, hash it.", "If the record has a key, hash it."),
    "nobody": ("Whoever reads it closes it.", "The reader closes it."),
}


def patterns(file: str, text: str) -> list[str]:
    return [occurrence.pattern for occurrence in find(file, text)]


def test_each_pattern_has_examples():
    assert EXAMPLES.keys() == PATTERNS.keys()


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_finds_bad_text_and_ignores_good_text(name):
    bad, good = EXAMPLES[name]
    assert name in patterns("page.md", bad)
    assert patterns("page.md", good) == []


def test_a_phrase_may_continue_on_the_next_line():
    (occurrence,) = find("page.md", "Return what\nall keys have.\n")
    assert (occurrence.line, occurrence.pattern) == (1, "what")
    (occurrence,) = find("module.py", "# Return what\n# all keys have.\n")
    assert (occurrence.line, occurrence.pattern) == (1, "what")


def test_of_markdown_only_prose_counts():
    page = "`goes`\n\n```python\ngoes\n```\n\n<!-- begin figures -->\ngoes\n<!-- end figures -->\n\nIt goes.\n"
    assert [occurrence.line for occurrence in find("page.md", page)] == [11]


def test_of_python_docstrings_comments_and_odd_names_count():
    module = '''"""It goes."""

text = "goes # goes"
"""It goes."""


def again(given):
    """Do it ``goes``.

    It goes.

    >>> goes
    """
    found = """
    # goes
    """
    return found  # it goes
'''
    assert sorted((occurrence.line, occurrence.pattern) for occurrence in find("module.py", module)) == [
        (1, "comes"),
        (4, "comes"),
        (7, NAMES),
        (10, "comes"),
        (14, NAMES),
        (17, "comes"),
    ]


def test_of_a_notebook_the_markdown_cells_are_read():
    cells = [
        {"cell_type": "markdown", "source": ["# A title\n", "Words"]},
        {"cell_type": "code", "source": ["# It goes here"]},
        {"cell_type": "markdown", "source": ["It goes there.\n", "```\n", "It goes.\n", "```"]},
    ]
    (occurrence,) = find("docs/notebooks/x.ipynb", json.dumps({"cells": cells}))
    assert (occurrence.line, occurrence.phrase) == (4, "goes")


def occurrence(folder: str, line: int = 3) -> Occurrence:
    return Occurrence(f"{folder}/page.md", line, "comes", "goes")


def test_a_count_that_rises_is_an_error_with_its_places():
    recorded = {"docs": {"comes": 1}}
    assert list(check([occurrence("docs")], recorded)) == []
    message, *places = check([occurrence("docs"), occurrence("docs", 4)], recorded)
    assert message.startswith("docs: 2 places of 'comes', 1 before")
    assert places == ["  docs/page.md:3: 'goes'", "  docs/page.md:4: 'goes'"]
    assert len(list(check([occurrence("other")], recorded))) == 2


def test_a_moved_file_is_recorded_and_a_risen_total_is_not():
    recorded = {"docs": {"comes": 1}}
    assert risen(count([occurrence("docs/howto")]), recorded) == []
    assert risen(count([occurrence("docs"), occurrence("docs/howto")]), recorded) == ["comes"]


MODULE = '''
"""Not a message."""

def run(name, log, error):
    log.warning("query %s: it is late", name)
    log.append("not a message of a log")
    option("--epoch", help="The micro-batch." + " By default, the last.")
    if name is None:
        raise ValueError(f"a name is missing: {name!r}, give one")
    raise error
'''


def test_errors_log_lines_and_help_are_messages():
    assert list(messages(ast.parse(MODULE))) == [
        (5, "query %s: it is late"),
        (7, "The micro-batch. By default, the last."),
        (9, "a name is missing: {}, give one"),
    ]


# Folders with Python. Only the packages _state and _types still have odd names.
CODE = ("src", "tests", "benchmarks", "examples", "scripts", "docs")


@pytest.mark.slow("parses 200 files; make lint counts odd names, too")
def test_no_local_name_is_odd():
    bound = re.compile(rf"\b({'|'.join(ODD_NAMES)})\b *(?:[:,=)]|in\b)")
    odd = []
    paths = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    for path in paths:
        text = path.read_text()
        if {"_state", "_types"} & {*path.parts} or bound.search(text) is None:
            continue
        tree = ast.parse(text)
        fields = {node.lineno for cls in ast.walk(tree) if isinstance(cls, ast.ClassDef) for node in cls.body}
        odd += [(path.name, name.phrase, name.line) for name in odd_names(path.name, tree) if name.line not in fields]
    assert odd == []
