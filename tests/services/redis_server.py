"""A real Redis server on loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

ROOT = Path(__file__).resolve().parents[2]
MISSING = "there is no redis-server, and it could not be installed: apt-get install redis-server (as root)"


def find_redis() -> str | None:
    program = shutil.which("redis-server")
    if program is None:
        script = ["sh", str(ROOT / "scripts" / "setup.sh"), "redis"]
        subprocess.run(script, check=False, stdin=subprocess.DEVNULL)
        program = shutil.which("redis-server")
    return program


@contextmanager
def running_redis(program: str, folder: Path) -> Iterator[str]:
    """Run a server without persistence, and yield its address, such as ``redis://127.0.0.1:41234``."""
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(5):
        port = free_port()
        options = {"bind": "127.0.0.1", "port": port, "save": "", "appendonly": "no", "dir": folder}
        command = [program, *(part for name, value in options.items() for part in (f"--{name}", str(value)))]
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            # If another process has taken the port, the server ends.
            if wait_until_it_answers(process, port):
                yield f"redis://127.0.0.1:{port}"
                return
        finally:
            process.terminate()
            process.wait()
    raise RuntimeError(f"redis-server does not start: {(folder / 'log').read_text()[-2000:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_it_answers(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + 100
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with redis.Redis(port=port) as client:
                return int(client.info("server")["process_id"]) == process.pid
        except redis.ConnectionError:
            time.sleep(0.02)
    return False


__all__ = ["MISSING", "find_redis", "running_redis"]
