"""The routes of the dashboard: pages, and the JSON that they draw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from typing import Any

from pillarbox._dashboard.guard import COOKIE, Guard
from pillarbox._dashboard.shown import ShownQuery
from pillarbox._dashboard.views import list_entry, view_of
from pillarbox._errors import PillarboxError, describe

# How often a page is told at most, and at least (seconds).
_TELL_EVERY = 0.5
_AT_LEAST = 2.0
# A page may load nothing but what the dashboard itself serves, and nobody may frame it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def make_app(queries: Callable[[], Mapping[str, ShownQuery]], hosts: frozenset[str], token: str | None) -> Any:
    """Return the application, as ASGI has it.

    Args:
        queries: returns those that are shown, by their ids.
        hosts: see :class:`Guard`, as for ``token``.
    """
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    headers = {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }

    def query_of(request: Request) -> ShownQuery:
        found = queries().get(request.path_params["query"])
        if found is None:
            raise HTTPException(404, "there is no such query here: it may have ended long ago")
        return found

    async def page(request: Request) -> Response:
        response: Response = _file("index.html", Response, headers)
        if token is not None:
            response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return response

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _static():
            raise HTTPException(404)
        found: Response = _file(name, Response, headers)
        return found

    async def overview(request: Request) -> Response:
        shown = [await asyncio.to_thread(each.snapshot) for each in queries().values()]
        return JSONResponse([list_entry(each) for each in shown], headers=headers)

    async def view(request: Request) -> Response:
        snapshot = await asyncio.to_thread(query_of(request).snapshot)
        return JSONResponse(view_of(snapshot), headers=headers)

    async def events(request: Request) -> Response:
        query = query_of(request)

        async def told() -> AsyncIterator[str]:
            seen = 0
            while not await request.is_disconnected():
                version = await asyncio.to_thread(query.wait, seen, _AT_LEAST)
                snapshot = await asyncio.to_thread(query.snapshot)
                # Of a query that runs, the stages have changed as well.
                if version == seen and not snapshot.is_live:
                    yield ": nothing new\n\n"
                    continue
                seen = version
                yield f"data: {json.dumps(view_of(snapshot), separators=(',', ':'))}\n\n"
                if snapshot.run.ended is not None:
                    # A browser asks again after this time: there may be another run of the query by then.
                    yield "retry: 10000\n\n"
                    return
                await asyncio.sleep(_TELL_EVERY)

        return StreamingResponse(told(), media_type="text/event-stream", headers=headers)

    async def key(request: Request) -> Response:
        query = query_of(request)
        uid, text = request.query_params.get("uid", ""), request.query_params.get("key", "")
        try:
            found = await asyncio.to_thread(query.key_life, uid, text)
        except PillarboxError as error:
            return JSONResponse({"error": str(error)}, 409, headers=headers)
        except Exception as error:  # Spark's
            return JSONResponse({"error": describe(error)}, 500, headers=headers)
        return JSONResponse(found, headers=headers)

    return Guard(
        Starlette(
            routes=[
                Route("/", page),
                Route("/query/{query}", page),
                Route("/static/{name}", static),
                Route("/api/queries", overview),
                Route("/api/queries/{query}", view),
                Route("/api/queries/{query}/events", events),
                Route("/api/queries/{query}/key", key),
            ]
        ),
        hosts,
        token,
    )


def _static() -> set[str]:
    return {each.name for each in files("pillarbox._dashboard").joinpath("static").iterdir()}


def _file(name: str, response: Any, headers: Mapping[str, str]) -> Any:
    content = files("pillarbox._dashboard").joinpath("static").joinpath(name).read_bytes()
    kind = _KINDS[name[name.rindex(".") :]]
    return response(content, media_type=kind, headers=dict(headers))
