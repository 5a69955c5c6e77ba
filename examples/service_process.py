"""Runs an example's service in a separate process, on loopback. Its faults are command-line options."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from aiohttp import web

ROOT = Path(__file__).resolve().parents[1]


def run_service(doc: str | None, troubles_class: type[Any], app_of: Callable[[Any], web.Application]) -> None:
    """Parse the command line, and serve until the process ends.

    Args:
        doc: the module's docstring.
        troubles_class: a dataclass of faults, whose fields are the options.
        app_of: creates the web application for given faults.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--while-stdin", action="store_true", help="end with the standard input")
    for field in fields(troubles_class):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    arguments = vars(parser.parse_args())
    port = arguments.pop("port")
    if arguments.pop("while_stdin"):
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    asyncio.run(_serve(app_of, troubles_class(**arguments), port))


async def _serve(app_of: Callable[[Any], web.Application], troubles: Any, port: int) -> None:
    """Serve requests. The first line of the output is the service's address."""
    runner = web.AppRunner(app_of(troubles), access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    host, bound, *_ = runner.addresses[0]
    print(f"http://{host}:{bound}", flush=True)
    await asyncio.Event().wait()


@dataclass
class RunningService:
    """A service in a separate process.

    Attributes:
        url: the address of the service, such as ``http://127.0.0.1:41234``.
    """

    url: str
    pid: int

    def control(self, **troubles: float) -> None:
        """Change the service's faults."""
        with urlopen(Request(f"{self.url}/control", json.dumps(troubles).encode()), timeout=100) as answer:
            answer.read()

    def stats(self) -> dict[str, Any]:
        """Return the service's counts so far."""
        with urlopen(f"{self.url}/stats", timeout=100) as answer:
            stats: dict[str, Any] = json.load(answer)
            return stats


@contextmanager
def running(module: str, port: int = 0, **troubles: float) -> Iterator[RunningService]:
    """Run a service in a separate process, which ends with the ``with`` block or with this process."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in troubles.items()]
    command = [sys.executable, "-m", module, f"--port={port}", "--while-stdin", *options]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"the service did not start: exit code {process.wait()}")
        yield RunningService(url, process.pid)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
