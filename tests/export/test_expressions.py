from __future__ import annotations

import re
from itertools import pairwise

import pytest

from pillarbox_tools.export.metric import METRICS
from tests.export.expressions import ALERTS, FOLDER, Expression, of_alerts, of_board, panels, variables

LABELS = {metric.prometheus_name: {"query", *metric.labels} for metric in METRICS}
# Prometheus adds these labels.
SCRAPED = {"job", "instance"}
ALL = [*of_alerts(), *of_board()]
# Metrics used through their labels, or for single look-ups.
NOT_ON_THE_BOARD = {
    "pillarbox_query_info",
    "pillarbox_operator_info",
    "pillarbox_epoch_number",
    "pillarbox_watermark_timestamp_seconds",
    "pillarbox_metrics_left_out",
}


def asked(text: str) -> set[str]:
    return set(re.findall(r"\bpillarbox_\w+", text))


@pytest.mark.parametrize("expression", ALL, ids=[expression.place for expression in ALL])
def test_metrics_and_labels_are_there(expression: Expression) -> None:
    text = expression.text
    assert asked(text)
    for metric, matchers in re.findall(r"\b(pillarbox_\w+)(?:\{(.*?)\})?", text):
        assert metric in LABELS
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers):
            assert label in LABELS[metric], f"{metric} has no label {label}"
    labels = set.union(*(LABELS[metric] for metric in asked(text)), SCRAPED)
    grouped = re.findall(r"\b(?:by|on|ignoring|without|group_left|group_right) ?\((.*?)\)", text)
    shown = re.findall(r"\{\{ ?\$labels\.(\w+) ?\}\}", expression.shown) + re.findall(
        r"\{\{(\w+)\}\}", expression.shown
    )
    assert {*shown, *(label.strip() for text in grouped for label in text.split(","))} <= labels
    # The shown labels include the query.
    assert "query" in shown


@pytest.mark.parametrize("expression", of_alerts(), ids=lambda expression: expression.place)
def test_a_rule_is_of_one_series_each(expression: Expression) -> None:
    """Prometheus joins series by equal labels: with different labels, the rule would never fire."""
    if " on (" in expression.text:
        return
    first, *others = (LABELS[metric] for metric in asked(expression.text))
    assert all(labels == first for labels in others)


def test_variables_of_the_board_are_there() -> None:
    results = list(variables())
    assert {label for _, label in results} == {"query", "operator"}
    for metric, label in results:
        assert label in LABELS[metric]


def test_each_metric_is_on_the_board() -> None:
    results = set.union(*(asked(panel.text) for panel in of_board()))
    assert LABELS.keys() - results == NOT_ON_THE_BOARD


def test_counters_are_asked_for_as_such() -> None:
    counters = {metric.prometheus_name for metric in METRICS if metric.kind == "counter"}
    for expression in ALL:
        inside = set(re.findall(r"\b(?:rate|increase)\((pillarbox_\w+)", expression.text))
        # A rule may also look whether a counter is new.
        bare = asked(re.sub(r"\b(?:rate|increase)\(.*?\]\)", "", expression.text)) & counters
        assert inside <= counters
        assert not bare or "unless" in expression.text, expression


def test_panels_do_not_overlap() -> None:
    covered: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & covered
        covered |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())
    assert all(upper["gridPos"]["y"] <= lower["gridPos"]["y"] for upper, lower in pairwise(panels()))


def test_references_of_rules_exist() -> None:
    matches = re.findall(r"docs/([\w/-]+\.md)(?:, '(.*?)')?", ALERTS.read_text())
    assert matches
    for page, heading in matches:
        text = (FOLDER.parent / page).read_text()
        assert not heading or f"## {heading}\n" in text, heading
