from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import Dashboard
from pillarbox_tools.dashboard.server import open_dashboard
from pillarbox_tools.watching.stored import StoredQuery
from tests.see.browser import PHONE, overflows, page
from tests.see.queries import FIRST, Inbox, counts, slow_sink, started

pytestmark = [
    pytest.mark.skipif("PILLARBOX_SEE" not in os.environ, reason="takes Chromium: make test-see runs it"),
    pytest.mark.spark,
    pytest.mark.slow("each query is looked at in a browser"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def opened() -> Iterator[list[Dashboard]]:
    results: list[Dashboard] = []
    yield results
    for dashboard in results:
        dashboard.close()


def show(query: Any, opened: list[Dashboard]) -> str:
    dashboard = pillarbox.dashboard(query, port=0)
    opened.append(dashboard)
    return f"{dashboard.url}query/{query.id}"


def wait_for(opened: Any, selector: str, text: str) -> str:
    opened.wait_for_function(
        "([selector, text]) =>"
        " [...document.querySelectorAll(selector)].some((each) => each.textContent.includes(text))",
        arg=[selector, text],
        timeout=120_000,
    )
    return str(opened.inner_text(selector.split(" ", maxsplit=1)[0]))


def test_a_query_that_runs(spark: SparkSession, tmp_path: Path, chromium: Any, opened: list[Dashboard]) -> None:
    inbox = Inbox(tmp_path / "payments")
    inbox.put(*((f"c{number % 7}", 1, number) for number in range(700)), *(("test", 1, 1),) * 5)
    query = started(counts(spark, inbox), tmp_path / "checkpoint", "payments by card")
    try:
        query.processAllAvailable()
        url = show(query, opened)
        with page(chromium, url) as shown:
            wait_for(shown, "#plan text", "705 → 700")
            assert shown.locator("#plan g.vertex").count() == 2
            # The level that takes most of the epoch is red.
            most = shown.locator("#plan g.vertex.most")
            shares = _shares(shown)
            level = max(shares, key=lambda level: shares[level])
            assert {int(element.get_attribute("data-level")) for element in most.all()} == {level}
            # Figures move while the page is open.
            before = int(shown.evaluate("document.body.dataset.drawn"))
            inbox.put(*((f"c{number % 7}", 1, 700 + number) for number in range(140)))
            query.processAllAvailable()
            wait_for(shown, "#plan text", "140 → 140")
            assert int(shown.evaluate("document.body.dataset.drawn")) > before
            assert not overflows(shown)
            # The life of a key.
            shown.select_option("#key-uid", "count")
            shown.fill("#key-text", "c3")
            shown.press("#key-text", "Enter")
            life = wait_for(shown, "#key h3", "in subtask")
            assert "120" in life  # 100 and 20 payments
            assert "event time, which must advance by" in life
        for size, dark in ((PHONE, False), (PHONE, True), ((1280, 900), True)):
            with page(chromium, url, size, dark=dark) as shown:
                wait_for(shown, "#plan text", "140 → 140")
                assert not overflows(shown)
        # With the keyboard alone: the first stop is the way home, and the plan can be reached.
        with page(chromium, url) as shown:
            shown.keyboard.press("Tab")
            assert shown.evaluate("document.activeElement.className") == "brand"
            seen = set()
            for _ in range(40):
                shown.keyboard.press("Tab")
                seen.add(shown.evaluate("document.activeElement.getAttribute('class') || document.activeElement.id"))
            assert "key-text" in seen
            assert any("vertex" in key for key in seen)
        # Open details and the focus survive a redraw.
        with page(chromium, url) as shown:
            shown.click("#plan summary")
            shown.focus("#plan g.vertex[data-uid=count]")
            inbox.put(*((f"c{number % 7}", 1, 900 + number) for number in range(70)))
            query.processAllAvailable()
            wait_for(shown, "#plan text", "70 → 70")
            assert shown.locator("#plan details[open]").count() == 1
            assert shown.evaluate("document.activeElement.dataset.uid") == "count"
    finally:
        query.stop()
    with page(chromium, url) as shown:
        wait_for(shown, "#overview dd", "stopped")
    # The list of queries shows running queries live.
    other = started(counts(spark, Inbox(tmp_path / "more")), tmp_path / "other", "more payments")
    try:
        with page(chromium, f"{opened[0].url}query/none") as shown:
            wait_for(shown, "main p", "The driver does not show this query")
        pillarbox.dashboard(other, port=0)
        with page(chromium, opened[0].url) as shown:
            wait_for(shown, "main td", "more payments")
            wait_for(shown, "main td", "stopped")
            assert shown.locator("#queries a").count() == 2
            other.stop()
            nothing_runs = "() => !document.querySelector('main').textContent.includes('running')"
            shown.wait_for_function(nothing_runs, timeout=60_000)
            assert not overflows(shown)
    finally:
        other.stop()


def test_programs_of_a_query_are_below_each_other(
    spark: SparkSession, tmp_path: Path, chromium: Any, opened: list[Dashboard]
) -> None:
    inboxes = [Inbox(tmp_path / "one"), Inbox(tmp_path / "two")]
    for number, inbox in enumerate(inboxes):
        inbox.put(*((f"c{index}", 1, index) for index in range(10 + number)))
    first, second = (
        counts(spark, inbox, uid=inbox.folder.name).to_dataframe("card STRING, seen LONG") for inbox in inboxes
    )
    writer = first.unionAll(second).writeStream.format("noop").queryName("both")
    query = pillarbox.start(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    try:
        query.processAllAvailable()
        with page(chromium, show(query, opened)) as shown:
            wait_for(shown, "#plan text", "Program pillarbox 2")
            wait_for(shown, "#plan text", "10 → 10")
            wait_for(shown, "#plan text", "11 → 11")
            assert shown.locator("#plan g.vertex").count() == 4
            assert shown.locator("#plan g.output").count() == 2
            boxes = [box.bounding_box() for box in shown.locator("#plan g.vertex rect.box").all()]
            assert all(
                box is other
                or box["y"] + box["height"] <= other["y"]
                or other["y"] + other["height"] <= box["y"]
                or box["x"] + box["width"] <= other["x"]
                or other["x"] + other["width"] <= box["x"]
                for box in boxes
                for other in boxes
            ), "no box lies on another"
            assert not overflows(shown)
    finally:
        query.stop()


def _shares(shown: Any) -> dict[int, float]:
    texts = shown.locator("#plan svg > text").all_text_contents()
    results = [re.match(r"level (\d+).*?([\d.]+)% of the epoch", text) for text in texts]
    return {int(match[1]): float(match[2]) for match in results if match is not None}


def test_a_slow_sink_shows_as_back_pressure(
    spark: SparkSession, tmp_path: Path, chromium: Any, opened: list[Dashboard]
) -> None:
    inbox = Inbox(tmp_path / "payments")
    inbox.put(*((f"c{number % 7}", 1, number // 1000) for number in range(60_000)))
    query = slow_sink(counts(spark, inbox), tmp_path / "checkpoint", 0.1)
    try:
        query.processAllAvailable()
        with page(chromium, show(query, opened)) as shown:
            wait_for(shown, "#plan text", "60,000 → 60,000")
            share = float(shown.get_attribute("#plan g.vertex[data-uid=count]", "data-back-pressured"))
            assert share > 0.3
            assert shown.locator("#epochs rect.back").count() > 0
            # The browser shows the title of the bar under the pointer.
            title = shown.locator("#epochs svg.gantt rect.busy > title").first.text_content()
            assert title.startswith("subtask ")
            assert "back-pressured" in title
    finally:
        query.stop()


def test_a_stuck_watermark_names_its_file(
    spark: SparkSession, tmp_path: Path, chromium: Any, opened: list[Dashboard]
) -> None:
    ahead, behind = Inbox(tmp_path / "ahead"), Inbox(tmp_path / "behind")
    ahead.put(("ann", 1, 7200))
    behind.put(("bob", 1, 0), ("ann", 1, 60))
    query = started(counts(spark, ahead, behind), tmp_path / "checkpoint", "two shops")
    try:
        query.processAllAvailable()
        with page(chromium, show(query, opened)) as shown:
            why = wait_for(shown, "#watermarks td", "behind")
            assert "behind/000001.json" in why
            assert "ahead/" not in why
            assert "22:14:20" in why  # the newest record of the holding file: FIRST and 60 seconds
            assert FIRST == 1_700_000_000_000
    finally:
        query.stop()


def test_a_failure_is_shown_with_its_record_and_from_the_checkpoint_alone(
    spark: SparkSession, tmp_path: Path, chromium: Any, opened: list[Dashboard]
) -> None:
    inbox, checkpoint = Inbox(tmp_path / "payments"), tmp_path / "checkpoint"
    inbox.put(*(("ann", 1, number) for number in range(5)), ("bob", -7, 9))
    query = started(counts(spark, inbox), checkpoint, "bad payments")
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    with page(chromium, show(query, opened)) as shown:
        text = wait_for(shown, "#failures dd", "ValueError")
        assert "count" in text
        assert "'bob'" in text
        assert "amount=-7" in text
        assert "ValueError: an amount of -7" in text
        assert f"pillarbox record {checkpoint} failed --program main.py" in text
        wait_for(shown, "#overview dd", "failed")
    stored = StoredQuery(spark, str(checkpoint))
    assert stored.snapshot().run.status == "failed"
    open_dashboard([stored], "127.0.0.1", opened[0].port)
    with page(chromium, f"{opened[0].url}query/{query.id}") as shown:
        wait_for(shown, "#failures dd", "ValueError")
        wait_for(shown, "#overview .note", "not live: read from the checkpoint")
