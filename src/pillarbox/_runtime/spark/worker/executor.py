"""The worker's executor, as task reports name it."""

from __future__ import annotations

import subprocess
from functools import cache

from pillarbox._runtime.spark.homes.sockets import executor_pid


@cache
def executor_here() -> int | None:
    """Return the process id of this Python worker's executor, or None if it cannot be determined."""
    try:
        return executor_pid()
    except (OSError, ValueError, subprocess.SubprocessError):  # the executor has just ended
        return None
