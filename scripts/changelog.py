"""Writes a release's section of CHANGELOG.md from the fragments in ``changes/`` and the section ``[Unreleased]``.

``changes/README.md`` explains fragments. Run it with ``make changelog VERSION=0.2.0``.
"""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Mapping
from pathlib import Path

HOME = Path(__file__).parents[1]
# The kinds of https://keepachangelog.com, in its order.
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
NAME = re.compile(rf"[a-z0-9]+(?:-[a-z0-9]+)*\.({'|'.join(KINDS)})\.md")


def release(changelog: str, fragments: Mapping[str, str], version: str, day: datetime.date) -> str:
    """Return the changelog with a section for a version.

    Args:
        changelog: the present text, with a section ``## [Unreleased]``.
        fragments: the fragments' texts, by file name.
        version: such as ``0.2.0``.
        day: the release date.
    """
    before, title, rest = changelog.partition("## [Unreleased]\n")
    if not title:
        raise ValueError("CHANGELOG.md has no section '## [Unreleased]': add it after the introduction")
    unreleased, newer, older = rest.partition("\n## [")
    introduction, *sections = re.split(r"^### (?=\w+$)", unreleased, flags=re.MULTILINE)
    points = dict.fromkeys(KINDS, "")
    for section in sections:
        kind, _, text = section.partition("\n")
        points[kind.lower()] = text.strip()
    for name, text in sorted(fragments.items()):
        match = NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"changes/{name}: name it NAME.KIND.md, where KIND is one of {', '.join(KINDS)}")
        kind = match[1]
        point = "- " + text.strip().replace("\n", "\n  ")
        separator = "\n" if points[kind].rpartition("\n")[2].startswith(("- ", "  ")) else "\n\n"
        points[kind] += separator + point if points[kind] else point
    parts = [introduction.strip(), *(f"### {kind.title()}\n\n{text}" for kind, text in points.items() if text)]
    body = "\n\n".join(part for part in parts if part)
    return f"{before}{title}\n## [{version}] - {day:%Y-%m-%d}\n\n{body}\n{newer}{older}"


def main(version: str) -> None:
    """Write CHANGELOG.md, and remove its fragments from ``changes/``."""
    paths = [path for path in (HOME / "changes").glob("*.md") if path.name != "README.md"]
    changelog = HOME / "CHANGELOG.md"
    fragments = {path.name: path.read_text() for path in paths}
    changelog.write_text(release(changelog.read_text(), fragments, version, datetime.date.today()))
    for path in paths:
        path.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
