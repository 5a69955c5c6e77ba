"""Identifies the Spark executor that a worker belongs to, for task reports."""

from __future__ import annotations

import subprocess
from functools import cache

from pillarbox._runtime.spark.homes.sockets import executor_pid


@cache
def executor_here() -> int | None:
    """Return the pid of this worker's executor, or None if unknown."""
    try:
        return executor_pid()
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
