# SPDX-License-Identifier: Apache-2.0
"""Counts lines of Python: all lines, and lines of code (without docstrings, comments and blank lines).

``python scripts/lines.py [FOLDER ...]`` prints a table by folder, by default of the core, the tools, ``tests``,
``benchmarks``, ``examples`` and ``scripts``. ``--deep N`` has a row for each path of N parts. The last rows are the
dashboard's scripts and templates.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ["src/pillarbox", "src/pillarbox_tools", "tests", "benchmarks", "examples", "scripts"]
STATIC = ROOT / "src" / "pillarbox_tools" / "dashboard" / "static"
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def lines_of_code(source: str) -> int:
    """Return the number of a module's lines of code. Strings that are statements, such as docstrings, are not code."""
    texts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            assert node.end_lineno is not None
            texts.update(range(node.lineno, node.end_lineno + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - texts)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    parser.add_argument("--deep", type=int, default=1, help="how many parts of a path name a row")
    arguments = parser.parse_args()
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for folder in arguments.folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text()
            parts = path.relative_to(ROOT).parent.parts[: max(arguments.deep, len(Path(folder).parts))]
            row = counts["/".join(parts)]
            for i, more in enumerate((1, source.count("\n"), lines_of_code(source))):
                row[i] += more
    total = [sum(row[i] for row in counts.values()) for i in range(3)]
    width = max(len(name) for name in [*counts, "all"])
    print(f"{'':{width}}  {'files':>7}  {'lines':>8}  {'code':>8}")
    for name, (files, lines, code) in [*sorted(counts.items()), ("all", total)]:
        print(f"{name:{width}}  {files:7,}  {lines:8,}  {code:8,}")
    for kind, suffixes in (("JavaScript", (".js",)), ("templates", (".html", ".css"))):
        paths = [path for path in sorted(STATIC.iterdir()) if path.suffix in suffixes]
        print(f"{kind:{width}}  {len(paths):7,}  {sum(path.read_text().count(chr(10)) for path in paths):8,}")


if __name__ == "__main__":
    main()
