from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from pillarbox_tools.addresses import is_loopback
from pillarbox_tools.dashboard.guard import cookie_of
from pillarbox_tools.dashboard.server import Dashboard
from tests.dashboard.live import Live, served

# As browsers send them: with a link on a page of another site, and with that page's own request.
_LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
_REQUEST = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:9"}, 200),
        ({"Host": "LocalHost:9"}, 200),
        ({"Host": "[::1]:9"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": f"{socket.gethostname()}.evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": "localhost:port"}, 403),
        ({"Host": "localhost:9", "Origin": "http://localhost:9"}, 200),
        ({"Host": "LocalHost:9", "Origin": "http://localhost:9"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        (_REQUEST, 403),
        (_LINK, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        # A proxy has changed Host, and the browser declares the page's own request.
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://hub.example"}, 200),
    ],
)
def test_pages_of_other_sites_get_no_data(shared: httpx.Client, headers: dict[str, str], status: int) -> None:
    for path in ("/api/queries", "/static/page.js"):
        assert shared.get(path, headers=headers).status_code == status


@pytest.mark.parametrize("path", ["/", "/query/q"])
@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
def test_links_of_other_sites_open_pages(shared: httpx.Client, path: str, site: str) -> None:
    link = {**_LINK, "Sec-Fetch-Site": site}
    assert shared.get(path, headers=link).status_code == 200
    # A page cannot be shown within another page, and such a link does not open a name that is not this machine's.
    assert "frame-ancestors 'none'" in shared.get(path, headers=link).headers["content-security-policy"]
    assert shared.get(path, headers={**link, "Host": "evil.example"}).status_code == 403
    assert shared.get(path, headers=_REQUEST).status_code == 403
    if site != "none":
        assert shared.request("POST", path, headers=link).status_code == 403


@pytest.mark.parametrize(
    ("headers", "advice"),
    [({"Host": "dash.example"}, "pass a token"), (_REQUEST, "Links to its pages work")],
)
def test_a_refusal_says_what_to_do(shared: httpx.Client, headers: dict[str, str], advice: str) -> None:
    answer = shared.get("/", headers=headers)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert advice in answer.text


@pytest.fixture
def guarded(live: Live) -> Iterator[httpx.Client]:
    yield from served(live, token="s3cret")


def test_with_a_token_requests_need_it(guarded: httpx.Client) -> None:
    client = guarded
    refused = client.get("/api/queries")
    assert refused.status_code == 401
    assert "?token=" in refused.text
    for params in ({"token": "wrong"}, {"token": ""}, {"tokens": "s3cret"}, {"TOKEN": "s3cret"}):
        assert client.get("/api/queries", params=params).status_code == 401
    for value in ("Bearer wrong", "Bearer", "Basic s3cret", "s3cret", "Bearer s3cret2"):
        assert client.get("/api/queries", headers={"Authorization": value}).status_code == 401
    for value in ("Bearer s3cret", "bearer s3cret"):
        assert client.get("/api/queries", headers={"Authorization": value}).status_code == 200
    assert client.get("/api/queries", params={"token": "s3cret"}).status_code == 200
    assert client.get("/", headers=_LINK).status_code == 401


def test_with_a_token_a_page_sets_a_cookie_that_its_requests_and_later_links_have(guarded: httpx.Client) -> None:
    client = guarded
    page = client.get("/?token=s3cret")
    assert page.status_code == 200
    assert "httponly" in page.headers["set-cookie"].lower()
    assert "samesite=lax" in page.headers["set-cookie"].lower()
    assert client.get("/api/queries").status_code == 200
    assert client.get("/", headers=_LINK).status_code == 200
    assert client.get("/api/queries", headers=_REQUEST).status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "anns-macbook-pro.local:8082", "192.168.1.17:8082", "dash.prod.svc", "[fe80::1]:8082"]
)
def test_with_a_token_every_name_is_accepted(guarded: httpx.Client, host: str) -> None:
    page = guarded.get("/?token=s3cret", headers={"Host": host})
    assert page.status_code == 200
    cookie = page.headers["set-cookie"].partition(";")[0]
    assert guarded.get("/api/queries", headers={"Host": host, "Cookie": cookie}).status_code == 200


@pytest.mark.parametrize(
    "token",
    [
        *(
            "plain-1",
            "a#b",
            "a&b",
            "a b",
            " ",
            "a;b",
            "a+b/c=",
            "ü€",
            "a%20b",
            "?token=x",
            'a"b\\c',
            "a,b",
            "a\nb",
            "x" * 900,
        )
    ],
)
def test_any_token_works(live: Live, token: str) -> None:
    with Dashboard("127.0.0.1", 0, token) as opened, httpx.Client(timeout=30) as client:
        opened.show(live)
        assert parse_qs(urlsplit(opened.url).query) == {"token": [token]}
        assert client.get(opened.url).status_code == 200
        # (The client has its cookie now.)
        assert client.get(f"http://127.0.0.1:{opened.port}/api/queries").status_code == 200
        client.cookies.clear()
        assert client.get(f"http://127.0.0.1:{opened.port}/api/queries").status_code == 401


def test_two_dashboards_in_one_browser_have_cookies_of_their_own(live: Live) -> None:
    with (
        Dashboard("127.0.0.1", 0, "one") as first,
        Dashboard("127.0.0.1", 0, "two") as second,
        httpx.Client(timeout=30) as client,
    ):
        for opened in (first, second):
            assert client.get(opened.url).status_code == 200
        for opened in (first, second):
            assert client.get(f"http://127.0.0.1:{opened.port}/api/queries").status_code == 200


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:8082", "pillarbox_token_8082"),
        ("dash.example", "pillarbox_token_8082"),
        ("localhost:9001", "pillarbox_token_8082_9001"),
        ("[::1]:9001", "pillarbox_token_8082_9001"),
        ("localhost:port", "pillarbox_token_8082"),
        ("", "pillarbox_token_8082"),
    ],
)
def test_a_cookie_is_named_for_the_ports(host: str, name: str) -> None:
    assert cookie_of(8082, host) == name


@pytest.mark.parametrize(
    ("host", "own"),
    [
        *(("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("LOCALHOST", True)),
        *(("10.0.0.1", False), ("example", False), ("", False)),
    ],
)
def test_hosts_that_are_this_machine(host: str, own: bool) -> None:
    assert is_loopback(host) is own
