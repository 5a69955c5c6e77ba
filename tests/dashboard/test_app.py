from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from pillarbox._json import plain
from pillarbox._reports.plan import Plan
from pillarbox._runtime.spark.running.heartbeat import Heartbeat
from pillarbox._runtime.spark.running.stages import Stage
from pillarbox_tools.dashboard import versioned_view
from pillarbox_tools.dashboard.server import Dashboard
from pillarbox_tools.dashboard.versioned_view import VersionedView
from pillarbox_tools.dashboard.views import Fields, view_of
from pillarbox_tools.model.query_model import StaticQueryModel
from pillarbox_tools.model.snapshot import Snapshot
from tests.dashboard.live import Live, got, served
from tests.model.made import START, keyed, model, plan, progress, query_model, source


def test_the_page_draws_what_the_view_has(client: httpx.Client) -> None:
    [entry] = client.get("/api/queries").json()
    assert (entry["id"], entry["status"], entry["epoch"], entry["rows"]) == ("q", "running", 1, 9)
    view = client.get("/api/queries/q").json()
    first, second = view["plan"]["vertices"]
    assert second["run"]["operators"] == [[8, 3], [3, 3]]
    assert (second["run"]["busy_ms"], second["run"]["back_pressured_ms"]) == (600, 200)
    assert second["level_share"] == pytest.approx(0.8)
    assert first["level_share"] < second["level_share"]
    assert list(view["shown"]["parts"]) == ["latestOffset", "walCommit", "addBatch"]
    assert [(task["number"], task["started"], task["busy_ms"]) for task in view["shown"]["tasks"]] == [
        (1, 1_699_999_981_200, 600),
        (0, 1_699_999_981_100, 10),
    ]
    assert view["calls"] == [{"uid": "ask", "epoch": 1, "completed": 4, "failed": 0, "timed_out": 0, "requests": 5}]
    assert view["keyed_calls"] == [{"uid": "agent", "longest_key": 3, "hot_key": "'ann'"}]
    assert view["budgets"] == [{"name": "model", "spent": 40}]
    assert view["counters"] == {"count.late_records_dropped": 1}


def test_browsers_can_read_metrics_that_are_not_numbers(client: httpx.Client, live: Live) -> None:
    gauges = {"count.mean": float("nan"), "count.max": float("inf"), "count.min": 1.5}
    live.model.progressed(progress(2, source(records_in=1), keyed(records_in=1, gauges=gauges)))

    def refused(constant: str) -> None:
        raise AssertionError(f"JSON has no {constant}")

    view = json.loads(client.get("/api/queries/q").text, parse_constant=refused)
    gauges_of_page = view["plan"]["vertices"][1]["run"]["gauges"]
    assert gauges_of_page == {"count.mean": [None, None], "count.max": [None, None], "count.min": [1.5, 1.5]}


def test_pages_and_scripts_may_load_nothing_else(client: httpx.Client) -> None:
    for path, kind in (("/", "text/html"), ("/query/q", "text/html"), ("/static/page.js", "text/javascript")):
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = client.get("/").text
    assert "//" not in page.replace("<!--", "").replace("-->", "")  # no address of another server


@pytest.mark.parametrize("path", ["/", "/query/q"])
def test_addresses_are_relative_as_a_proxy_may_add_a_prefix(client: httpx.Client, path: str) -> None:
    page = client.get(path).text
    addresses = re.findall(r'(?:src|href|data-root)="([^"]*)"', page)
    assert len(addresses) == 7
    for address in addresses:
        if address != "data:,":
            assert urljoin(f"https://hub/user/ann/proxy/8082{path}", address).startswith(
                "https://hub/user/ann/proxy/8082/"
            )
            assert client.get(urljoin(path, address)).status_code == 200


@pytest.mark.parametrize(
    "path", ["/query/q/", "/static/../app.py", "/static/%2e%2e%2fapp.py", "/static/none", "/api/queries/x", "/x"]
)
def test_there_is_no_such_page(shared: httpx.Client, path: str) -> None:
    assert shared.get(path).status_code == 404


def test_a_page_gets_the_fields_that_have_changed(client: httpx.Client, live: Live) -> None:
    first = client.get("/api/queries/q").json()
    assert first.keys() == {*view_of(live.snapshot()), "stages", "is_bundle", "change"}
    assert _since(client, first) == {"change": first["change"]}
    beat = Heartbeat(START, "r", "one", 9, 0, 2, START)
    live.model.beat(beat)
    _since(client, first)
    live.model.beat(replace(beat, stages=[Stage(7, 4, 2, 1, 0, 1)]))
    second = _since(client, first)
    assert second["stages"] == [{"number": 7, "tasks": 4, "active": 2, "completed": 1, "failed": 0, "level": 1}]
    assert second.keys() == {"change", "stages"}
    live.model.progressed(progress(2, source(records_in=5)))
    third = _since(client, second)
    assert third["epoch"] == 2
    assert not third.keys() & {"settings", "versions", "earlier", "stages", "name"}
    # A page that has missed a change gets both.
    assert _since(client, first).keys() == third.keys() | {"stages"}


@pytest.mark.parametrize("change", ["", "1", "x-1", "-", "{name}-", "{name}-x", "{name}-0"])
def test_a_page_gets_all_fields_if_its_change_is_unknown(client: httpx.Client, change: str) -> None:
    every = client.get("/api/queries/q").json()
    name = every["change"].partition("-")[0]
    assert client.get("/api/queries/q", params={"since": change.replace("{name}", name)}).json() == every


def test_a_page_gets_all_fields_of_another_run(dashboard: Dashboard, live: Live) -> None:
    first = got(f"{dashboard.url}api/queries/q")
    dashboard.show(Live())
    again = got(f"{dashboard.url}api/queries/q?since={first['change']}")
    assert again.keys() == first.keys()
    assert again["epoch"] is None


def test_a_query_that_has_ended_has_no_stages(client: httpx.Client, live: Live) -> None:
    live.model.beat(Heartbeat(START, "r", "one", 9, 0, 2, START, stages=[Stage(7, 4, 2, 1, 0)]))
    live.model.ended()
    view = client.get("/api/queries/q").json()
    assert (view["status"], view["stages"]) == ("stopped", [])


def _since(client: httpx.Client, seen: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = client.get("/api/queries/q", params={"since": seen["change"]}).json()
    return fields


def test_a_view_is_made_once_for_each_change(live: Live) -> None:
    changes = VersionedView(live)
    first = changes.since("")
    assert changes.since("") == first
    changes.entry()
    assert live.snapshots == 1
    live.model.progressed(progress(2))
    changes.since("")
    assert live.snapshots == 2


def test_only_rates_and_conditions_are_made_again_as_time_passes(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versioned_view, "_LOOK_EVERY", 0.0)
    views: list[Fields] = []

    def counted(snapshot: Snapshot) -> Fields:
        views.append(view_of(snapshot))
        return views[-1]

    monkeypatch.setattr(versioned_view, "view_of", counted)
    versioned = VersionedView(live)
    first = json.loads(versioned.since(""))
    live.model._clock = lambda: START + 1000
    versioned.since("")
    assert len(views) == 1
    # Findings repeat the condition, so they are made with it.
    live.model._clock = lambda: START + 600_000
    changed = json.loads(versioned.since(first["change"]))
    assert len(views) == 2
    assert {"conditions", "findings"} <= changed.keys()


def test_earlier_runs_are_lines_that_do_not_change(live: Live) -> None:
    live.model.failed("pillarbox.OperatorError: no such card " + "x" * 200 + "\nand more")
    live.model.ended()
    run = live.model.snapshot().run
    runs = [replace(run, id="failed"), replace(run, id="killed", ended=None, status="running", failures=[])]

    class Restarted(Live):
        def snapshot(self) -> Snapshot:
            return replace(super().snapshot(), earlier=runs)

    query = Restarted()
    changes = VersionedView(query)
    first = json.loads(changes.since(""))
    failed, killed = first["earlier"]
    [total] = failed["moments"]
    assert (failed["status"], total["epochs"], total["rows"]) == ("failed", 1, 9)
    assert failed["failures"] == [{"message": "no such card " + "x" * 106 + "…"}]
    # A driver that was killed has written no end.
    assert (killed["status"], killed.get("ended")) == ("lost", None)
    assert "killed" in killed["failures"][0]["message"]
    assert len(json.dumps(first["earlier"])) < 1000
    query.model.progressed(progress(2))
    assert "earlier" not in json.loads(changes.since(first["change"]))


@pytest.mark.parametrize("count", [1, 240, 241, 479, 480])
def test_lines_of_a_long_run_keep_their_peaks(live: Live, count: int) -> None:
    snapshot = live.model.snapshot()
    [moment] = snapshot.run.moments
    moments = [replace(moment, at=minute, lag=None, process_bytes=5) for minute in range(count)]
    long = 1_800_000
    for index in {0, count // 2, count - 1}:
        peak = replace(
            moments[index], longest=long, duration=long, lag=70, process_bytes=900, state_bytes={"a": 7, "b": 8}
        )
        run = replace(snapshot.run, moments=[*moments[:index], peak, *moments[index + 1 :]])
        points = view_of(replace(snapshot, run=run))["run"].moments
        assert len(points) <= 240
        assert (sum(point.epochs for point in points), points[-1].at) == (count, count - 1)
        tops = [point for point in points if point.lag is not None]
        assert [(top.longest, top.lag, top.process_bytes) for top in tops] == [(long, 70, 900)]
        assert [top.state_bytes for top in tops] == [{"a": 7, "b": 8}]


def test_another_run_of_a_query_takes_its_place(dashboard: Dashboard, live: Live) -> None:
    live.model.ended()
    assert [entry["status"] for entry in got(f"{dashboard.url}api/queries")] == ["stopped"]
    dashboard.show(live)
    dashboard.show(Live())
    assert [entry["status"] for entry in got(f"{dashboard.url}api/queries")] == ["running"]


def test_the_list_says_how_queries_are(client: httpx.Client, live: Live) -> None:
    [entry] = client.get("/api/queries").json()
    assert (entry["rows_per_second"], entry["failure"]) == (9.0, None)
    live.model.failed("pillarbox.OperatorError: no such card")
    [entry] = client.get("/api/queries").json()
    assert (entry["status"], entry["failure"]) == ("failed", "no such card")


def test_problems_are_in_the_entry_of_an_unchanged_query(
    client: httpx.Client, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versioned_view, "_LOOK_EVERY", 0.0)
    [before] = client.get("/api/queries").json()
    assert before["conditions"] == []
    live.model._clock = lambda: START + 600_000
    [entry] = client.get("/api/queries").json()
    [condition] = entry["conditions"]
    assert condition["name"] == "silent source"
    assert condition["line"].startswith("No input for 10 min; last rows at 22:13 UTC")
    assert (before["rows_per_second"] or 0) > 0 == entry["rows_per_second"]
    view = client.get("/api/queries/q").json()
    assert view["conditions"] == [condition]


def test_a_counter_of_a_function_is_shown_whatever_its_name() -> None:
    query = model()
    query.progressed(progress(1, keyed(counters={"count.failed": 4, "count.requests": 7, "count.seen": 9})))
    assert view_of(query.snapshot())["counters"] == {"count.failed": 4, "count.requests": 7, "count.seen": 9}


def test_programs_of_a_query_have_levels_of_their_own() -> None:
    first = plan()
    other = [replace(vertex, program="pillarbox 2") for vertex in first.vertices]
    both = Plan(
        [*first.vertices, *other], [*first.edges, *(replace(edge, program="pillarbox 2") for edge in first.edges)]
    )
    query = query_model("q", "two", "", both, model().snapshot().run)
    began = 1_699_999_981_000
    one_task = keyed(records_in=8, busy_ms=600, operators=[[8, 3], [3, 3]], keys=3, state_bytes=300)
    other_task = keyed(records_in=5, busy_ms=200, operators=[[5, 1], [1, 1]], keys=2, state_bytes=200)
    report = progress(1, replace(one_task, started=began + 100))
    second = progress(1, replace(other_task, started=began + 100), name="pillarbox 2")
    reports = {name: values for name, values in report["observedMetrics"].items() if values["tasks"]}
    query.progressed({**report, "observedMetrics": second["observedMetrics"] | reports})
    view = view_of(query.snapshot())
    vertices = view["plan"]["vertices"]
    shares = {(vertex["program"], vertex["level"]): vertex["level_share"] for vertex in vertices}
    assert shares == {
        ("pillarbox", 0): 0,
        ("pillarbox", 1): pytest.approx(0.6),
        ("pillarbox 2", 0): 0,
        ("pillarbox 2", 1): pytest.approx(0.2),
    }
    # Their operators share a uid, so their state is added up.
    assert [(row.uid, row.keys, row.bytes) for row in view["growth"]] == [("count", 5, 500)]
    assert view["keyed"] == ["count"]
    counts = {vertex["program"]: vertex["run"].operators[0][0] for vertex in vertices if vertex["run"] is not None}
    assert counts == {"pillarbox": 8, "pillarbox 2": 5}


def test_homes_and_the_memory_of_executors_are_shown() -> None:
    query = model()
    homes = [keyed(subtask=number, host="one", executor=7, process=number, private_bytes=30 << 20) for number in (0, 1)]
    query.progressed(progress(1, *(replace(home, home_restarts=1) for home in homes)))
    query.progressed(progress(2, homes[0], replace(homes[1], fallback="no process can be started")))
    view = plain(view_of(query.snapshot()))
    [moment] = view["run"]["moments"]
    assert (moment["home_restarts"], moment["fallbacks"]) == (2, 1)
    [executor] = view["executors"]
    assert (executor["host"], executor["executor"], executor["home_bytes"]) == ("one", 7, 30 << 20)
    assert executor["needed"] < executor["overhead"]
    [_, vertex] = view["plan"]["vertices"]
    assert vertex["run"]["fallbacks"] == {"no process can be started": 1}
    assert {task.get("fallback") for task in view["shown"]["tasks"]} == {None, "no process can be started"}


def test_a_key_is_asked_for(client: httpx.Client, live: Live) -> None:
    assert client.get("/api/queries/q/key", params={"uid": "count", "key": '["a", 1]'}).json() == {"key": '["a", 1]'}
    assert live.asked == [("count", '["a", 1]')]
    refused = client.get("/api/queries/q/key", params={"uid": "count", "key": "none"})
    assert (refused.status_code, refused.json()) == (409, {"error": "another look is running"})
    broken = client.get("/api/queries/q/key", params={"uid": "count", "key": "broken"})
    assert (broken.status_code, broken.json()) == (500, {"error": "RuntimeError: Java is gone"})


@pytest.fixture
def stored(live: Live) -> Iterator[httpx.Client]:
    yield from served(StaticQueryModel(live.snapshot()))


def test_a_stored_query_is_shown_without_state(stored: httpx.Client) -> None:
    client = stored
    view = client.get("/api/queries/q").json()
    assert (view["id"], view["is_bundle"]) == ("q", True)
    assert "no state" in client.get("/api/queries/q/key", params={"uid": "u", "key": "k"}).json()["error"]
