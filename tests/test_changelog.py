from __future__ import annotations

import datetime
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DAY = datetime.date(2030, 1, 2)
BEFORE = """\
# Changelog

## [Unreleased]

Words.

### Added

#### Windows

- Sessions.

## [0.1.0] - 2029-01-01

### Added

- All.
"""
AFTER = """\
# Changelog

## [Unreleased]

## [0.2.0] - 2030-01-02

Words.

### Added

#### Windows

- Sessions.
- Joins.

### Fixed

- A line
  and another.
- Leap days.

## [0.1.0] - 2029-01-01

### Added

- All.
"""
FRAGMENTS = {
    "leap-days.fixed.md": "Leap days.\n",
    "a-line.fixed.md": "A line\nand another.",
    "joins.added.md": "Joins.",
}


@pytest.fixture(scope="module")
def changelog() -> Any:
    spec = importlib.util.spec_from_file_location("changelog", ROOT / "scripts" / "changelog.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_release_has_the_fragments_and_what_was_unreleased(changelog):
    assert changelog.release(BEFORE, FRAGMENTS, "0.2.0", DAY) == AFTER


def test_a_second_release_has_only_what_is_new(changelog):
    text = changelog.release(AFTER, {"x.security.md": "Keys."}, "0.3.0", DAY)
    assert text == AFTER.replace("## [0.2.0]", "## [0.3.0] - 2030-01-02\n\n### Security\n\n- Keys.\n\n## [0.2.0]")


@pytest.mark.parametrize("name", ["joins.md", "joins.new.md", "Joins.added.md", "the joins.added.md"])
def test_a_fragment_of_another_name_is_refused(changelog, name):
    with pytest.raises(ValueError, match=re.escape(f"changes/{name}: name it NAME.KIND.md")):
        changelog.release(BEFORE, {name: "Joins."}, "0.2.0", DAY)


def test_a_changelog_without_the_section_is_refused(changelog):
    with pytest.raises(ValueError, match="add it after the introduction"):
        changelog.release("# Changelog\n", FRAGMENTS, "0.2.0", DAY)


def test_the_fragments_here_make_a_release(changelog):
    fragments = {path.name: path.read_text() for path in (ROOT / "changes").iterdir() if path.name != "README.md"}
    released = changelog.release((ROOT / "CHANGELOG.md").read_text(), fragments, "99.0.0", DAY)
    assert [name for name, text in fragments.items() if re.match(r"\s*([-#]|$)", text)] == []
    assert all(text.strip().splitlines()[0] in released for text in fragments.values())
