"""Draws three days of each airport, around the day with the most alarms: delays, limits and rain."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from examples.delays.job import Hour

NEW_YORK = ZoneInfo("America/New_York")
DELAY, ALARM, LIMIT, RAIN = "#57606a", "#d9480f", "#8250df", "#1c7ed6"
GAP = timedelta(minutes=5)


def worst_day(hours: Sequence[Hour]) -> date:
    """Return the middle day of the three consecutive days with the most alarms."""
    alarms = Counter(hour.ends.astimezone(NEW_YORK).date() for hour in hours if hour.alarm)
    days = sorted({hour.ends.astimezone(NEW_YORK).date() for hour in hours})
    return max(days, key=lambda day: sum(alarms[day + timedelta(days=shift)] for shift in (-1, 0, 1)))


def draw(hours: Sequence[Hour], path: Path) -> date:
    """Write the picture as SVG. Returns the day in its middle."""
    import matplotlib as mpl
    from matplotlib.dates import DateFormatter, HourLocator
    from matplotlib.figure import Figure

    day = worst_day(hours)
    start = datetime(day.year, day.month, day.day, 4, tzinfo=NEW_YORK) - timedelta(days=1)
    shown = [hour for hour in hours if start <= hour.ends < start + timedelta(days=3)]
    airports = sorted({hour.origin for hour in shown})
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "pillarbox", "font.size": 9})
    figure = Figure(figsize=(9, 1.2 + 1.7 * len(airports)), layout="constrained")
    panels = figure.subplots(len(airports), sharex=True, sharey=True, squeeze=False)[:, 0]
    end = start + timedelta(days=2)
    title = f"Minutes that departures were late on average in an hour, {start:%-d %B} to {end:%-d %B %Y}"
    panels[0].set_title(title, fontsize=10, loc="left")
    for axes, airport in zip(panels, airports):
        _draw_airport(axes, [hour for hour in shown if hour.origin == airport])
        axes.set_ylabel(airport)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].xaxis.set_major_locator(HourLocator(byhour=range(0, 24, 6), tz=NEW_YORK))
    panels[-1].xaxis.set_major_formatter(DateFormatter("%-d %b\n%H:%M", tz=NEW_YORK))
    lines = {line.get_label(): line for axes in figure.axes for line in axes.get_legend_handles_labels()[0]}
    figure.legend(list(lines.values()), list(map(str, lines)), loc="outside lower left", ncols=4, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    return day


def _draw_airport(axes: Any, hours: Sequence[Hour]) -> None:
    rows = list(_with_gaps(hours))
    times = [hour.ends for hour in rows]
    delays = [math.nan if hour.delay is None else hour.delay for hour in rows]
    axes.plot(times, delays, color=DELAY, linewidth=1, label="delay")
    limits = [math.nan if hour.limit is None else hour.limit for hour in rows]
    alarms = [hour.alarm for hour in rows]
    axes.fill_between(times, limits, delays, where=alarms, color=ALARM, alpha=0.5, linewidth=0, label="above the limit")
    axes.set_ylim(bottom=0)
    axes.step(times, limits, where="post", color=LIMIT, linestyle="--", linewidth=1, label="limit")
    rain = axes.twinx()
    wet = {hour.ends.replace(minute=0): hour.rain for hour in hours if hour.rain}
    rain.bar(
        list(wet), list(wet.values()), width=1 / 24, align="edge", color=RAIN, alpha=0.5, label="rain, inches an hour"
    )
    rain.set_ylim(0, 1)
    rain.spines[["top", "right"]].set_visible(False)
    rain.set_yticks([])


def _with_gaps(hours: Sequence[Hour]) -> Iterator[Hour]:
    """Yield the hours. Before a gap, such as a night, also yield an empty hour, which interrupts the drawn lines."""
    before: Hour | None = None
    for hour in hours:
        if before is not None and hour.ends - before.ends > GAP:
            yield before._replace(ends=before.ends + GAP, delay=None, limit=None, alarm=False)
        yield hour
        before = hour
