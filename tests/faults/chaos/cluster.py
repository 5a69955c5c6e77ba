"""A driver process of ``make chaos``, controlled from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyspark

from tests.faults.processes import ROOT, kill, members

__all__ = ["Driver", "reason", "spark_home"]

# To orders other than to start.
_ANSWERS = {"stop": ("stopped",), "finish": ("finished", "failed"), "rescale": ("rescaled", "failed")}
_ANSWERS |= {"available": ("exhausted", "failed"), "savepoint": ("written", "failed")}
_ANSWERS |= {"read": ("read", "failed", "stopped")}


class Driver:
    """A driver process and its children, in a process session of their own.

    Args:
        home: the run's folder, with ``shape.json``. The driver writes its output into a subfolder.

    Attributes:
        refused: number of failed file writes in the driver's log.
    """

    def __init__(self, home: Path, number: int, environment: dict[str, str]) -> None:
        folder = home / f"driver {number}"
        folder.mkdir()
        self.status = folder / "status"
        self.log_file = folder / "log"
        self.refused = 0
        path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.chaos.driver", str(home), str(self.status)],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "SPARK_LOCAL_IP": "127.0.0.1",
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        # Not a file: one could not grow while the disk is full.
        threading.Thread(target=self._write_log, daemon=True).start()

    def _write_log(self) -> None:
        assert self.process.stdout is not None
        with self.log_file.open("wb") as log:
            for line in self.process.stdout:
                log.write(line)
                log.flush()
                self.refused += b"File too large" in line

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")[-3000:]

    # -- orders --

    def order(self, what: str) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(f"{what}\n".encode())
            self.process.stdin.flush()

    def said(self) -> list[tuple[str, str]]:
        if not self.status.exists():
            return []
        lines = self.status.read_text().splitlines(keepends=True)
        reports = [json.loads(line) for line in lines if line.endswith("\n")]
        return [(what, why) for what, why in reports]

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def is_ready(self) -> bool:
        return bool(self.said())

    def is_running(self) -> bool:
        return self.said()[-1:] == [("started", "")]

    def has_answered(self, order: str, position: int) -> bool:
        expected = _ANSWERS.get(order.partition(" ")[0].partition("-")[0], ("started", "failed"))
        answered = any(what in expected for what, _ in self.said()[position:])
        return answered or self.is_done() or not self.is_alive()

    def has_done(self, order: str, position: int) -> bool:
        return (_ANSWERS[order][0], "") in self.said()[position:]

    def is_done(self) -> bool:
        return self.said()[-1:] == [("done", "")]

    def hung(self) -> bool:
        return not self.is_alive() and "Timeout (0:0" in self.log_file.read_text(errors="replace")

    def failure(self) -> str | None:
        last = self.said()[-1:]
        if last and (last[0][0] == "failed" or (last[0][0] == "stopped" and last[0][1])):
            return last[0][1]
        if not self.is_alive() and not self.is_done():
            lines = [line for line in self.log().splitlines() if "Error" in line or "Exception" in line]
            return f"the driver is dead: {lines[-1] if lines else ''}"
        return None

    # -- processes --

    def java(self) -> list[int]:
        parents = self._parents()
        results = [process for process, (name, _) in parents.items() if name == "java"]
        return sorted(results, key=lambda process: (parents[process][1] in results, process))

    def workers(self) -> tuple[list[int], list[int]]:
        parents = self._parents()
        # A process of Python that the driver has begun forks the daemons (`support/forked_python.py`).
        servers = {
            process
            for process, (name, parent) in parents.items()
            if parent == self.process.pid and name.startswith("python")
        }
        daemons = [process for process, (_, parent) in parents.items() if parent in servers]
        return sorted(daemons), sorted(process for process, (_, parent) in parents.items() if parent in daemons)

    def homes(self) -> tuple[list[int], list[int]]:
        parents, (daemons, _) = self._parents(), self.workers()
        starters = [
            process
            for process, (name, _) in parents.items()
            if name.startswith("python") and process not in daemons and _group(process) == process != self.process.pid
        ]
        return sorted(starters), sorted(process for process, (_, parent) in parents.items() if parent in starters)

    def _parents(self) -> dict[int, tuple[str, int]]:
        results = {}
        for process, name in members(self.process.pid).items():
            with suppress(OSError):
                rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                results[process] = (name, int(rest[1]))
        return results

    def leave(self) -> None:
        patience = time.monotonic() + 60
        while self.java() and time.monotonic() < patience:
            time.sleep(0.1)

    def kill_workers(self) -> None:
        for process in (pid for some in (*self.workers(), *self.homes()) for pid in some):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def end(self, victim: str = "all") -> None:
        for process in members(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
        kill(self.process.pid, victim)
        self.process.wait()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()


def _group(process: int) -> int:
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return 0


def spark_home(folder: Path) -> str:
    folder.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name != "work":
            (folder / path.name).symlink_to(path)
    return str(folder)


def reason(failure: str) -> str:
    message = failure.partition("=== Streaming Query ===")[0]
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    errors: Sequence[str] = [line for line in lines if "Error" in line or "Exception" in line] or lines[:1]
    return errors[-1][:300] if errors else "nothing"
