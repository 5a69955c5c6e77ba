# SPDX-License-Identifier: Apache-2.0
"""The machine, and the processor time and memory of processes, from Linux's ``/proc``."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
# An initial load of more than this is reported.
BUSY = 0.7


def machine() -> dict[str, Any]:
    """Describe this machine."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "spark": version("pyspark"),
    }


def load_before() -> float:
    """Return the machine's load. Prints a note if something else is running."""
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"NOTE: the machine is busy with other things (load {load:.1f})", flush=True)
    return round(load, 1)


def descendants(pid: int) -> list[int]:
    """Return a process's descendants."""
    pids: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            pids += [child, *descendants(child)]
    return pids


def _ticks(pid: int, *, ended: bool = False) -> int:
    """Return a process's processor time in ticks. With ``ended``, include its ended children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11 : 15 if ended else 13]))


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and all its descendants, including ended processes."""
    return sum(_ticks(process, ended=True) for process in (pid, *descendants(pid))) / _TICKS


def cpu_seconds_of(pids: Iterable[int]) -> float:
    """Return the processor time of some processes, without their descendants."""
    return sum(map(_ticks, pids)) / _TICKS


def cpu_by_program(pid: int) -> dict[str, float]:
    """Return the processor time (ms) of a process's live descendants, by program: Spark's Java, and Python workers."""
    times = {"java": 0.0, "python": 0.0}
    for child in descendants(pid):
        try:
            program = Path(f"/proc/{child}/comm").read_text().strip()
        except OSError:
            continue
        times["java" if program == "java" else "python"] += _ticks(child) * 1000 / _TICKS
    return times


def memory_kib(pid: int, *names: str) -> list[int]:
    """Return values in ``/proc/pid/status``, such as ``VmHWM``, or [] if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return []
    values = dict(line.split(":", 1) for line in lines)
    return [int(values[name].split()[0]) for name in names if name in values]


def memory_mb(pid: int, kind: str) -> float:
    """Return a process's memory: ``Pss:`` for its proportional share, ``Private_`` for memory that is not shared."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(kind)) / 1024


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kind_of_python(pid: int) -> str | None:
    """Return the kind of a Python process of Spark or pillarbox, or None for another process.

    Kinds are PySpark's ``worker`` and ``daemon``, and pillarbox's ``home`` and ``starter``.
    """
    try:
        parent = _parent(pid)
        command, above, root = (
            Path(f"/proc/{process}/cmdline").read_bytes() for process in (pid, parent, _parent(parent))
        )
        is_leader = os.getpgid(pid) == pid
    except OSError:
        return None

    def is_python(command: bytes) -> bool:  # Java's command has settings, with names of modules
        return b"python" in command.partition(b"\0")[0]

    for program, child, alone in (
        (b"pyspark.daemon", "worker", "daemon"),
        (b"pillarbox.daemon", "worker", "daemon"),
        (b"homes import starter", "home", "starter"),
    ):
        if program in command and is_python(command):
            if not (program in above and is_python(above)):
                return alone
            # A daemon that has imported the homes' modules also forks the starter.
            if is_leader:
                return "starter"
            return "home" if program in root and is_python(root) else child
    return None


def is_python_worker(pid: int) -> bool:
    """Return whether a process runs tasks or relays them."""
    return kind_of_python(pid) in ("worker", "home")


class Measured:
    """The use of processors and memory within a block, by this process and its descendants. Polls memory each 0.1 s.

    Attributes:
        seconds: wall-clock time.
        processor_s: processor time.
        peak_mib: the largest memory of Java, of all Python descendants together, and of any one of them.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._kib = {"java": 0, "python": 0, "python_process": 0}

    def __enter__(self) -> Measured:
        self._thread.start()
        self._processor_s = cpu_seconds(os.getpid())
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started
        self.processor_s = cpu_seconds(os.getpid()) - self._processor_s
        self._ended.set()
        self._thread.join()
        self.peak_mib = {what: kib // 1024 for what, kib in self._kib.items()}

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            now = dict.fromkeys(self._kib, 0)
            for pid in descendants(os.getpid()):
                try:
                    # Before it executes a command, a child of Java is a copy of Java with a different name.
                    program = os.readlink(f"/proc/{pid}/exe").rpartition("/")[2]
                except OSError:
                    continue
                kib = sum(memory_kib(pid, "VmRSS"))
                if program.startswith("python"):
                    now["python"] += kib
                    now["python_process"] = max(now["python_process"], kib)
                elif program == "java":
                    now["java"] = max(now["java"], kib)
            self._kib = {what: max(kib, now[what]) for what, kib in self._kib.items()}
