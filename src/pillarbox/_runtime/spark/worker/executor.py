"""The executor of this worker, as the reports of tasks name it."""

from __future__ import annotations

import subprocess
from functools import cache

from pillarbox._runtime.spark.homes.sockets import executor_pid


@cache
def executor_here() -> int | None:
    """Return the process of the executor that this Python worker belongs to; None: it is not known."""
    try:
        return executor_pid()
    except (OSError, ValueError, subprocess.SubprocessError):  # the executor has just ended
        return None
