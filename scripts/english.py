# SPDX-License-Identifier: Apache-2.0
"""Counts phrases and names that make a native reader of English stop. No folder may have more of them than before.

``python -m scripts.english`` compares each folder's counts with ``docs/site/english.json`` and fails if one rises.
``--write`` records the counts, unless a total rises. ``--show PATTERN PATH ...`` prints every occurrence of a pattern.

To remove an occurrence, name the thing or the actor; do not merely exchange a word.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "docs" / "site" / "english.json"
CHECKED = ("*.md", "docs/**/*.md", "docs/**/*.ipynb", "changes/*.md", "*/**/*.py")
# Generated pages, whose text is in other files. CHANGELOG is history.
EXEMPT = ("docs/error-index.md", "docs/api/", "docs/benchmarks/", "CHANGELOG.md", "build/", "dist/")

_PREPOSITION = "of|by|from|for|to|in|under|with|at|on|into|through|after|before"
# Patterns by name. They ignore case.
PATTERNS = {
    "what": r"\bwhat (?!is (?:this|it)\b|does\b|do\b|to\b|if\b|kind\b)\w+",
    "those": r"\bthose\b|\bones\b|\bthe one\b(?! (?:hand|side|time))|\bthat of\b",
    "tells": r"\b(?:is|are|was|were|be|been|being|has|have) told\b|\b(?:tells?|says?|said)\b",
    "comes": r"\b(?:comes?|came|goes|gone|went)\b",
    "None:": r";\s+(?:None|0|1|-1|True|False|empty|else|or None)\s*:",
    "of which": rf"\b(?:{_PREPOSITION}) (?:which|whom|whose)\b",
    "of Spark's": r"\bof (?:Spark|Python|Flink|Arrow|PySpark|Java|pandas|numpy|the (?:user|query|program|task|operator|"
    r"key))'s\b|\bof (?:ours|theirs|its own|hers|his)\b",
    "none": r"(?-i:\bnone\b)(?! of)",
    "where": r"\bwhere (?:there|it|they|that|this|none|no|nothing|a|an|one)\b",
    "nobody": r"\b(?:nobody|whoever|somebody|whatever|whichever)\b",
}
# Local names that do not describe their value.
ODD_NAMES = frozenset(
    {
        "found",
        "told",
        "said",
        "known",
        "wanted",
        "given",
        "taken",
        "kept",
        "mine",
        "made",
        "one",
        "ones",
        "those",
        "place",
        "each",
    }
)
NAMES = "names"

_COMPILED = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in PATTERNS.items()}
_ANY = re.compile("|".join(PATTERNS.values()), re.IGNORECASE)
_CODE_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
# A comment of its own, or after code: no code of ours has "  # " in a string.
_COMMENT = re.compile(r"^\s*#.*|  # .*")
_MOST_SHOWN = 20

Counts = Mapping[str, Mapping[str, int]]


class Occurrence(NamedTuple):
    """An occurrence of a phrase or name."""

    file: str
    line: int
    pattern: str
    phrase: str


def prose(file: str, text: str, tree: ast.Module | None = None) -> Iterator[tuple[int, str]]:
    """Yield a file's lines of prose, with their numbers.

    Python's are docstrings and comments; a notebook's are its Markdown cells, numbered without the others.
    """
    if file.endswith(".ipynb"):
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    lines = _of_markdown(text) if tree is None else _of_python(text, tree)
    return ((number, _CODE_SPAN.sub("`", line)) for number, line in lines)


def find(file: str, text: str) -> Iterator[Occurrence]:
    """Yield the occurrences in a file. A phrase may continue on the next line; it counts where it begins."""
    marks = "#: " if file.endswith(".py") else " "
    tree = ast.parse(text) if file.endswith(".py") else None
    lines = {number: line.lstrip(marks).rstrip() for number, line in prose(file, text, tree)}
    for number, line in lines.items():
        joined = f"{line} {lines.get(number + 1, '')}"
        if _ANY.search(joined) is None:
            continue
        for pattern, compiled in _COMPILED.items():
            for match in compiled.finditer(joined):
                if match.start() < len(line):
                    yield Occurrence(file, number, pattern, match[0].strip())
    if tree is not None:
        yield from odd_names(file, tree)


def odd_names(file: str, tree: ast.Module) -> Iterator[Occurrence]:
    """Yield a module's variables and parameters with odd names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in ODD_NAMES:
            yield Occurrence(file, node.lineno, NAMES, node.id)
        elif isinstance(node, ast.arg) and node.arg in ODD_NAMES:
            yield Occurrence(file, node.lineno, NAMES, node.arg)


def count(occurrences: Iterable[Occurrence]) -> dict[str, dict[str, int]]:
    """Count occurrences by folder and pattern."""
    counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for occurrence in occurrences:
        counters[Path(occurrence.file).parent.as_posix()][occurrence.pattern] += 1
    return {folder: dict(sorted(counters[folder].items())) for folder in sorted(counters)}


def check(occurrences: Sequence[Occurrence], recorded: Counts) -> Iterator[str]:
    """Yield a message, with the occurrences, for each count that exceeds its recorded count."""
    for folder, counts in count(occurrences).items():
        for pattern, number in counts.items():
            limit = recorded.get(folder, {}).get(pattern, 0)
            if number > limit:
                yield f"{folder}: {number} places of {pattern!r}, {limit} before: rewrite what is new"
                shown = [p for p in occurrences if p.pattern == pattern and Path(p.file).parent.as_posix() == folder]
                yield from (f"  {file}:{line}: {phrase!r}" for file, line, _, phrase in shown[:_MOST_SHOWN])


def risen(counts: Counts, recorded: Counts) -> list[str]:
    """Return the patterns whose totals have risen."""
    now, before = (sum(map(Counter, table.values()), Counter()) for table in (counts, recorded))
    return sorted(pattern for pattern in now if now[pattern] > before[pattern])


def _of_markdown(text: str) -> Iterator[tuple[int, str]]:
    fence = ""
    generated = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(fence or ("```", "~~~")):
            fence = "" if fence else line.lstrip()[:3]
        elif line.startswith(("<!-- begin", "<!-- end")):
            generated = line.startswith("<!-- begin")
        elif not fence and not generated:
            yield number, line


def _of_python(text: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    in_strings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            in_strings.update(range(node.lineno, (node.end_lineno or 0) + 1))
        # Docstrings, also of attributes.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            assert node.end_lineno is not None
            for number in range(node.lineno, node.end_lineno + 1):
                if not lines[number - 1].lstrip().startswith((">>>", "...")):
                    yield number, lines[number - 1]
    for number, line in enumerate(lines, 1):
        comment = _COMMENT.search(line)
        if comment is not None and number not in in_strings:
            yield number, comment[0]


def _files(paths: Sequence[str]) -> list[str]:
    files = {path.relative_to(ROOT).as_posix() for pattern in CHECKED for path in ROOT.glob(pattern)}
    checked = (file for file in files if not file.startswith((*EXEMPT, ".")) and "/." not in file)
    return sorted(file for file in checked if not paths or file.startswith(tuple(paths)))


def _occurrences(paths: Sequence[str] = ()) -> list[Occurrence]:
    return [phrase for file in _files(paths) for phrase in find(file, (ROOT / file).read_text(encoding="utf-8"))]


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if arguments[:1] == ["--show"]:
        for occurrence in _occurrences(arguments[2:]):
            if occurrence.pattern == arguments[1]:
                print(f"{occurrence.file}:{occurrence.line}: {occurrence.phrase!r}")
        return 0
    occurrences, recorded = _occurrences(), json.loads(RECORDED.read_text())
    messages = list(check(occurrences, recorded))
    if arguments == ["--write"]:
        counts = count(occurrences)
        messages = [f"{pattern!r}: the total has risen" for pattern in risen(counts, recorded)]
        if not messages:
            lines = (f"{json.dumps(folder)}: {json.dumps(counts[folder])}" for folder in counts)
            RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print("\n".join(messages) if messages else "English: no count has risen")
    return min(len(messages), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
