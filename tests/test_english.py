"""``scripts/english.py`` finds phrases at which a native reader stops, and knows the places that are intended."""

from __future__ import annotations

import json

import pytest

from scripts.english import INTENDED, PATTERNS, Place, check, find

# By the name of a pattern: sentences that it finds, and sentences that it does not.
EXAMPLES: dict[str, tuple[list[str], list[str]]] = {
    "behind": (
        ["A task behind a shuffle has state.", "Behind it the rows are merged."],
        [
            "The watermark is behind by days.",
            "It falls behind.",
            "It is behind a proxy.",
            "What each start left behind is removed.",
        ],
    ),
    "go on": (
        ["The query goes on with batch 1.", "What user code may go on changing."],
        ["The query resumes.", "The commands go on the same line."],
    ),
    "in place of": (
        ["A tuple in place of a row.", "None in the place of a large row."],
        ["The state is changed in place.", "A tuple instead of a row."],
    ),
    "before, as a noun": (
        ["The names of before are lost.", "A request from before the start."],
        ["The earlier names are lost.", "The copy of the row, before it changes."],
    ),
    "anew": (["All state is written anew."], ["All state is rewritten.", "A new query renews the lease."]),
    "stand-in": (
        ["Return the one that was asked for.", "It has no such one.", "Such ones are refused."],
        ["Return the key that was asked for.", "There is one that fits.", "It has no such property."],
    ),
    "that of": (
        ["Return those of a level.", "The mean, that of the group, is kept."],
        ["The cost is lower than that of Spark.", "Its names and those of Flink.", "The index is that of a group."],
    ),
    "clause as a noun": (
        ["What expires goes at once.", "It ends. Who reads it may stop."],
        ["What is a large payment?", "The state that expires is removed at once.", "- What it costs"],
    ),
    "inverted": (["Left are two records.", "Undone is all of it."], ["Two records are left.", "Plain text is read."]),
    "sentence": (["The command prints a sentence."], ["The command prints an error message."]),
    "floor": (["Each floor has tests of its own."], ["Each layer has tests of its own.", "math.floor"]),
    "beside": (["A file beside the checkpoint."], ["A file next to the checkpoint.", "Nothing besides the key."]),
    "one thing more": (
        ["An accumulator with one element more.", "Keep a core more."],
        ["An accumulator with another element.", "Keep one core more than you need.", "It takes a little more."],
    ),
    "is there": (
        ["The column is not there.", "The mails that are there are run."],
        ["The column does not exist.", "Is there a column?", "There are mails."],
    ),
    "not an idiom": (["Since then it runs.", "Tests hold it to it."], ["From then on it runs.", "Tests check it."]),
    "come to": (
        ["The tasks come to the same state.", "Event time has come to its end, which comes to the same."],
        ["The tasks reach the same state.", "The query comes to an end."],
    ),
}


def names(file: str, text: str) -> list[str]:
    return [place.name for place in find(file, text)]


def test_each_pattern_has_examples():
    assert EXAMPLES.keys() == PATTERNS.keys()


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_finds_what_is_bad_and_leaves_what_is_good(name):
    bad, good = EXAMPLES[name]
    for sentence in bad:
        assert name in names("page.md", sentence), sentence
    for sentence in good:
        assert name not in names("page.md", sentence), sentence


def test_a_phrase_may_go_over_the_end_of_a_line():
    (place,) = find("page.md", "A tuple in\nplace of a row.\n")
    assert (place.line, place.name) == (1, "in place of")
    (place,) = find("module.py", "# None in the\n# place of a row\n")
    assert (place.line, place.name) == (1, "in place of")
    assert list(find("page.md", "The cost is lower than\nthat of Spark.\n")) == []


def test_of_markdown_only_prose_counts():
    page = "`anew`\n\n```python\nanew\n```\n\n<!-- begin figures -->\nanew\n<!-- end figures -->\n\nIt begins anew.\n"
    assert [place.line for place in find("page.md", page)] == [11]


def test_of_python_only_docstrings_and_comments_count():
    module = '''"""Begin anew."""

anew = "anew"
"""Written anew."""


def again():
    """Write it ``anew``.

    Then anew.

    >>> anew
    """
    return anew  # or anew
'''
    assert sorted(place.line for place in find("module.py", module)) == [1, 4, 10, 14]


def test_a_new_place_and_an_entry_without_a_place_are_errors():
    def place(text: str) -> Place:
        return Place("page.md", 3, "anew", "anew", text)

    assert list(check([place("It begins anew.")], ["page.md: begins anew"])) == []
    (found,) = check([place("It begins anew."), place("All is written anew.")], ["page.md: begins anew"])
    assert found.startswith("page.md:3: 'anew': write 'again'")
    (found,) = check([], ["page.md: begins anew"])
    assert found == "docs/site/english.txt: remove 'page.md: begins anew': there is no such place"
    assert len(list(check([place("It begins anew.")], ["other.md: begins anew"]))) == 2


def test_each_entry_is_of_a_file_that_exists():
    root = INTENDED.parents[2]
    entries = [line for line in INTENDED.read_text().splitlines() if line and not line.startswith("#")]
    assert entries
    assert [entry for entry in entries if not (root / entry.partition(": ")[0]).is_file()] == []


def test_of_a_notebook_the_cells_of_text_are_read():
    cells = [
        {"cell_type": "markdown", "source": ["# A title\n", "Words"]},
        {"cell_type": "code", "source": ["# It goes on here"]},
        {"cell_type": "markdown", "source": ["It goes on there.\n", "```\n", "It goes on.\n", "```"]},
    ]
    (place,) = find("docs/notebooks/x.ipynb", json.dumps({"cells": cells}))
    assert (place.line, place.phrase) == (4, "goes on")
