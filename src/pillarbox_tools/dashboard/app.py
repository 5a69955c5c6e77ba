"""The routes of the dashboard: pages, and the JSON that they draw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from typing import Any

from pillarbox._errors import PillarboxError, describe
from pillarbox_tools.dashboard.guard import COOKIE, Guard
from pillarbox_tools.dashboard.told import Told, as_object

# How often a page is told what is new (seconds). The driver looks at a query as often.
_TELL_EVERY = 1.0
# When a page asks again about a query that has ended (milliseconds).
_AGAIN = 10_000
# A page may load nothing but what the dashboard itself serves, and nobody may frame it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def make_app(queries: Callable[[], Mapping[str, Told]], hosts: frozenset[str], token: str | None) -> Any:
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

    def query_of(request: Request) -> Told:
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
        entries = [await asyncio.to_thread(each.entry) for each in queries().values()]
        return Response(f"[{','.join(entries)}]", media_type="application/json", headers=headers)

    async def view(request: Request) -> Response:
        fields, _ = await asyncio.to_thread(query_of(request).fields)
        return Response(as_object(fields), media_type="application/json", headers=headers)

    async def events(request: Request) -> Response:
        number = query_of(request).query.id

        async def told() -> AsyncIterator[str]:
            sent: Mapping[str, str] = {}
            # Another run of the query takes its place.
            while (query := queries().get(number)) is not None and not await request.is_disconnected():
                fields, has_ended = await asyncio.to_thread(query.fields)
                new = {name: text for name, text in fields.items() if sent.get(name) != text}
                # Browsers ignore such a line. To send it shows whether the page is open.
                yield f"data: {as_object(new)}\n\n" if new else ": nothing new\n\n"
                sent = fields
                if has_ended:
                    # A browser asks again after this time: there may be another run of the query by then.
                    yield f"retry: {_AGAIN}\n\n"
                    return
                await asyncio.sleep(_TELL_EVERY)

        return StreamingResponse(told(), media_type="text/event-stream", headers=headers)

    async def key(request: Request) -> Response:
        query = query_of(request).query
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
    return {each.name for each in files("pillarbox_tools.dashboard").joinpath("static").iterdir()}


def _file(name: str, response: Any, headers: Mapping[str, str]) -> Any:
    content = files("pillarbox_tools.dashboard").joinpath("static").joinpath(name).read_bytes()
    kind = _KINDS[name[name.rindex(".") :]]
    return response(content, media_type=kind, headers=dict(headers))
