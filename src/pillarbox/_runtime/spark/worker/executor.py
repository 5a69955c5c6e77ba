"""Identifies a worker's executor, for task reports."""

from __future__ import annotations

import subprocess
from functools import cache

from pillarbox._runtime.spark.homes.sockets import executor_pid


@cache
def executor_here() -> int | None:
    try:
        return executor_pid()
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
