"""The PromQL expressions in the Grafana board and alert rules of docs/monitoring."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
ALERTS = FOLDER / "alerts.yml"
BOARD = FOLDER / "grafana.json"


class Expression(NamedTuple):
    """A PromQL expression, its place, and the text displayed with its result."""

    place: str
    text: str
    shown: str


def of_alerts() -> list[Expression]:
    """Return the alert rules' expressions. (promtool checks the YAML, because tests have no YAML parser.)"""
    results = []
    for rule in ALERTS.read_text().split("- alert: ")[1:]:
        [(expression, rest)] = re.findall(r"\n        expr: (?:>-\n)?(.*?)\n        (?=\w)(.*)", rule, re.DOTALL)
        results.append(Expression(rule.split("\n")[0], " ".join(expression.split()), rest))
    return results


def of_board() -> list[Expression]:
    return [
        Expression(panel["title"], target["expr"], target["legendFormat"])
        for panel in panels()
        for target in panel.get("targets", [])
    ]


def panels() -> list[dict[str, Any]]:
    return json.loads(BOARD.read_text())["panels"]  # type: ignore[no-any-return]


def variables() -> Iterator[tuple[str, str]]:
    for load in json.loads(BOARD.read_text())["templating"]["list"]:
        if load["type"] == "query":
            [matches] = re.findall(r"^label_values\((\w+)(?:\{.*\})?, (\w+)\)$", load["query"]["query"])
            yield matches
