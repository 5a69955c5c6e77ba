from __future__ import annotations

import http.server
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from pillarbox_tools.dashboard import versioned_view
from pillarbox_tools.dashboard.server import Dashboard
from pillarbox_tools.model.query_model import StaticQueryModel
from pillarbox_tools.model.snapshot import Snapshot
from tests.dashboard.live import Live
from tests.model.made import START, keyed, progress, source
from tests.see.browser import PHONE, WIDE, overflows, page

pytestmark = [
    pytest.mark.skipif("PILLARBOX_SEE" not in os.environ, reason="takes Chromium: make test-see runs it"),
    pytest.mark.slow("each page is looked at in a browser"),
    pytest.mark.timeout(300),
]
_DRAWN = "body[data-drawn]"
_WAIT = 60_000


@pytest.fixture
def live() -> Live:
    query = Live()
    key = "'a-key-of-thirty-letters-or-so-1'"
    sample = [500, [[key, 100], ["'a-key-of-thirty-letters-or-so-2'", 90]]]
    for number in range(20):
        tasks = [
            keyed(subtask=subtask, records_in=1000, keys=9, busy_ms=500 if subtask else 3000, state_bytes=900,
                  watermark=START, held_by=[0, 0], key_sample=sample, hot_keys={"agent": key},
                  counters={"agent.longest_key": 7, "agent.calls": 5, "agent.budget.model.spent": 40})
            for subtask in range(4)
        ]  # fmt: skip
        read = source(records_in=1000, event_times=[START, START + 60_000 * number, {}])
        minute = f"2023-11-14T22:{13 + number}:20.000Z"
        query.model.progressed(progress(number, read, *tasks, timestamp=minute))
    return query


@pytest.fixture
def opened(live: Live) -> Iterator[Dashboard]:
    with Dashboard() as dashboard:
        dashboard.show(live)
        yield dashboard


@contextmanager
def context_of(chromium: Any, size: tuple[int, int] | None = None) -> Iterator[Any]:
    context = chromium.new_context(**({} if size is None else {"viewport": {"width": size[0], "height": size[1]}}))
    try:
        yield context
    finally:
        context.close()


@contextmanager
def site(answer: Any) -> Iterator[str]:
    """Serve another site on another port, and yield its address.

    Args:
        answer: handles a request, as a method of the request handler.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_all_tabs_of_a_browser_are_drawn_and_follow_the_query(chromium: Any, opened: Dashboard, live: Live) -> None:
    with context_of(chromium) as context:
        tabs = [context.new_page() for _ in range(8)]
        for tab in tabs:
            tab.goto(opened.url)
            tab.wait_for_selector(_DRAWN, timeout=_WAIT)
        live.model.progressed(progress(20, source(records_in=12_345)))
        for tab in tabs:
            tab.wait_for_function("() => document.body.textContent.includes('12,345 rows')", timeout=_WAIT)


def test_async_keyed_functions_and_budgets_have_tables(chromium: Any, opened: Dashboard) -> None:
    with page(chromium, opened.url) as shown:
        tables = [table.inner_text() for table in shown.query_selector_all("#calls table")]
    assert [re.findall(r"^(?:agent|model)\t.*", text, re.MULTILINE) for text in tables] == [
        ["agent\t0\t0\t400\t0\t0\t7: 'a-key-of-thirty-letters-or-so-1'\t0 ms\tunder 1 s"],
        ["model\t0\t3,200\t0\t0\t0\t0"],
    ]


@pytest.mark.parametrize("token", ["plain", "a+b/c=", "a b;c#d&e", "ü€"])
def test_the_address_with_any_token_opens_the_page(chromium: Any, live: Live, token: str) -> None:
    with Dashboard(token=token) as opened:
        opened.show(live)
        with page(chromium, opened.url) as shown:
            assert shown.inner_text("h1") == "counts"


def test_two_drivers_in_one_browser_have_cookies_of_their_own(chromium: Any, live: Live) -> None:
    with Dashboard(token="one") as first, Dashboard(token="two") as second, context_of(chromium) as context:
        tabs = []
        for dashboard in (first, second):
            dashboard.show(live)
            tabs.append(context.new_page())
            tabs[-1].goto(dashboard.url)
        for tab in tabs:
            tab.reload()
            tab.wait_for_selector(_DRAWN, timeout=_WAIT)


@pytest.mark.parametrize("token", [None, "s3cret"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_link_of_another_site_opens_the_page_and_its_scripts_get_nothing(
    chromium: Any, live: Live, host: str, token: str | None
) -> None:
    with Dashboard(token=token) as opened, context_of(chromium) as context:
        opened.show(live)
        address = f"http://{host}:{opened.port}"

        def answer(handler: Any) -> None:
            body = f'<a href="{address}/query/q">the query</a>'.encode()
            handler.send_response(200)
            handler.send_header("Content-Type", "text/html")
            handler.end_headers()
            handler.wfile.write(body)

        with site(answer) as other:
            tab = context.new_page()
            if token is not None:
                tab.goto(f"{address}/?token={token}")  # the owner has opened it before
            statuses: list[int] = []
            tab.goto(other.replace("127.0.0.1", "localhost"))
            tab.on("response", lambda response: statuses.append(response.status))
            tab.evaluate(
                "address => fetch(address, { mode: 'no-cors', credentials: 'include' })", f"{address}/api/queries"
            )
            assert statuses == [403]
            tab.click("a")
            tab.wait_for_selector(_DRAWN, timeout=_WAIT)
            assert tab.inner_text("h1") == "counts"


def test_pages_work_behind_a_proxy_that_adds_a_prefix(chromium: Any, live: Live) -> None:
    prefix = "/user/ann/proxy/8082"
    with Dashboard(token="a+b") as opened:
        opened.show(live)
        opened.show(_other())

        def forward(handler: Any) -> None:
            if not handler.path.startswith(f"{prefix}/"):
                handler.send_error(404)
                return
            request = urllib.request.Request(f"http://127.0.0.1:{opened.port}{handler.path.removeprefix(prefix)}")
            for name in ("Host", "Cookie", "Sec-Fetch-Site", "Sec-Fetch-Mode"):
                if name in handler.headers:
                    request.add_header(name, handler.headers[name])
            try:
                answer = urllib.request.urlopen(request, timeout=30)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                body = answer.read()
            handler.send_response(answer.status)
            for name in ("Content-Type", "Content-Security-Policy", "Set-Cookie"):
                if name in answer.headers:
                    handler.send_header(name, answer.headers[name])
            handler.end_headers()
            handler.wfile.write(body)

        with site(forward) as hub:
            address = f"{hub}{prefix}/?{urlsplit(opened.url).query}"
            with page(chromium, address) as shown:
                shown.click("main a[href$='/q']")
                shown.wait_for_selector("#plan svg", timeout=_WAIT)
                assert urlsplit(shown.url).path == f"{prefix}/query/q"
                live.model.progressed(progress(20, source(records_in=12_345)))
                shown.wait_for_function("() => document.body.textContent.includes('12,345 rows')", timeout=_WAIT)
                shown.fill("#key-text", "c3")
                shown.press("#key-text", "Enter")
                shown.wait_for_selector("#key .answer h3, #key .answer .bad", timeout=_WAIT)
                assert live.asked == [("count", "c3")]
                shown.click("header nav a[href$='/p']")
                shown.wait_for_url(f"{hub}{prefix}/query/p", timeout=_WAIT)
                shown.click("header .brand")
                shown.wait_for_selector("h1 >> text=Queries", timeout=_WAIT)


def test_a_page_says_that_its_driver_is_gone_until_it_is_back(chromium: Any, live: Live) -> None:
    first = Dashboard()
    first.show(live)
    with context_of(chromium, PHONE) as context:
        tab, every = context.new_page(), context.new_page()
        tab.goto(f"{first.url}query/q")
        tab.wait_for_selector(_DRAWN, timeout=_WAIT)
        assert not tab.is_visible("#silence")
        assert tab.title() == "counts · running · pillarbox"
        first.show(_other())
        every.goto(first.url)
        every.wait_for_selector(_DRAWN, timeout=_WAIT)
        tab.bring_to_front()
        tab.evaluate("document.getElementById('epochs').scrollIntoView()")
        first.close()
        # The words stay in the window, wherever the reader is.
        tab.wait_for_selector("#silence", timeout=_WAIT)
        assert tab.evaluate("scrollY") > 500
        box = tab.locator("#silence").bounding_box()
        assert 0 <= box["y"] < box["y"] + box["height"] < PHONE[1]
        words = tab.inner_text("#silence")
        assert words.startswith("Driver silent for less than a minute; the data below is from ")
        assert "The driver does not answer" in words
        assert tab.title() == "Driver silent for less than a minute · counts · pillarbox"
        assert tab.inner_text("#overview dd >> nth=0") == "Driver silent for less than a minute; was running"
        assert "grayscale" in tab.evaluate("getComputedStyle(document.getElementById('main')).filter")
        # The list of queries, too: it asks less often, as it is hidden, and at once when it is in view.
        every.bring_to_front()
        every.wait_for_selector("#silence", timeout=_WAIT)
        assert every.title() == "Driver silent for less than a minute · pillarbox"
        with Dashboard(port=first.port) as second:
            tab.bring_to_front()
            tab.wait_for_function(
                "() => document.getElementById('silence').textContent.includes('has no such query')",
                timeout=_WAIT,
            )
            # Another driver's query: its changes are numbered from 1 again.
            again = Live()
            again.model.progressed(progress(1, source(records_in=54_321)))
            second.show(again)
            tab.wait_for_function("() => document.body.textContent.includes('54,321 rows')", timeout=_WAIT)
            tab.wait_for_selector("#silence", state="hidden", timeout=_WAIT)
            assert tab.title() == "counts · running · pillarbox"
            assert tab.inner_text("#overview dd >> nth=0") == "running"
            assert tab.evaluate("getComputedStyle(document.getElementById('main')).filter") == "none"


def _other() -> Live:
    query = Live()
    query.model._change(id="p")
    return query


def test_a_hidden_tab_asks_less_often_and_at_once_when_it_is_in_view(
    chromium: Any, opened: Dashboard, live: Live
) -> None:
    with context_of(chromium) as context:
        tab = context.new_page()
        tab.clock.install()
        tab.add_init_script("Object.defineProperty(document, 'hidden', { get: () => Boolean(window.isHidden) })")
        tab.goto(opened.url)
        tab.clock.run_for(100)
        tab.wait_for_selector(_DRAWN, timeout=_WAIT)

        begun: list[str] = []
        tab.on("request", lambda request: begun.append(request.url))

        def requests_after(action: Any, *arguments: Any) -> int:
            drawn = tab.evaluate("document.body.dataset.drawn")
            live.model.progressed(progress(live.model.refresh(), source(records_in=5)))
            begun.clear()
            action(*arguments)
            if begun:
                tab.wait_for_function("drawn => document.body.dataset.drawn !== drawn", arg=drawn, timeout=_WAIT)
            return len(begun)

        assert requests_after(tab.clock.run_for, 1_100) == 1
        tab.evaluate("window.isHidden = true")
        assert requests_after(tab.clock.run_for, 1_100) == 1  # this was due before
        assert requests_after(tab.clock.run_for, 13_000) == 0
        assert requests_after(tab.clock.run_for, 4_000) == 1
        back = "window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))"
        assert requests_after(tab.evaluate, back) == 1


def test_a_checkpoint_whose_driver_writes_no_longer_is_out_of_date(chromium: Any, live: Live) -> None:
    class Written(Live):
        id = "q"
        is_stopped = False

        def snapshot(self) -> Snapshot:
            written = replace(live.snapshot(), id=self.id, is_live=False, at=at)
            return (
                replace(written, run=replace(written.run, ended=at, status="stopped")) if self.is_stopped else written
            )

    class Stopped(Written):
        id = "stopped"
        is_stopped = True

    at = int(1000 * time.time()) - 12 * 60_000
    with Dashboard() as opened:
        for query in (Written(), Stopped(), StaticQueryModel(replace(Written().snapshot(), id="bundle"))):
            opened.show(query)
        with page(chromium, f"{opened.url}query/q") as shown:
            shown.wait_for_selector("#silence", timeout=_WAIT)
            assert re.fullmatch(
                r"Driver silent for 12 min; the data below is from (.{10} )?\d\d:\d\dZ\.", shown.inner_text("#silence")
            )
            assert shown.title() == "Driver silent for 12 min · counts · pillarbox"
            assert shown.inner_text("#link") == "connected"
        # Of these, nothing new is to be expected.
        for name, connection in (("stopped", "ended"), ("bundle", "a bundle")):
            with page(chromium, f"{opened.url}query/{name}") as shown:
                assert shown.inner_text("#link") == connection
                assert not shown.is_visible("#silence")


# The words of an element that are broken over lines, although a line has room for them.
_BROKEN = """() => {
  const found = [];
  const texts = document.createTreeWalker(document.getElementById("main"), NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    if (!node.parentElement.closest("table, dl") || !node.parentElement.offsetParent) continue;
    for (const word of node.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
      const range = document.createRange();
      range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((each) => each.top)).size > 1) found.push(word[0]);
    }
  }
  return found;
}"""
_CELLS = """() => [...document.querySelectorAll("tbody td")].filter((each) => each.offsetParent).map((each) => {
  const box = each.getBoundingClientRect();
  return { left: box.left, right: box.right, height: box.height };
})"""


def test_tables_can_be_read_on_a_phone(chromium: Any, opened: Dashboard) -> None:
    with page(chromium, opened.url, PHONE) as shown:
        cells = shown.evaluate(_CELLS)
        assert len(cells) > 20
        assert all(cell["left"] >= 0 and cell["right"] <= PHONE[0] and cell["height"] < 300 for cell in cells)
        assert shown.evaluate(_BROKEN) == []
        assert not overflows(shown)
        # Each cell has its heading, which is not only drawn: the roles of the table stay.
        assert (
            shown.evaluate("getComputedStyle(document.querySelector('#skew td'), '::before').content") == '"Operator"'
        )
        assert shown.get_by_role("columnheader", name="Reason").count() == 1
        assert shown.get_by_role("cell").count() == len(cells)
    with page(chromium, opened.url) as shown:
        assert shown.evaluate(_BROKEN) == []
        assert not overflows(shown)


def test_long_words_make_no_page_wider_than_the_window(chromium: Any) -> None:
    word = "Much" * 100

    class Long(Live):
        def snapshot(self) -> Snapshot:
            result = super().snapshot()
            failures = [replace(failure, cause=word, host=word) for failure in result.run.failures]
            return replace(result, name=word, run=replace(result.run, failures=failures))

    query = Long()
    query.model.failed(f"{word}: {word}")
    with Dashboard() as opened:
        opened.show(query)
        for size in (PHONE, WIDE):
            with page(chromium, opened.url, size) as shown:
                assert shown.locator(".fact", has_text=word).count() == 2
                assert not overflows(shown)


def test_lines_name_the_times_of_their_ends(chromium: Any, opened: Dashboard) -> None:
    with page(chromium, opened.url) as shown:
        lines = shown.locator("#state figure")
        assert lines.count() == 3
        for line in lines.all():
            ends = line.locator(".axis time").all_inner_texts()
            assert ends == ["2023-11-14 22:13Z", "2023-11-14 22:32Z"]


def test_a_condition_is_on_top_of_the_page_in_its_title_and_in_the_list(
    chromium: Any, opened: Dashboard, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versioned_view, "_LOOK_EVERY", 0.0)
    with context_of(chromium) as context:
        tab = context.new_page()
        tab.goto(opened.url)
        tab.wait_for_selector(_DRAWN, timeout=_WAIT)
        assert tab.locator("#condition").is_hidden()
        live.model._clock = lambda: START + 1_741_000
        tab.wait_for_selector("#condition:visible", timeout=_WAIT)
        assert tab.locator("#condition").inner_text().startswith("No input for 10 min")
        assert tab.title() == "silent source · counts · pillarbox"
        other = Live()
        other.model._change(id="p")
        opened.show(other)
        every = context.new_page()
        every.goto(opened.url.replace("/query/q", "/"))
        every.wait_for_selector(_DRAWN, timeout=_WAIT)
        assert "No input for 10 min" in every.locator("#main").inner_text()
        live.model._clock = lambda: START + 1000
        tab.wait_for_selector("#condition", state="hidden", timeout=_WAIT)
