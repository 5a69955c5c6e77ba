"""Under Spark Connect, the dashboard runs in the client, shows no Spark stages, and writes the history at the end."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import pillarbox
from tests.see.queries import Inbox, counts, started

pytestmark = [
    pytest.mark.slow("a client of Spark Connect, whose query is read again after its end"),
    pytest.mark.long("test_connect.py hears of metrics there, and spark/test_dashboard.py has the dashboard"),
]


def shown(spark: Any, folder: Path) -> dict[str, Any]:
    from pillarbox_tools.watching.stored import stored_snapshot

    inbox = Inbox(folder / "payments")
    query = started(counts(spark, inbox), folder / "checkpoint", "by Connect")
    inbox.put(*((f"c{number % 7}", 1, number) for number in range(70)), ("test", 1, 1))
    query.processAllAvailable()
    with pillarbox.dashboard(query, port=0) as opened:

        def get(path: str, **asked: str) -> Any:
            address = f"{opened.url}api/queries{path}?{urlencode(asked)}"
            with urllib.request.urlopen(address, timeout=60) as answer:
                return json.load(answer)

        view = get(f"/{query.id}")
        while view["epoch"] is None:
            time.sleep(0.1)
            view |= get(f"/{query.id}", since=view["change"])
        life = get(f"/{query.id}/key", uid="count", key="c3")
        query.stop()
        query.awaitTermination()
        entries = get("")
    stored = stored_snapshot(spark, str(folder / "checkpoint"))
    return {
        "view": view,
        "life": life,
        "entries": entries,
        "stored": (stored.run.status, sum(moment.rows for moment in stored.run.moments)),
    }


def test_the_dashboard_runs_in_the_client(connect: Any, tmp_path: Path) -> None:
    result = connect.run(shown, tmp_path)
    view = result["view"]
    assert (view["name"], view["rows"], view["stages"]) == ("by Connect", 71, [])
    source, keyed = view["plan"]["vertices"]
    assert (source["run"]["operators"][0][0], keyed["run"]["operators"][0][0], keyed["run"]["keys"]) == (
        71,
        70,
        7,
    )
    assert view["settings"]["parallelism"] == "2"
    assert {state["name"]: state["value"] for state in result["life"]["state"]}["seen"] == "10"
    assert [entry["status"] for entry in result["entries"]] == ["stopped"]
    assert result["stored"] == ("stopped", 71)
