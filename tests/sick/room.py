"""A folder with a query, and the reports of page and doctor about it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import pillarbox
from pillarbox import DataStream
from pillarbox_tools.cli import show
from pillarbox_tools.dashboard.server import open_dashboard
from pillarbox_tools.doctor.rules import examine
from pillarbox_tools.watching.stored import StoredQuery, stored_snapshot
from tests.see.queries import Inbox

OUTPUT = "card STRING, seen LONG"
#: How long a finding may take (seconds): a silent source is one after four minutes.
PATIENCE = 600.0


@dataclass
class Reports:
    """The reports of page and doctor.

    Attributes:
        page: the page's findings by rule, its banner lines (``conditions``), and ``status``.
        doctor: the findings of ``pillarbox doctor CHECKPOINT`` by rule.
    """

    page: dict[str, str] = field(default_factory=dict)
    conditions: list[str] = field(default_factory=list)
    status: str = ""
    doctor: dict[str, str] = field(default_factory=dict)


class Room:
    """A query's folder.

    Attributes:
        query: the query, if it runs in this process.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.marks = folder / "marks"
        self.marks.mkdir(parents=True)
        self.checkpoint = str(folder / "checkpoint")
        self.query: Any = None
        self._inboxes: dict[str, Inbox] = {}

    def inbox(self, name: str = "payments") -> Inbox:
        if name not in self._inboxes:
            self._inboxes[name] = Inbox(self.folder / name)
        return self._inboxes[name]

    def writer(self, stream: DataStream) -> Any:
        writer = stream.to_dataframe(OUTPUT).writeStream.format("noop").queryName(self.folder.name)
        return writer.option("checkpointLocation", self.checkpoint)

    def start(self, stream: DataStream, **trigger: Any) -> Any:
        writer = self.writer(stream)
        self.query = pillarbox.start(writer.trigger(**trigger) if trigger else writer)
        return self.query

    def work_off(self) -> None:
        self.query.processAllAvailable()

    def stop(self) -> None:
        if self.query is not None and self.query.isActive:
            self.query.stop()
            self.query.awaitTermination()

    def look(self) -> Reports:
        reports = Reports()
        if self.query is None:
            shown = StoredQuery(self.spark, self.checkpoint)
            url = f"{open_dashboard([shown], None, 0).url}api/queries/{shown.id}"
        else:
            url = f"{pillarbox.dashboard(self.query, port=0).url}api/queries/{self.query.id}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            view = json.load(answer)
        reports.page = {finding["rule"]: finding["message"] for finding in view["findings"]}
        reports.conditions, reports.status = [condition["line"] for condition in view["conditions"]], view["status"]
        findings = examine(stored_snapshot(self.spark, self.checkpoint))
        reports.doctor = {finding.rule: finding.message for finding in findings if finding.status == "wrong"}
        return reports

    def look_until(self, rule: str) -> Reports:
        deadline = time.monotonic() + PATIENCE
        while True:
            reports = self.look()
            if (rule in reports.page and rule in reports.doctor) or time.monotonic() > deadline:
                return reports
            time.sleep(1.0)

    def doctors_words(self) -> str:
        console = show.output()
        with console.capture() as capture:
            findings = examine(stored_snapshot(self.spark, self.checkpoint))
            show.findings(console, {"findings": list(map(asdict, findings))}, every=False)
        return capture.get()


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.2)
