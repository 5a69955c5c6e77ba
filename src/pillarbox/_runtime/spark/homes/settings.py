"""The user's settings for homes, which Spark passes from the session to tasks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pillarbox._errors import ConfigurationError, shorten
from pillarbox._time.duration import positive_millis

MODE = "spark.pillarbox.homes"
"""How homes are started: ``fork``, ``spawn``, or ``off`` to run tasks in Spark's workers."""

MOST = "spark.pillarbox.homes.max"
"""The maximum number of a program's homes on an executor. Further state partitions share homes."""

IDLE = "spark.pillarbox.homes.idle"
"""How long an unused home is kept."""

_IDLE = "2 hours"
_MODES = ("fork", "spawn", "off")


@dataclass(frozen=True)
class HomeSettings:
    """A query's settings for homes."""

    mode: str
    most: int
    idle: float


def settings_of(setting: Callable[[str], str | None]) -> HomeSettings | None:
    return _settings(setting(MODE), setting(MOST), setting(IDLE))


@cache
def _settings(mode: str | None, most: str | None, idle: str | None) -> HomeSettings | None:
    mode = (mode or _default_mode()).strip().lower()
    if mode not in _MODES:
        raise ConfigurationError(f"{MODE} must be 'fork', 'spawn' or 'off', not {shorten(mode)}")
    if mode == "off":
        return None
    most = (most or str(_default_most())).strip()
    if not most.isdigit() or int(most) < 1:
        raise ConfigurationError(f"{MOST} must be a positive integer, not {shorten(most)}")
    return HomeSettings(mode, int(most), positive_millis(idle or _IDLE, IDLE) / 1000)


@cache
def _default_most() -> int:
    # Limited, because each home takes some megabytes.
    return min(32, max(8, round(4 * processors())))


def processors(root: str = "/sys/fs/cgroup") -> float:
    """Return how many processors the process may use, given its CPU affinity and the container's quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _numbers(f"{root}/cpu.max") or [
        *_numbers(f"{root}/cpu/cpu.cfs_quota_us"),
        *_numbers(f"{root}/cpu/cpu.cfs_period_us"),
    ]
    return min(bound, quota[0] / quota[1]) if len(quota) == 2 and min(quota) > 0 else bound


def _numbers(file: str) -> list[int]:
    try:
        return [int(word) for word in Path(file).read_text().split()]
    except (OSError, ValueError):  # "max": no limit
        return []


def _default_mode() -> str:
    if sys.platform == "linux":
        return "fork"
    return "spawn" if sys.platform == "darwin" else "off"
