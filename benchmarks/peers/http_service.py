# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="import-not-found"
"""The lookups' service: HTTP on loopback. Each answer is delayed by a fixed latency.

``GET /<id>`` returns ``{"id": <id>, "score": <number>}``. Connections are kept alive. The service prints its port, and
ends with its standard input, so that it never outlives its parent.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys

from aiohttp import web

from benchmarks.peers.lookups import new_event_loop, score

# Thousands of clients connect at once. With a shorter queue, some would retry a second later.
BACKLOG = 4096


async def serve(latency: float) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        key = int(request.path[1:])
        await asyncio.sleep(latency)
        return web.Response(text=f'{{"id": {key}, "score": {score(key)}}}', content_type="application/json")

    # Without routes and middlewares, because the service competes with its clients for processors.
    runner = web.ServerRunner(web.Server(handle, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=BACKLOG).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--latency", type=float, default=0.01, help="seconds")
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    new_event_loop().run_until_complete(serve(arguments.latency))


if __name__ == "__main__":
    main()
