"""Identifies processes by pid and start time, because pids are reused."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

from pillarbox._runtime.spark.tasks.leaving import flush_output, run_exit_handlers


class OsProcess(NamedTuple):
    """A process of this machine."""

    pid: int
    start: int

    @staticmethod
    def of(pid: int) -> OsProcess:
        if sys.platform == "linux":
            return OsProcess(pid, int(status(pid)[19]))
        os.kill(pid, 0)
        return OsProcess(pid, 0)

    def has_ended(self) -> bool:
        """Return whether the process has exited or is a zombie."""
        try:
            if sys.platform != "linux":
                os.kill(self.pid, 0)
                return False
            fields = status(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return True
        except PermissionError:
            return False
        return fields[0] in "ZX" or int(fields[19]) != self.start

    def age(self) -> float | None:
        if sys.platform != "linux":
            return None
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.start / os.sysconf("SC_CLK_TCK")

    def kill(self, number: int) -> None:
        watched = self.watch()
        try:
            if self.has_ended():
                return
            if watched is not None and hasattr(signal, "pidfd_send_signal"):
                signal.pidfd_send_signal(watched, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            pass
        finally:
            if watched is not None:
                os.close(watched)

    def watch(self) -> int | None:
        """Return a file descriptor that becomes readable when the process exits, or None if the caller must poll."""
        if not hasattr(os, "pidfd_open"):
            return None
        try:
            return os.pidfd_open(self.pid)
        except OSError:
            return None


def watch_all(processes: Iterable[OsProcess]) -> tuple[list[int], list[OsProcess]]:
    """Return file descriptors that become readable when a process exits, and processes to poll."""
    files, others = [], []
    for process in processes:
        file = process.watch()
        if file is None or process.has_ended():
            others.append(process)
        else:
            files.append(file)
    return files, others


def status(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the process state on (``man proc_pid_stat``)."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def leave(code: int) -> NoReturn:
    """Exit without waiting for user threads. Runs exit handlers only if ``code`` is 0."""
    if code == 0:
        run_exit_handlers()
    flush_output()
    os._exit(code)
