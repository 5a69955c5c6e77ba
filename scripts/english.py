# SPDX-License-Identifier: Apache-2.0
"""Find phrases in documentation, docstrings and comments at which a native reader of English stops.

``python -m scripts.english`` checks the files of this repository, and ``python -m scripts.english FILE ...`` those that
you name. Rewrite the sentence that it finds: name the actor and the thing, and do not merely swap a word. List a place
that is right as it stands in ``docs/site/english.txt``, as ``FILE: WORDS``, where WORDS are a part of the line and have
the phrase.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
INTENDED = ROOT / "docs" / "site" / "english.txt"
CHECKED = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "docs/**/*.ipynb", "changes/*.md", "src/**/*.py")
# Other programs write these pages, and their words come from the code.
GENERATED = ("docs/error-index.md", "docs/api/", "docs/benchmarks/")

# A pattern by its name, and what to write instead. Case does not matter, except at the start of a sentence.
PATTERNS = {
    "behind": (r"(?<!is )(?<!lags )(?<!left )(?<!falls )\bbehind (?!a proxy|the scenes|by\b)", "'after', for order"),
    "go on": (r"\b(?:goes|go|went|gone|going) on\b(?! the\b)", "'resumes', 'continues', 'advances'"),
    "in place of": (r"\bin (?:the )?place of\b", "'instead of'"),
    "before, as a noun": (r"\b(?:of|from) before\b", "'earlier', 'previous', 'existing'"),
    "anew": (r"\banew\b", "'again', 'from scratch', or a verb such as 'rewrite'"),
    "stand-in": (r"\b(?:the one (?:that|which|who)|such (?:a )?ones?)\b", "repeat the noun"),
    "that of": (
        # A comparison, an enumeration and a predicate may stand for a noun that is near.
        "".join(f"(?<!{word} )" for word in ("than", "from", "as", "like", "to", "with", "and", "or", "is", "are"))
        + r"\b(?:that|those) of\b(?! (?:which|whom)\b)",
        "repeat the noun",
    ),
    "clause as a noun": (r"(?-i:(?:^|[.;:] )(?:What|Who|Whoever) [a-z]+(?: [a-z']+)+(?![\w ?']*\?))", "name the thing"),
    "inverted": (r"(?-i:\b(?:Undone|Plain|Left|Gone|Kept|Given|Refused) (?:is|are)\b)", "put the subject first"),
    "sentence": (r"\bsentences?\b", "'message', 'error message'"),
    "floor": (r"(?<!\.)\bfloors?\b", "'layer'"),
    "beside": (r"\bbeside\b", "'next to', 'besides', 'compared with'"),
    "one thing more": (r"\b(?:a|one) (?!little|bit)\w+ more\b(?! than)", "'another ...', 'one more ...'"),
    "is there": (
        r"(?-i:\b(?:is|are|was|were) (?:not |already |still )?there\b)",
        "'exists', 'is missing'",
    ),
    "not an idiom": (r"\b(?:as forth|by far not|since then|holds? (?:them|it|you) to it)\b", "say it in other words"),
    "come to": (r"\bcomes? to\b(?! an?\b)", "'amounts to', 'reaches', 'happens to'"),
}
_COMPILED = {name: re.compile(pattern, re.IGNORECASE) for name, (pattern, _) in PATTERNS.items()}
_CODE_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")


class Place(NamedTuple):
    """A line with a phrase to look at."""

    file: str
    line: int
    name: str
    phrase: str
    text: str


def prose(file: str, text: str) -> Iterator[tuple[int, str]]:
    """Return the lines of a file that people read, with their numbers.

    Of Python, these are the docstrings and comments; of a notebook, the cells of text, whose lines are counted alone.
    """
    if file.endswith(".ipynb"):
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    lines = _of_python(text) if file.endswith(".py") else _of_markdown(text)
    return ((number, _CODE_SPAN.sub("`", line)) for number, line in lines)


def find(file: str, text: str) -> Iterator[Place]:
    """Return the places in the text of a file. A phrase may go over the end of a line; it counts where it begins."""
    marks = "#: " if file.endswith(".py") else " "
    lines = {number: line.lstrip(marks).rstrip() for number, line in prose(file, text)}
    for number, line in lines.items():
        before = f"{lines[number - 1]} " if lines.get(number - 1) else ""
        joined = f"{before}{line} {lines.get(number + 1, '')}"
        for name, pattern in _COMPILED.items():
            for match in pattern.finditer(joined):
                if 0 <= match.start() - len(before) < len(line):
                    yield Place(file, number, name, match[0].strip(), joined)


def check(places: Iterable[Place], intended: Sequence[str]) -> Iterator[str]:
    """Return a message for each place that is not intended, and for each intended one that was not found."""
    unused = set(intended)
    for place in places:
        found = {entry for entry in intended if _covers(entry, place)}
        unused -= found
        if not found:
            yield f"{place.file}:{place.line}: {place.phrase!r}: write {PATTERNS[place.name][1]}"
    yield from (f"{INTENDED.relative_to(ROOT)}: remove {each!r}: there is no such place" for each in sorted(unused))


def _covers(entry: str, place: Place) -> bool:
    file, _, words = entry.partition(": ")
    return file == place.file and words in place.text and place.phrase in words


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


def _of_python(text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        # Docstrings, also of attributes.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            assert node.end_lineno is not None
            for number in range(node.lineno, node.end_lineno + 1):
                if not lines[number - 1].lstrip().startswith((">>>", "...")):
                    yield number, lines[number - 1]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def main(arguments: Sequence[str]) -> int:
    """Print the messages for the files; return how many there are, up to what an exit code can say."""
    found = {path.relative_to(ROOT).as_posix() for pattern in CHECKED for path in ROOT.glob(pattern)}
    files = list(arguments) or sorted(file for file in found if not file.startswith(GENERATED))
    places = [place for file in files for place in find(file, (ROOT / file).read_text())]
    written = [line for line in INTENDED.read_text().splitlines() if line and not line.startswith("#")]
    intended = [line for line in written if line.partition(": ")[0] in files]
    messages = sorted(check(places, intended))
    print("\n".join([*messages, f"{len(messages)} places"]) if messages else "English: nothing found")
    return min(len(messages), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
