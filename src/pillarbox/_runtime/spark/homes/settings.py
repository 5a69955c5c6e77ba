"""The user's settings of homes. Spark hands settings of a query's session to its tasks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from pillarbox._errors import ConfigurationError, shorten
from pillarbox._time.duration import positive_millis

MODE = "spark.pillarbox.homes"
"""How homes are made: ``fork``, ``spawn``, or ``off``: there are none, and tasks live in Spark's workers."""

MOST = "spark.pillarbox.homes.max"
"""How many homes an executor may have; more state partitions share them."""

IDLE = "spark.pillarbox.homes.idle"
"""How long a home lives without an epoch."""

# Each home takes some megabytes, and no more of them work at a time than there are task slots: a few for each processor
# are enough to keep those that do from sharing one, which would be sharing its interpreter.
_MOST = min(32, max(8, 4 * (os.cpu_count() or 1)))
_IDLE = "2 hours"
_MODES = ("fork", "spawn", "off")


@dataclass(frozen=True)
class HomeSettings:
    """The settings of a query for its homes.

    Attributes:
        mode: ``fork`` or ``spawn``.
        most: how many homes an executor may have.
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
    mode = (setting(MODE) or _default_mode()).strip().lower()
    if mode not in _MODES:
        raise ConfigurationError(f"{MODE} is 'fork', 'spawn' or 'off', not {shorten(mode)}")
    if mode == "off":
        return None
    most = (setting(MOST) or str(_MOST)).strip()
    if not most.isdigit() or int(most) < 1:
        raise ConfigurationError(f"{MOST} is a whole number from 1, not {shorten(most)}")
    return HomeSettings(mode, int(most), positive_millis(setting(IDLE) or _IDLE, IDLE) / 1000)


def _default_mode() -> str:
    if sys.platform == "linux":
        return "fork"
    return "spawn" if sys.platform == "darwin" else "off"
