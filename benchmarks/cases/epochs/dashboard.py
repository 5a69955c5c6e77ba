# SPDX-License-Identifier: Apache-2.0
"""The cost of an open dashboard for its query, and the time to serve and draw a large page.

- The query counts keys with timers, as in the case ``keyed``: 100,000 keys, micro-batches of 1,000,000 rows, two cores,
  started by ``pillarbox.start``. Micro-batches with and without a reader take turns: a pair has one of each, and every
  other pair is in reverse order. The reader is a separate process that acts like a browser. It reads the page and its
  files, and then requests changes each second until the end of the micro-batch. Without a reader, no dashboard is open.
  Processes differ in speed from start to end, so the query is started several times. The result is the median, over all
  pairs, of the query's speed with the reader divided by its speed without. The reader draws nothing, but its use of the
  two cores counts.
- The page shows a made-up query: 20 unchained operators with 128 subtasks each, and a history of 60 epochs. Each turn
  begins with a new epoch, so nothing is precomputed. The page is served: the page, its scripts and style, the list of
  queries, and the data, one after another over one connection. The page is drawn: the time from the start of the
  navigation in Chromium until the first frame with the page. Drawing needs Playwright and Chromium, which ``make
  test-see`` installs, and is otherwise left out.

In the last line, ``ratio`` is the median speed with a reader divided by the speed without; the goal is 0.98.
``served_ms`` (goal 50) and ``drawn_ms`` (goal 200) are medians.
"""

from __future__ import annotations

import argparse
import http.client
import importlib
import json
import shutil
import statistics
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from pyspark.sql import DataFrame

import pillarbox
from benchmarks.cases.epochs.made_query import MadeQuery
from benchmarks.cases.rates import keyed
from benchmarks.harness.case import Outcome, Result
from benchmarks.harness.process import ROOT, Side
from benchmarks.harness.stepped import Stepped, SteppedQuery
from benchmarks.harness.turns import rounded, table, turns

SIDES = {"read": "with a reader", "alone": "without"}
SMALL = {"rows": 20_000, "keys": 2_000, "starts": 1, "pairs": 2, "warm_up": 1, "turns": 3}
BLOCKS: dict[str, Any] = {}
_STATIC = ("style.css", "draw.js", "follow.js", "page.js")
# Interval at which a page requests changes (seconds), as in static/follow.js.
_ASK_EVERY = 1.0
# The page sets this after it has been drawn.
_DRAWN = "document.body.dataset.drawn"


# -- the sides, in their own processes --


class Shown(Stepped):
    """A query that ``pillarbox.start`` has started, and its dashboard."""

    query: Any = None
    dashboard: Any = None

    def start(self, query: SteppedQuery, result: DataFrame) -> None:
        """Start a query."""
        self.query = query.start(result, pillarbox.start)

    def show(self) -> dict[str, Any]:
        """Open the dashboard."""
        self.dashboard = pillarbox.dashboard(self.query, port=0)
        return {"url": self.dashboard.url, "query": str(self.query.id)}

    def hide(self) -> None:
        """Close the dashboard."""
        self.dashboard.close()


class Reader:
    """Reads a page and then its changes, as a browser does, and draws nothing."""

    def __init__(self) -> None:
        self._changes = 0
        self._bytes = 0
        self._leaves = threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: http.client.HTTPConnection | None = None

    def read(self, url: str, query: str) -> dict[str, Any]:
        """Read the page and its data. Returns the duration (ms)."""
        began = time.perf_counter()
        self._connection = connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        read_page(connection, query)
        first = read_changes(connection, query, "")
        self._changes, self._bytes = 0, len(first)
        self._leaves.clear()
        self._thread = threading.Thread(target=self._follow, args=(connection, query, first), daemon=True)
        self._thread.start()
        return {"ms": 1000 * (time.perf_counter() - began)}

    def _follow(self, connection: http.client.HTTPConnection, query: str, seen: bytes) -> None:
        while not self._leaves.wait(_ASK_EVERY):
            answer = read_changes(connection, query, json.loads(seen)["change"])
            self._changes += len(json.loads(answer)) > 1
            self._bytes += len(answer)
            seen = answer

    def leave(self) -> dict[str, Any]:
        """Stop reading. Returns the number of answers with changes after the first answer, and all answers' bytes."""
        assert self._thread is not None and self._connection is not None
        self._leaves.set()
        self._thread.join()
        self._connection.close()
        return {"changes": self._changes, "bytes": self._bytes}


class Page:
    """A dashboard with a made-up query."""

    def __init__(self, subtasks: int, operators: int, epochs: int) -> None:
        from pillarbox_tools.dashboard.server import Dashboard

        self._query = MadeQuery(subtasks, operators, epochs)
        self._dashboard = Dashboard()
        self._dashboard.show(cast("Any", self._query))

    def change(self) -> dict[str, Any]:
        """Add an epoch."""
        self._query.run_epoch()
        return {"url": self._dashboard.url, "query": self._query.id}

    def close(self) -> None:
        """Close the dashboard."""
        self._dashboard.close()


def read_page(connection: http.client.HTTPConnection, query: str) -> None:
    """Read a page and its files, except its data."""
    for path in (f"/query/{query}", *(f"/static/{name}" for name in _STATIC), "/api/queries"):
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != 200 or not answer.read():
            raise SystemExit(f"{path} is answered by {answer.status}")


def read_changes(connection: http.client.HTTPConnection, query: str, change: str) -> bytes:
    """Read the changes of a page's data since ``change``."""
    connection.request("GET", f"/api/queries/{query}?since={change}")
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"the data of the page is answered by {answer.status}")
    return answer.read()


# -- the comparison --


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=1_000_000, help="of a micro-batch")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--starts", type=int, default=3, help="how often the query is started")
    parser.add_argument("--pairs", type=int, default=5, help="of micro-batches, of each start")
    parser.add_argument("--warm-up", type=int, default=2, help="pairs before these, after a small micro-batch")
    parser.add_argument("--memory", default="2g", help="of Spark")
    parser.add_argument("--turns", type=int, default=20, help="how often the page is served, and drawn")
    parser.set_defaults(warm_up_rows=100_000, flink_rows=0, flink_warm_up_rows=0)


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    ratios: list[float] = []
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    wrong: list[str] = []
    changes = 0
    for start in range(arguments.starts):
        changes += measure(arguments, directory / f"start {start}", times, ratios, wrong)
    served, drawn = page_times(arguments)
    if not changes:
        wrong.append("the reader got no change while the query ran")
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    figures = {
        "quartiles": [round(quartile, 3) for quartile in (low, middle, high)],
        "pairs": rounded(ratios, 3),
        "micro_batch_ms": rounded({side: statistics.median(costs) for side, costs in times.items()}),
        "changes": changes,
        "served_ms": round(statistics.median(served), 1),
        "drawn_ms": round(statistics.median(drawn), 1) if drawn else None,
        "rounds": rounded({"served": served, "drawn": drawn}, 1),
        "rows": arguments.rows,
        "keys": arguments.keys,
    }
    return Outcome("dashboard", middle, figures, wrong)


def measure(
    arguments: argparse.Namespace, directory: Path, times: dict[str, list[float]], ratios: list[float], wrong: list[str]
) -> int:
    """Start the query, and run its pairs. Returns how many answers had changes in the micro-batches that count."""
    batches = keyed.CountBatches(arguments, 1, directory / "batches")
    side = Side(Shown, module=keyed.__name__, directory=directory / "spark", memory=arguments.memory, ours=True)
    reader = Side(Reader)
    question = {"query": "pillarbox"}
    side.ask("begin", name="shown", directory=directory / "query", settings={}, question=question)
    number = changes = 0

    def step() -> float:
        nonlocal number
        staged = directory / f"{number:03}"
        shutil.copytree(batches.path(number, "parquet"), staged)
        answer = side.ask("step", name="shown", batch=staged)
        if answer["results"] != batches.expected(number, "ours"):
            wrong.append(f"micro-batch {number}: {answer['results']}, not {batches.expected(number, 'ours')}")
        number += 1
        return float(answer["ms"])

    step()
    costs: dict[str, float] = {}
    for index, name in turns(SIDES, arguments.pairs, arguments.warm_up):
        answer: Result = {"changes": 0}
        if name == "read":
            reader.ask("read", **side.ask("show"))
            costs[name] = step()
            answer = reader.ask("leave")
            side.ask("hide")
        else:
            costs[name] = step()
        counts = "" if index >= 0 else " (warm-up)"
        print(f"  {SIDES[name]:28}  {costs[name]:10,.0f} ms, {answer['changes']} changes{counts}", flush=True)
        if index >= 0:
            times[name].append(costs[name])
            changes += answer["changes"]
        if len(costs) == len(SIDES):
            if index >= 0:
                ratios.append(costs["alone"] / costs["read"])
            costs.clear()
    reader.close()
    side.ask("end", name="shown")
    side.close()
    return changes


# -- the page --


def page_times(arguments: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Return the durations (ms) of serving and of drawing the page, by turn. Without a browser, it is not drawn."""
    with ExitStack() as stack:
        side = Side(Page, subtasks=128, operators=20, epochs=60)
        stack.callback(side.close)
        served: list[float] = []
        for index in range(-2, arguments.turns):
            answer = side.ask("change")
            milliseconds = serve(**answer)
            if index >= 0:
                served.append(milliseconds)
        print(f"  the page is served in {statistics.median(served):.1f} ms", flush=True)
        drawn = draw(side, arguments.turns)
    return served, drawn


def serve(url: str, query: str) -> float:
    """Read the page once, as a browser does. Returns the duration (ms)."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.connect()
    began = time.perf_counter()
    read_page(connection, query)
    data = read_changes(connection, query, "")
    milliseconds = 1000 * (time.perf_counter() - began)
    connection.close()
    json.loads(data)
    return milliseconds


def draw(side: Side, count: int) -> list[float]:
    """Return the duration (ms) of drawing the page in Chromium, by turn."""
    installed = ROOT / ".venvs" / "see"
    if installed.is_dir():
        sys.path.append(str(installed))
    chromium = shutil.which("chromium")
    try:
        api = importlib.import_module("playwright.sync_api")
    except ImportError:
        api = None
    if api is None or chromium is None:
        print("  the page is not drawn, as Playwright or Chromium is missing: make test-see installs both", flush=True)
        return []
    milliseconds: list[float] = []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        # The time since the start of the navigation, at the first frame after the page was drawn.
        opened.add_init_script(
            "document.addEventListener('DOMContentLoaded', () => {"
            f"const look = () => {{ if ({_DRAWN}) requestAnimationFrame(() => requestAnimationFrame(() =>"
            " { window.drawnAfter = performance.now(); })); };"
            "new MutationObserver(look).observe(document.body, { attributeFilter: ['data-drawn'] }); });"
        )
        for index in range(-2, count):
            page = side.ask("change")
            opened.goto(f"{page['url']}query/{page['query']}")
            opened.wait_for_function("() => window.drawnAfter", timeout=60_000)
            if index >= 0:
                milliseconds.append(float(opened.evaluate("window.drawnAfter")))
        vertices = opened.locator("#plan g.vertex").count()
        browser.close()
    if vertices != 20:
        raise SystemExit(f"the page shows {vertices} operators, not 20")
    print(f"  the page is drawn in {statistics.median(milliseconds):.1f} ms", flush=True)
    return milliseconds


# -- pages --


def present(result: Result, charts: Path | None) -> str:
    middle, (low, _, high) = result["ratio"], result["quartiles"]
    drawn = "not drawn" if result["drawn_ms"] is None else f"{result['drawn_ms']:.0f} ms"
    rows = [
        ["speed with a reader over speed without", f"{middle:.3f} ({low:.3f} to {high:.3f})", "0.98"],
        ["page of 128 subtasks and 20 operators, served", f"{result['served_ms']:.0f} ms", "50 ms"],
        ["drawn in Chromium", drawn, "200 ms"],
    ]
    return table(["", "median", "goal"], rows)
