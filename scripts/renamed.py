#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replaces modules' old names in programs, tests and pages with new names, from ``renames.csv``.

``scripts/renamed.py FILE ...`` rewrites the files. With ``-``, it rewrites standard input to standard output.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

TABLE = Path(__file__).with_name("renames.csv")


def renamed(text: str, table: dict[str, str]) -> str:
    """Return a text with new names, in dotted names, paths, and ``from package import module``."""
    text = re.sub(
        r"^([ \t]*)from ([\w.]+) import ([^\n(#]+|\([^)]*\))", lambda match: _split(match, table), text, flags=re.M
    )
    for old, new in sorted(table.items(), key=lambda names: -len(names[0])):
        text = re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", new, text)
        for suffix in (".py", "/"):
            old_path, new_path = (name.replace(".", "/") + suffix for name in (old, new))
            text = re.sub(rf"(?<!\w){re.escape(old_path)}", new_path, text)
    return text


def _split(statement: re.Match[str], table: dict[str, str]) -> str:
    """Rewrite an import whose names have moved to different modules."""
    indent, module, names = statement.groups()
    sources: dict[str, list[str]] = {}
    for name in re.findall(r"\w+(?: as \w+)?", re.sub(r"#[^\n]*", "", names)):
        plain = name.partition(" as ")[0]
        new = table.get(f"{module}.{plain}", f"{module}.{plain}")
        package, _, last = new.rpartition(".")
        alias = name.partition(" as ")[2] or plain
        sources.setdefault(package, []).append(last if last == alias else f"{last} as {alias}")
    if not sources or list(sources) == [module]:  # nothing moves; after ``import *``, modules are renamed as usual
        return statement[0]
    return "\n".join(f"{indent}from {package} import {', '.join(names)}" for package, names in sources.items())


def read_table() -> dict[str, str]:
    """Return the new name of each old name."""
    with TABLE.open(newline="") as lines:
        return {row["old"]: row["new"] for row in csv.DictReader(lines)}


def main(names: list[str]) -> None:
    """Rewrite files."""
    table = read_table()
    if names == ["-"]:
        sys.stdout.write(renamed(sys.stdin.read(), table))
        return
    for name in names:
        path = Path(name)
        text = path.read_text()
        if (new := renamed(text, table)) != text:
            path.write_text(new)


if __name__ == "__main__":
    main(sys.argv[1:])
