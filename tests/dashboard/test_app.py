"""The routes of the dashboard and who may ask, without a browser and without Spark."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pillarbox._errors import ConfigurationError, ProgramError
from pillarbox._reports.plan import Plan
from pillarbox_tools.dashboard import app
from pillarbox_tools.dashboard.documents import as_json
from pillarbox_tools.dashboard.guard import is_loopback
from pillarbox_tools.dashboard.server import Dashboard, open_dashboard
from pillarbox_tools.dashboard.shown import StoredQuery
from pillarbox_tools.dashboard.told import Told
from pillarbox_tools.dashboard.views import view_of
from pillarbox_tools.model.query_model import QueryModel
from pillarbox_tools.model.snapshot import Snapshot, Stage
from tests.model.made import keyed, model, plan, progress, source


class Live:
    """A query that a test drives."""

    def __init__(self) -> None:
        self.model: QueryModel = model()
        self.asked: list[tuple[str, str]] = []
        self.running: list[Stage] | None = None
        self.asked_for_stages = 0
        self.snapshots = 0

    @property
    def id(self) -> str:
        return self.model.id

    def snapshot(self) -> Snapshot:
        self.snapshots += 1
        return self.model.snapshot()

    def look(self) -> int:
        return self.model.version

    def stages(self) -> list[Stage] | None:
        self.asked_for_stages += 1
        return self.running

    def key_life(self, uid: str, key: str) -> dict[str, Any]:
        self.asked.append((uid, key))
        if key == "none":
            raise ProgramError("another look is running")
        if key == "broken":
            raise RuntimeError("Java is gone")
        return {"key": key}


@pytest.fixture
def live() -> Live:
    query = Live()
    query.model.progressed(
        progress(
            1,
            source(records_in=9, busy_ms=10, operators=[[9, 8]], started=1_699_999_981_100),
            keyed(records_in=8, busy_ms=600, back_pressured_ms=200, operators=[[8, 3], [3, 3]], keys=2,
                  counters={"ask.completed": 4, "ask.requests": 5, "count.late_records_dropped": 1},
                  started=1_699_999_981_200),
        )
    )  # fmt: skip
    return query


def served(*queries: Any, token: str | None = None) -> Iterator[httpx.Client]:
    with Dashboard("127.0.0.1", 0, token) as opened:
        for query in queries:
            opened.show(query)
        with httpx.Client(base_url=f"http://127.0.0.1:{opened.port}", timeout=30) as client:
            yield client


@pytest.fixture(scope="module")
def shared() -> Iterator[httpx.Client]:
    """For tests that change nothing."""
    yield from served(Live())


@pytest.fixture
def client(live: Live) -> Iterator[httpx.Client]:
    yield from served(live)


def test_the_page_draws_what_the_view_has(client: httpx.Client) -> None:
    [entry] = client.get("/api/queries").json()
    assert (entry["id"], entry["status"], entry["epoch"], entry["rows"]) == ("q", "running", 1, 9)
    view = client.get("/api/queries/q").json()
    first, second = view["plan"]["vertices"]
    assert [each["records_in"] for each in second["operators"]] == [8, 3]
    assert second["shares"]["back_pressured"] == pytest.approx(0.25)
    assert second["level_share"] == pytest.approx(0.8)
    assert first["level_share"] < second["level_share"]
    assert [bar["name"] for bar in view["shown"]["spark"]] == ["latestOffset", "walCommit", "addBatch"]
    assert view["shown"]["tasks_from"] == 55
    assert [(task["vertex"], task["start"], task["end"]) for task in view["shown"]["tasks"]] == [
        (1, 200, 1000),
        (0, 100, 110),
    ]
    assert view["calls"] == [{"uid": "ask", "epoch": 1, "completed": 4, "requests": 5}]
    assert view["counters"] == {"count.late_records_dropped": 1}
    # There is nothing in it that JSON has not.
    json.dumps(view, allow_nan=False)


def test_pages_and_scripts_may_load_nothing_else(client: httpx.Client) -> None:
    for path, kind in (("/", "text/html"), ("/query/q", "text/html"), ("/static/page.js", "text/javascript")):
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = client.get("/").text
    assert "//" not in page.replace("<!--", "").replace("-->", "")  # no address of another server


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e%2fapp.py", "/static/none", "/api/queries/x", "/x"]
)
def test_there_is_no_such_page(shared: httpx.Client, path: str) -> None:
    assert shared.get(path).status_code == 404


def test_a_stream_ends_with_the_query(client: httpx.Client, live: Live) -> None:
    live.model.ended()
    events = client.get("/api/queries/q/events").text.split("\n\n")
    assert json.loads(events[0].removeprefix("data: "))["status"] == "stopped"
    assert events[1].startswith("retry:")
    assert live.asked_for_stages == 0, "no stages run"


def _events(client: httpx.Client, change: Callable[[int], None], count: int) -> list[Any]:
    """Return the first events of the stream of a query; None is a line without data.

    Args:
        change: is called with the number of each event that has come.
    """
    found: list[Any] = []
    with client.stream("GET", "/api/queries/q/events") as stream:
        for line in stream.iter_lines():
            if line:
                found.append(json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else None)
                if len(found) == count:
                    break
                change(len(found))
    return found


def test_after_the_first_event_only_what_is_new_comes(
    client: httpx.Client, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_TELL_EVERY", 0.01)

    def change(number: int) -> None:
        if number == 2:
            live.running = [Stage(7, "save", 4, 2, 1, 0)]
        if number == 5:
            live.model.progressed(progress(2, source(records_in=5)))
        if number == 8:
            live.model.ended()

    first, *rest = _events(client, change, 12)
    # The first one has all that the view has.
    assert first.keys() == client.get("/api/queries/q").json().keys()
    said = [each for each in rest if each]
    assert said[0] == {"stages": [{"number": 7, "name": "save", "tasks": 4, "active": 2, "completed": 1, "failed": 0}]}
    assert said[1]["epoch"] == 2
    assert not said[1].keys() & {"settings", "versions", "earlier", "stages", "name"}
    assert said[2]["status"] == "stopped"
    assert None in rest, "there are lines without data in between"


def test_a_view_is_made_once_for_each_change(live: Live) -> None:
    told = Told(live)
    first, _ = told.fields()
    again, _ = told.fields()
    told.entry()
    assert live.snapshots == 1
    assert all(first[name] is again[name] for name in first if name != "stages")
    live.model.progressed(progress(2))
    told.fields()
    assert live.snapshots == 2


def test_another_run_of_a_query_takes_its_place(dashboard: Dashboard, live: Live) -> None:
    live.model.ended()
    assert [each["status"] for each in _get(f"{dashboard.url}api/queries")] == ["stopped"]
    dashboard.show(live)
    dashboard.show(Live())
    assert [each["status"] for each in _get(f"{dashboard.url}api/queries")] == ["running"]


def test_the_list_says_how_queries_are(client: httpx.Client, live: Live) -> None:
    [entry] = client.get("/api/queries").json()
    assert (entry["rows_per_second"], entry["failure"]) == (9.0, None)
    live.model.failed("pillarbox.OperatorError: no such card")
    [entry] = client.get("/api/queries").json()
    assert (entry["status"], entry["failure"]) == ("failed", "no such card")


def test_programs_of_a_query_have_levels_of_their_own() -> None:
    one = plan()
    other = [replace(each, program="pillarbox 2") for each in one.vertices]
    both = Plan([*one.vertices, *other], [*one.edges, *(replace(each, program="pillarbox 2") for each in one.edges)])
    query = QueryModel("q", "two", "", both, model().snapshot().run)
    began = 1_699_999_981_000
    one_task = keyed(records_in=8, busy_ms=600, operators=[[8, 3], [3, 3]], keys=3, state_bytes=300)
    other_task = keyed(records_in=5, busy_ms=200, operators=[[5, 1], [1, 1]], keys=2, state_bytes=200)
    told = progress(1, replace(one_task, started=began + 100))
    second = progress(1, replace(other_task, started=began + 100), name="pillarbox 2")
    query.progressed({**told, "observedMetrics": told["observedMetrics"] | second["observedMetrics"]})
    view = view_of(query.snapshot())
    assert view.plan is not None
    shares = {(each.program, each.level): each.level_share for each in view.plan.vertices}
    assert shares == {
        ("pillarbox", 0): 0,
        ("pillarbox", 1): pytest.approx(0.6),
        ("pillarbox 2", 0): 0,
        ("pillarbox 2", 1): pytest.approx(0.2),
    }
    # Their operators have one uid, under which their state is added up.
    assert [(each.uid, each.keys, each.bytes) for each in view.growth] == [("count", 5, 500)]
    assert view.keyed == ["count"]
    counts = {each.program: each.operators[0].records_in for each in view.plan.vertices if each.level}
    assert counts == {"pillarbox": 8, "pillarbox 2": 5}


def test_homes_and_the_memory_of_executors_are_shown() -> None:
    query = model()
    homes = [keyed(subtask=each, host="one", executor=7, process=each, private_bytes=30 << 20) for each in (0, 1)]
    query.progressed(progress(1, *(replace(each, home_restarts=1) for each in homes)))
    query.progressed(progress(2, homes[0], replace(homes[1], fallback="no process can be started")))
    view = json.loads(as_json(view_of(query.snapshot())))
    assert (view["run"]["home_restarts"], view["run"]["fallbacks"]) == (2, 1)
    [executor] = view["executors"]
    assert (executor["host"], executor["executor"], executor["home_bytes"]) == ("one", 7, 30 << 20)
    assert executor["needed"] < executor["overhead"]
    [_, vertex] = view["plan"]["vertices"]
    assert vertex["run"]["fallbacks"] == {"no process can be started": 1}
    assert {each["fallback"] for each in view["shown"]["tasks"]} == {None, "no process can be started"}


def test_a_key_is_asked_for(client: httpx.Client, live: Live) -> None:
    assert client.get("/api/queries/q/key", params={"uid": "count", "key": '["a", 1]'}).json() == {"key": '["a", 1]'}
    assert live.asked == [("count", '["a", 1]')]
    refused = client.get("/api/queries/q/key", params={"uid": "count", "key": "none"})
    assert (refused.status_code, refused.json()) == (409, {"error": "another look is running"})
    broken = client.get("/api/queries/q/key", params={"uid": "count", "key": "broken"})
    assert (broken.status_code, broken.json()) == (500, {"error": "RuntimeError: Java is gone"})


@pytest.fixture
def stored(live: Live) -> Iterator[httpx.Client]:
    yield from served(StoredQuery(live.snapshot()))


def test_a_stored_query_is_shown_without_state(stored: httpx.Client) -> None:
    client = stored
    assert client.get("/api/queries/q").json()["id"] == "q"
    assert "no state" in client.get("/api/queries/q/key", params={"uid": "u", "key": "k"}).json()["error"]


# -- who may ask --


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:9"}, 200),
        ({"Host": "[::1]:9"}, 200),
        ({"Host": f"{socket.gethostname()}:8082"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": "localhost:9", "Origin": "http://localhost:9"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_another_site_may_not_ask(shared: httpx.Client, headers: dict[str, str], status: int) -> None:
    assert shared.get("/api/queries", headers=headers).status_code == status


@pytest.fixture
def guarded(live: Live) -> Iterator[httpx.Client]:
    yield from served(live, token="s3cret")


def test_elsewhere_a_token_is_asked_for(guarded: httpx.Client) -> None:
    client = guarded
    assert client.get("/api/queries").status_code == 401
    assert client.get("/api/queries", params={"token": "wrong"}).status_code == 401
    assert client.get("/api/queries", headers={"Authorization": "Bearer s3cret"}).status_code == 200
    assert client.get("/?token=s3cret").status_code == 200
    # The page has set a cookie, which its own requests have.
    assert client.get("/api/queries").status_code == 200
    assert client.get("/api/queries", headers={"Host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("host", "own"), [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("10.0.0.1", False), ("example", False)]
)
def test_which_hosts_are_this_machine(host: str, own: bool) -> None:
    assert is_loopback(host) is own


# -- the server --


@pytest.fixture
def dashboard(live: Live) -> Iterator[Dashboard]:
    with open_dashboard([live], "127.0.0.1", 0) as opened:
        yield opened


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def test_one_server_shows_all_queries(dashboard: Dashboard) -> None:
    other = Live()
    other.model.id = "p"
    assert open_dashboard([other], "127.0.0.1", 0) is dashboard
    assert {each["id"] for each in _get(f"{dashboard.url}api/queries")} == {"q", "p"}
    with pytest.raises(ConfigurationError, match="is open on port"):
        open_dashboard([other], "127.0.0.1", dashboard.port % 60_000 + 1)


def test_a_port_in_use_is_left_for_a_free_one(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with open_dashboard([], "127.0.0.1", port) as opened:
            assert opened.port != port
            assert _get(f"{opened.url}api/queries") == []
            assert open_dashboard([], "127.0.0.1", port) is opened, "the second query asks for the same port"
    assert f"port {port} of 127.0.0.1 is in use" in capsys.readouterr().err


def test_an_address_of_another_machine_is_one_clear_error() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen on 192\.0\.2\.1:0 "):
        Dashboard("192.0.2.1", 0)


def test_a_closed_dashboard_can_be_opened_again(live: Live) -> None:
    first = open_dashboard([live], "127.0.0.1", 0)
    first.close()
    assert not first.is_open
    with open_dashboard([live], "127.0.0.1", 0) as second:
        assert second is not first
        assert len(_get(f"{second.url}api/queries")) == 1


def test_elsewhere_the_address_has_a_random_token() -> None:
    with Dashboard("0.0.0.0", 0) as opened:
        assert "?token=" in opened.url
        token = opened.url.partition("?token=")[2]
        assert len(token) > 20
        request = urllib.request.Request(f"http://127.0.0.1:{opened.port}/api/queries")
        request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer) == []
