"""Python processes that tests kill, each in its own process session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["ROOT", "START_SECONDS", "kill", "members", "start_python", "wait_for"]

ROOT = Path(__file__).parents[2]
START_SECONDS = 400


def members(session: int) -> dict[int, str]:
    results = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            state, _, _, member_of = rest.split()[:4]
            if int(member_of) == session and state != "Z":
                results[int(path.parent.name)] = name
    return results


def start_python(log: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill(session: int, victim: str) -> None:
    for process, name in members(session).items():
        is_target = (
            victim == "all" or (victim == "jvm" and name == "java") or (victim == "driver" and process == session)
        )
        if is_target:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    patience = time.monotonic() + 20
    while members(session) and time.monotonic() < patience:
        time.sleep(0.1)
    while left := members(session):
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.1)


def wait_for(what: Callable[[], object], process: subprocess.Popen[bytes], log: Callable[[], str]) -> None:
    patience = time.monotonic() + START_SECONDS
    while True:
        has_ended = process.poll() is not None
        if what():
            return
        assert not has_ended, log()
        assert time.monotonic() < patience, log()
        time.sleep(0.002)
