"""Draws the wind, the threshold and the alarms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def draw(hours: Sequence[Any], path: str) -> bool:
    """Draw rows of (ends, wind, threshold) into an SVG file. Returns False if matplotlib is not installed."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return False
    pyplot.rcParams["svg.hashsalt"] = "the same file each time"
    figure, axes = pyplot.subplots(figsize=(11, 4))
    ends = [hour.ends for hour in hours]
    axes.plot(ends, [hour.wind for hour in hours], linewidth=0.8, label="wind, mean of six hours")
    axes.step(ends, [hour.threshold for hour in hours], where="post", color="black", label="threshold")
    alarms = [hour for hour in hours if hour.wind > hour.threshold]
    axes.plot([hour.ends for hour in alarms], [hour.wind for hour in alarms], "r.", markersize=3, label="alarm")
    axes.set_ylabel("miles an hour")
    axes.legend(loc="upper right", frameon=False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    return True
