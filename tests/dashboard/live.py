"""A query that a test feeds with epochs, and a dashboard that shows it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import httpx

from pillarbox._errors import ProgramError
from pillarbox._runtime.spark.running.heartbeat import Heartbeat
from pillarbox_tools.dashboard.server import Dashboard
from pillarbox_tools.model.query_model import QueryModel, StaticQueryModel
from pillarbox_tools.model.snapshot import Snapshot
from tests.model.made import model


class Live(StaticQueryModel):
    def __init__(self) -> None:
        self.model: QueryModel = model()
        self.asked: list[tuple[str, str]] = []
        self.snapshots = 0

    @property
    def id(self) -> str:
        return self.model.id

    @property
    def has_ended(self) -> bool:
        return self.model.has_ended

    def snapshot(self) -> Snapshot:
        self.snapshots += 1
        return self.model.snapshot()

    def refresh(self) -> int:
        return self.model.refresh()

    @property
    def heartbeat(self) -> Heartbeat | None:
        return self.model.heartbeat

    def key_life(self, uid: str, key: str) -> dict[str, Any]:
        self.asked.append((uid, key))
        if key == "none":
            raise ProgramError("another look is running")
        if key == "broken":
            raise RuntimeError("Java is gone")
        return {"key": key}


def served(*queries: Any, token: str | None = None) -> Iterator[httpx.Client]:
    with Dashboard("127.0.0.1", 0, token) as opened:
        for query in queries:
            opened.show(query)
        with httpx.Client(base_url=f"http://127.0.0.1:{opened.port}", timeout=30) as client:
            yield client


def got(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)
