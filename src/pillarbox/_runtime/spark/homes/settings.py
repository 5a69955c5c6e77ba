"""The user's settings of homes. Spark hands settings of a query's session to its tasks."""

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
"""How homes are made: ``fork``, ``spawn``, or ``off``: there are none, and tasks live in Spark's workers."""

MOST = "spark.pillarbox.homes.max"
"""How many homes a query may have on an executor; more state partitions share them."""

IDLE = "spark.pillarbox.homes.idle"
"""How long a home lives without an epoch."""

_IDLE = "2 hours"
_MODES = ("fork", "spawn", "off")


@dataclass(frozen=True)
class HomeSettings:
    """The settings of a query for its homes.

    Attributes:
        mode: ``fork`` or ``spawn``.
        most: how many homes the query may have on an executor.
        idle: how long a home lives without an epoch (seconds).
    """

    mode: str
    most: int
    idle: float


def settings_of(setting: Callable[[str], str | None]) -> HomeSettings | None:
    """Return the settings of homes; None: there are to be none.

    Args:
        setting: returns the value of a setting; None: the user has not set it.

    Raises:
        ConfigurationError: one of them is none that there is.
        ProgramError: the time is none.
    """
    return _settings(setting(MODE), setting(MOST), setting(IDLE))


@cache  # each task asks
def _settings(mode: str | None, most: str | None, idle: str | None) -> HomeSettings | None:
    mode = (mode or _default_mode()).strip().lower()
    if mode not in _MODES:
        raise ConfigurationError(f"{MODE} is 'fork', 'spawn' or 'off', not {shorten(mode)}")
    if mode == "off":
        return None
    most = (most or str(_default_most())).strip()
    if not most.isdigit() or int(most) < 1:
        raise ConfigurationError(f"{MOST} is a whole number from 1, not {shorten(most)}")
    return HomeSettings(mode, int(most), positive_millis(idle or _IDLE, IDLE) / 1000)


@cache
def _default_most() -> int:
    # Each home takes some megabytes, and no more of them work at a time than there are task slots: a few for each
    # processor are enough to keep those that do from sharing one, which would be sharing its interpreter.
    return min(32, max(8, round(4 * processors())))


def processors(root: str = "/sys/fs/cgroup") -> float:
    """Return how many processors this process may use: of the machine, of those it is bound to, or of its container.

    Args:
        root: where control groups are, of version 2 or 1.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _numbers(f"{root}/cpu.max") or [
        *_numbers(f"{root}/cpu/cpu.cfs_quota_us"),
        *_numbers(f"{root}/cpu/cpu.cfs_period_us"),
    ]
    return min(bound, quota[0] / quota[1]) if len(quota) == 2 and min(quota) > 0 else bound


def _numbers(file: str) -> list[int]:
    try:
        return [int(word) for word in Path(file).read_text().split()]
    except (OSError, ValueError):  # "max": there is no limit
        return []


def _default_mode() -> str:
    if sys.platform == "linux":
        return "fork"
    return "spawn" if sys.platform == "darwin" else "off"
