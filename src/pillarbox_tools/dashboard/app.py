"""The dashboard's routes: pages and their JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib.resources import files
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pillarbox._errors import PillarboxError, describe
from pillarbox_tools.dashboard.guard import Guard, cookie_of
from pillarbox_tools.dashboard.versioned_view import VersionedView

# Pages load resources only from the dashboard itself, and cannot be framed.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_STATIC = {file.name: file.read_bytes() for file in files("pillarbox_tools.dashboard").joinpath("static").iterdir()}
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def make_app(queries: Callable[[], Mapping[str, VersionedView]], port: int, token: str | None) -> Guard:
    headers = {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }

    def query_of(request: Request) -> VersionedView:
        query = queries().get(request.path_params["query"])
        if query is None:
            raise HTTPException(404, "This driver has no such query. Queries that ended long ago are removed.")
        return query

    async def page(request: Request) -> Response:
        # Relative addresses, because a proxy may serve the dashboard under a prefix.
        root = "../" if "query" in request.path_params else "./"
        html = _STATIC["index.html"].replace(b"{root}", root.encode())
        response = Response(html, media_type="text/html", headers=headers)
        if token is not None:
            # A link on another site may open the page, so the cookie is not "strict".
            cookie = cookie_of(port, request.headers.get("host", ""))
            response.set_cookie(cookie, quote(token, safe=""), httponly=True, samesite="lax")
        return response

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            raise HTTPException(404)
        return Response(_STATIC[name], media_type=_KINDS[name[name.rindex(".") :]], headers=headers)

    async def overview(request: Request) -> Response:
        entries = [await asyncio.to_thread(query.entry) for query in queries().values()]
        return Response(f"[{','.join(entries)}]", media_type="application/json", headers=headers)

    async def view(request: Request) -> Response:
        text = await asyncio.to_thread(query_of(request).since, request.query_params.get("since", ""))
        return Response(text, media_type="application/json", headers=headers)

    async def key(request: Request) -> Response:
        query = query_of(request).query
        uid, text = request.query_params.get("uid", ""), request.query_params.get("key", "")
        try:
            life = await asyncio.to_thread(query.key_life, uid, text)
        except Exception as error:
            message, status = (str(error), 409) if isinstance(error, PillarboxError) else (describe(error), 500)
            return JSONResponse({"error": message}, status, headers=headers)
        return JSONResponse(life, headers=headers)

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/query/{query}", page),
            Route("/static/{name}", static),
            Route("/api/queries", overview),
            Route("/api/queries/{query}", view),
            Route("/api/queries/{query}/key", key),
        ]
    )
    # A redirect would contain this server's host and path, which a proxy may change.
    app.router.redirect_slashes = False
    return Guard(app, port, token)
