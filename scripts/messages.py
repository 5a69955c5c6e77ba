# SPDX-License-Identifier: Apache-2.0
"""Prints the texts that users read at run time (errors, log lines, help of commands), by module.

``python -m scripts.messages`` prints all of ``src``, ``python -m scripts.messages PATH ...`` some files or folders. The
last line is the number of phrases from ``scripts/english.py`` in these texts, per 1,000 words.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.english import ROOT, find

_LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
_TEXT_KEYWORDS = frozenset({"help", "description", "epilog"})


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, message) for each message of a module. An expression is shown as ``{}``."""
    for node in ast.walk(tree):
        texts: list[ast.expr] = []
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            texts += node.exc.args
        elif isinstance(node, ast.Call):
            texts += [keyword.value for keyword in node.keywords if keyword.arg in _TEXT_KEYWORDS]
            if isinstance(node.func, ast.Attribute) and node.func.attr in _LOG_METHODS:
                texts += node.args[:1]
        for text in texts:
            message = _text_of(text)
            if " " in message.strip():
                yield text.lineno, message


def _text_of(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        return "".join(map(str, parts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text_of(node.left) + _text_of(node.right)
    return ""


def main(arguments: Sequence[str]) -> None:
    """Print the messages in files or folders, and the number of phrases."""
    words = places = 0
    roots = [Path(argument).resolve() for argument in arguments] or [ROOT / "src"]
    for path in (file for root in roots for file in ([root] if root.is_file() else sorted(root.rglob("*.py")))):
        name = path.relative_to(ROOT).as_posix()
        for line, message in sorted(messages(ast.parse(path.read_text(encoding="utf-8")))):
            print(f"{name}:{line}: {message}")
            words += len(message.split())
            places += sum(1 for _ in find("message", message))
    print(f"{words} words, {1000 * places / max(words, 1):.1f} odd phrases per 1,000 words")


if __name__ == "__main__":
    main(sys.argv[1:])
