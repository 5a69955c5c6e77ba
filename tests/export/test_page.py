from __future__ import annotations

import re

from pillarbox_tools.export.metric import METRICS
from pillarbox_tools.export.query_metrics import MOST_NAMES
from tests.export.expressions import FOLDER, of_alerts

PAGE = (FOLDER.parent / "monitoring.md").read_text()


def test_each_metric_is_listed() -> None:
    rows = re.findall(r"^\| `(pillarbox_\w+)` \|(.*)\| (.*) \|$", PAGE, re.MULTILINE)
    assert [(name, tuple(re.findall(r"`(\w+)`", labels)), text) for name, labels, text in rows] == [
        (metric.prometheus_name, metric.labels, metric.help) for metric in METRICS
    ]


def test_each_alert_is_listed() -> None:
    rows = PAGE.partition("| alert |")[2].partition("\n\n")[0]
    assert re.findall(r"`(Pillarbox\w+)`", rows.replace("omit `PillarboxQueryGone`", "")) == [
        alert.place for alert in of_alerts()
    ]


def test_its_numbers() -> None:
    assert f"The first {MOST_NAMES} names of a query" in PAGE
