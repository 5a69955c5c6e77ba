from __future__ import annotations

import json
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest

import pillarbox
from pillarbox._graph.dashboard_place import DashboardAddress
from pillarbox._runtime.spark.running import query as module
from pillarbox._runtime.spark.session.configuration import SessionConfiguration
from pillarbox._runtime.spark.starting.started import StartedQuery, find, remember
from pillarbox._runtime.spark.tools import ToolHooks
from pillarbox_tools import entry
from pillarbox_tools.dashboard import server


class Query:
    id = "q"
    runId = "r"
    name = "counts"
    isActive = False
    lastProgress = None
    recentProgress = ()

    def awaitTermination(self, timeout: float | None = None) -> bool:
        return True

    def exception(self) -> None:
        return None


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Any:
    started: list[Query] = []
    planned: list[Any] = []

    def run() -> Any:
        query: Any = Query()
        how: Any = SimpleNamespace(checkpoint=None, spark=None, trigger="", is_available_now=False)
        result = StartedQuery(query, how, planned, configuration=SessionConfiguration({}, {}), is_watched=True)
        remember(result)
        result.hooks = ToolHooks(result, entry)
        started.append(query)
        return query

    how = SimpleNamespace(checkpoint=None, spark=None, is_available_now=False, run=run)
    monkeypatch.setattr(module, "WriterStart", lambda *arguments, **options: how)
    monkeypatch.setattr(module, "close_started", lambda query: None)
    monkeypatch.setattr(module, "wanted_parallelism", lambda planned: None)

    def start_on(port: int) -> list[Query]:
        facts = SimpleNamespace(
            dashboard=DashboardAddress("127.0.0.1", port, None),
            uses_processing_time=False,
            plan=None,
            auto_rescale=False,
        )
        planned[:] = [SimpleNamespace(summary=facts, parallelism=2)] * 2
        monkeypatch.setattr(module, "programs_of", lambda writer: planned)
        writer: Any = SimpleNamespace(foreachBatch=None)
        pillarbox.start(writer)
        return started

    return start_on


def test_the_programs_of_a_query_share_its_dashboard(start: Any, capsys: pytest.CaptureFixture[str]) -> None:
    [query] = start(0)
    positions: Any = find(query)
    assert positions.hooks.wait(30)
    [opened] = [opened_ for opened_ in server._open if opened_.is_open]
    with opened, urllib.request.urlopen(f"{opened.url}api/queries", timeout=30) as answer:
        assert [entry["id"] for entry in json.load(answer)] == ["q"]
    output = capsys.readouterr().err
    assert output.count(f"query q: its dashboard is at {opened.url}") == 1
