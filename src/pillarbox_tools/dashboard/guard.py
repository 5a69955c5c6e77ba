"""Rejects requests without the token, and requests from other sites.

Another site's page can make a browser send requests here in two ways:

- Its host name can resolve to this machine, so that the browser lets the page read the answers. Without a token, the
  guard accepts only loopback names in ``Host``. With a token, it accepts every name, because proxies need that: the
  token is in a cookie, which the browser sends only to the host name that set it.
- The page can send requests from its own origin. The guard refuses requests from other origins, except navigations,
  whose answers the page cannot read.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pillarbox_tools.addresses import is_loopback


def cookie_of(port: int, host: str) -> str:
    """Return the name of the cookie that holds the token.

    Browsers send a cookie to all ports of a host. So the cookie's name contains the dashboard's port and, if that port
    is forwarded, the port in the ``Host`` header.
    """
    _, asked = _name_and_port(host)
    return f"pillarbox_token_{port}" if asked in (None, port) else f"pillarbox_token_{port}_{asked}"


class Guard:
    """Middleware that passes allowed requests to an application, and answers other requests with 403 or 401.

    Args:
        token: the token that requests need (as ``Authorization: Bearer``, ``?token=`` or cookie), or None.
    """

    def __init__(self, app: ASGIApp, port: int, token: str | None) -> None:
        self._app = app
        self._port = port
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Request(scope)) if scope["type"] == "http" else None
        answer = self._app if refusal is None else PlainTextResponse(f"{refusal[1]}\n", refusal[0])
        await answer(scope, receive, send)

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        name, _ = _name_and_port(request.headers.get("host", ""))
        if self._token is None and not is_loopback(name):
            return 403, (
                f"This dashboard has no token, so it does not respond at the host name {name!r}. Open it at localhost,"
                " or pass a token, as in pillarbox.dashboard(query, token=...), and open the address that the driver"
                " prints, at any host name."
            )
        if not _is_navigation(request) and _is_foreign(request.headers):
            return 403, (
                "The dashboard refuses requests from pages of other sites. Links to its pages work; a program must not"
                " send an Origin header."
            )
        if self._token is not None and not _has_token(request, self._token, self._port):
            return 401, (
                "The dashboard needs its token. Open the address that the driver printed, which ends with"
                " ?token=...; a program must send the header 'Authorization: Bearer TOKEN'."
            )
        return None


def _has_token(request: Request, token: str, port: int) -> bool:
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    # Headers were decoded as Latin-1. The credential's original bytes are compared.
    tokens = [credential.encode("latin-1")] if scheme.lower() == "bearer" else []
    cookie = request.cookies.get(cookie_of(port, request.headers.get("host", "")))
    tokens += [value.encode() for value in (*request.query_params.getlist("token"), unquote(cookie or "")) if value]
    return any(hmac.compare_digest(candidate, token.encode()) for candidate in tokens)


def _is_navigation(request: Request) -> bool:
    path = request.scope["path"]
    is_page = path == "/" or path.startswith("/query/")
    return is_page and request.method == "GET" and request.headers.get("sec-fetch-mode") == "navigate"


def _is_foreign(headers: Mapping[str, str]) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    # Browsers do not send Sec-Fetch-Site to another machine over plain http.
    origin = headers.get("origin")
    if origin is None:
        return False
    return origin.lower().partition("://")[2] != headers.get("host", "").lower()


def _name_and_port(host: str) -> tuple[str, int | None]:
    try:
        split = urlsplit(f"//{host}")
        return split.hostname or "", split.port
    except ValueError:
        return "", None
