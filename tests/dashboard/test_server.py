from __future__ import annotations

import json
import socket
import urllib.request

import pytest

import pillarbox
from pillarbox import StreamExecutionEnvironment
from pillarbox._errors import ConfigurationError
from pillarbox_tools.dashboard.server import Dashboard, open_dashboard
from tests.dashboard.live import Live, got


def test_one_server_shows_all_queries(dashboard: Dashboard) -> None:
    other = Live()
    other.model._change(id="p")
    assert open_dashboard([other], "127.0.0.1", 0) is dashboard
    assert {entry["id"] for entry in got(f"{dashboard.url}api/queries")} == {"q", "p"}
    assert open_dashboard([other], "LocalHost", dashboard.port) is dashboard, "the same address by another name"


@pytest.mark.parametrize(
    ("host", "port", "token", "message"),
    [
        ("127.0.0.1", 1, "s3cret", r"is already open on port \d+, so it cannot open on port 1:"),
        ("0.0.0.0", 0, "s3cret", "is already open on host 127.0.0.1, so it cannot open on host 0.0.0.0:"),
        ("no.such.host.invalid", 0, None, "is already open on host 127.0.0.1, so"),
        ("127.0.0.1", 0, "another", "is already open with another token, so it cannot open with this token:"),
    ],
)
def test_another_call_does_not_get_a_dashboard_that_it_has_not_asked_for(
    host: str, port: int, token: str | None, message: str
) -> None:
    query = Live()
    with open_dashboard([], "127.0.0.1", 0, "s3cret") as opened:
        with pytest.raises(ConfigurationError, match=message) as caught:
            open_dashboard([query], host, port, token)
        assert "s3cret" not in str(caught.value)
        assert query.id not in opened._queries
        # A call without a token accepts the dashboard's.
        for same in ("s3cret", None):
            assert open_dashboard([], "127.0.0.1", 0, same) is opened
        assert open_dashboard([], None, None) is opened


def test_a_token_does_not_come_to_a_dashboard_without_one(dashboard: Dashboard) -> None:
    with pytest.raises(ConfigurationError, match="is already open without a token, so it cannot open with this token:"):
        open_dashboard([], "127.0.0.1", 0, "s3cret")


def test_an_empty_token_is_refused(dashboard: Dashboard) -> None:
    for open_it in (
        lambda: Dashboard("0.0.0.0", 0, ""),
        lambda: open_dashboard([], "127.0.0.1", 0, ""),
        lambda: pillarbox.dashboard(None, token=""),  # type: ignore[arg-type]
        lambda: StreamExecutionEnvironment().enable_dashboard(token=""),
    ):
        with pytest.raises(ConfigurationError, match="the token is an empty string"):
            open_it()


def test_twenty_queries_that_have_ended_are_kept(dashboard: Dashboard) -> None:
    def shown(name: str) -> Live:
        query = Live()
        query.model._change(id=name)
        dashboard.show(query)
        return query

    def left() -> list[str]:
        return [entry["id"] for entry in got(f"{dashboard.url}api/queries")]

    queries = [shown(f"q{number}") for number in range(30)]
    for query in queries[:5]:
        query.model.ended()
    shown("running")
    # (The dashboard shows another running query, "q".)
    assert left() == ["q", *(f"q{number}" for number in range(30)), "running"]
    for query in queries:
        query.model.ended()
    shown("more")
    assert left() == ["q", *(f"q{number}" for number in range(10, 30)), "running", "more"]
    # A query that starts again is the newest, and does not count as ended.
    shown("q10")
    later = [shown(f"p{number}") for number in range(3)]
    for query in later:
        query.model.ended()
    shown("last")
    rest = (f"q{number}" for number in range(13, 30))
    assert left() == ["q", *rest, "running", "more", "q10", "p0", "p1", "p2", "last"]


def test_a_port_in_use_is_left_for_a_free_one(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with open_dashboard([], "127.0.0.1", port) as opened:
            assert opened.port != port
            assert got(f"{opened.url}api/queries") == []
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
        assert len(got(f"{second.url}api/queries")) == 1


def test_elsewhere_the_address_has_a_random_token() -> None:
    with Dashboard("0.0.0.0", 0) as opened:
        assert "?token=" in opened.url
        token = opened.url.partition("?token=")[2]
        assert len(token) > 20
        request = urllib.request.Request(f"http://127.0.0.1:{opened.port}/api/queries")
        request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer) == []
