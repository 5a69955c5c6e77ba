"""Access control of the dashboard: rejects requests of other sites, and requests without the token.

A page of another site can make a browser send requests here, in two ways:

- Under its own name that resolves to this machine, so the browser considers the answers the page's own. Without a
  token, the guard accepts only loopback names in ``Host``. With a token, it accepts every name, as proxies need: the
  browser stores the cookie under another name.
- From its own origin. The guard refuses requests of other origins except navigations, whose answers the other page
  cannot read.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

Scope = MutableMapping[str, Any]
_App = Callable[[Scope, Any, Any], Awaitable[None]]
_Refusal = tuple[int, str]


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def cookie_of(port: int, host: str) -> str:
    """Return the name of the cookie that holds the token.

    Browsers send a cookie to all ports of a host. So the name has the dashboard's port, and the port in the ``Host``
    header if it differs, as with a forwarded port.
    """
    split = _split(host)
    asked = None if split is None else split.port
    return f"pillarbox_token_{port}" if asked in (None, port) else f"pillarbox_token_{port}_{asked}"


class Guard:
    """Middleware that passes requests to an application, or answers 403 or 401.

    Args:
        port: the port that the dashboard listens on.
        token: the required token, as ``Authorization: Bearer``, ``?token=`` or cookie, or None.
    """

    def __init__(self, app: _App, port: int, token: str | None) -> None:
        self._app = app
        self._port = port
        self._token = token

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(headers, scope)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, message = refusal
        body = (message + "\n").encode()
        kind = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": kind})
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, headers: Mapping[str, str], scope: Scope) -> _Refusal | None:
        split = _split(headers.get("host", ""))
        name = "" if split is None else split.hostname or ""
        if self._token is None and not is_loopback(name):
            return 403, (
                f"This dashboard has no token, so it does not answer under the name {name!r}. Open it under the name"
                " localhost; or give it a token, as in pillarbox.dashboard(query, token=...), and open the address that"
                " the driver then prints, under any name."
            )
        if not _is_navigation(headers, scope) and _is_foreign(headers):
            return 403, (
                "The dashboard does not answer requests that pages of other sites make. A link to one of its pages"
                " works; a program must send no Origin header."
            )
        if self._token is not None and not self._has_token(self._token, headers, scope):
            return 401, (
                "The dashboard needs its token. Open the address that the driver has printed, which ends with"
                " ?token=...; a program sends the header 'Authorization: Bearer TOKEN'."
            )
        return None

    def _has_token(self, token: str, headers: Mapping[str, str], scope: Scope) -> bool:
        scheme, _, credential = headers.get("authorization", "").partition(" ")
        # Headers are decoded as Latin-1; compare the credential's original bytes.
        tokens = [credential.encode("latin-1")] if scheme.lower() == "bearer" else []
        query = scope.get("query_string", b"").decode("latin-1")
        tokens += [value.encode() for name, value in parse_qsl(query, errors="replace") if name == "token"]
        cookie = cookie_of(self._port, headers.get("host", ""))
        pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        tokens += [unquote(value).encode() for name, _, value in pairs if name == cookie]
        return any(hmac.compare_digest(candidate, token.encode()) for candidate in tokens)


def quoted(token: str) -> str:
    return quote(token, safe="")


def _is_navigation(headers: Mapping[str, str], scope: Scope) -> bool:
    is_page = scope["path"] == "/" or scope["path"].startswith("/query/")
    return is_page and scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate"


def _is_foreign(headers: Mapping[str, str]) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    # Browsers do not send Sec-Fetch-Site to a plain http address of another machine.
    origin = headers.get("origin")
    if origin is None:
        return False
    return origin.lower().partition("://")[2] != headers.get("host", "").lower()


def _split(host: str) -> SplitResult | None:
    try:
        split = urlsplit(f"//{host}")
        _ = split.port
    except ValueError:
        return None
    return split
