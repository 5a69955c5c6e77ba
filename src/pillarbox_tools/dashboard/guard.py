"""Who may ask: requests that another site made the browser send are refused, and those without the token.

A page on the internet can make a browser send requests to loopback: under a name of its own that it lets point there
(then ``Host`` is that name), or from its own origin (then ``Origin`` is).
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
_App = Callable[[Scope, Any, Any], Awaitable[None]]

COOKIE = "pillarbox_token"


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine itself, by its name or address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Lets requests through to an application, or answers them with 403 or 401.

    Args:
        app: the application.
        hosts: the names and addresses that the dashboard may be asked under, besides loopback's.
        token: what a request must have, as ``Authorization: Bearer``, as ``?token=`` or as a cookie; None: nothing.
    """

    def __init__(self, app: _App, hosts: frozenset[str], token: str | None) -> None:
        self._app = app
        self._hosts = hosts
        self._token = token

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Handle a request, by the rules of ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refused(headers, scope)
        if refused is None:
            await self._app(scope, receive, send)
            return
        status, message = refused
        body = (message + "\n").encode()
        kind = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": kind})
        await send({"type": "http.response.body", "body": body})

    def _refused(self, headers: dict[str, str], scope: Scope) -> tuple[int, str] | None:
        host = _host(headers.get("host", ""))
        if not self._knows(host):
            return 403, f"the dashboard is not asked under the name {host!r}"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            return 403, "the dashboard answers no page of another site"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "the dashboard answers no page of another site"
        if self._token is not None and not self._has_token(headers, scope):
            return 401, "the dashboard asks for its token: open it by the address that the driver has told"
        return None

    def _knows(self, host: str) -> bool:
        return is_loopback(host) or host in self._hosts

    def _has_token(self, headers: dict[str, str], scope: Scope) -> bool:
        assert self._token is not None
        given = [headers.get("authorization", "").removeprefix("Bearer ")]
        pairs = scope.get("query_string", b"").decode("latin-1").split("&")
        given += [value for name, _, value in (pair.partition("=") for pair in pairs) if name == "token"]
        cookies = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        given += [value for name, _, value in cookies if name == COOKIE]
        return any(hmac.compare_digest(each.encode(), self._token.encode()) for each in given)


def _host(header: str) -> str:
    """Return the host of a ``Host`` header, without the port."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
