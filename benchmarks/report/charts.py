# SPDX-License-Identifier: Apache-2.0
"""Draws the charts in ``docs/benchmarks``, as SVG. Without a folder, nothing is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OURS, THEIRS, LIMIT = "#1b6ca8", "#d1495b", "#9aa5b1"
LINES = (OURS, THEIRS, "#3c8d5a", "#e0a030", LIMIT)


def _figure(title: str, width: float, height: float) -> tuple[Any, Any]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "pillarbox", "font.size": 9})
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, folder: Path, name: str) -> str:
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    return f"![{name}](benchmarks/{name}.svg)"


def draw_bars(
    folder: Path | None, name: str, title: str, values: Mapping[str, float], unit: str, *, limits: Sequence[str] = ()
) -> str:
    """Draw a bar for each value, with separate colors for pillarbox and limits. Returns the chart's Markdown."""
    if folder is None:
        return ""
    figure, axes = _figure(title, 7.2, 0.6 + 0.32 * len(values))
    colors = [LIMIT if label in limits else OURS if "pillarbox" in label else THEIRS for label in values]
    bars = axes.barh(list(values), list(values.values()), color=colors)
    axes.bar_label(bars, [f"{value:,.0f}" if value >= 10 else f"{value:,.2f}" for value in values.values()], padding=3)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(unit)
    axes.margins(x=0.12)
    return _save(figure, folder, name)


def draw_groups(
    folder: Path | None, name: str, title: str, groups: Mapping[str, Mapping[str, float]], unit: str
) -> str:
    """Draw a group of bars for each outer key, with a color for each inner key."""
    if folder is None:
        return ""
    figure, axes = _figure(title, 7.2, 3.2)
    series = list(next(iter(groups.values())))
    width = 0.8 / len(series)
    for index, (label, color) in enumerate(zip(series, LINES)):
        places = [position + index * width for position in range(len(groups))]
        axes.bar(places, [group.get(label, 0) for group in groups.values()], width, label=label, color=color)
    labels = [label.replace("/", "\n") for label in groups]
    axes.set_xticks([position + 0.4 - width / 2 for position in range(len(groups))], labels)
    axes.set_ylabel(unit)
    axes.legend(frameon=False, fontsize=8, ncols=len(series), loc="upper left", bbox_to_anchor=(0, -0.28))
    return _save(figure, folder, name)


def draw_lines(
    folder: Path | None, name: str, title: str, lines: Mapping[str, Mapping[int, float]], unit: str, across: str
) -> str:
    """Draw a line for each outer key, over the inner keys."""
    if folder is None:
        return ""
    figure, axes = _figure(title, 7.2, 2.8)
    for (label, points), color in zip(lines.items(), LINES):
        axes.plot(list(points), list(points.values()), marker="o", label=label, color=color)
    axes.set_xscale("log")
    axes.set_xticks(xs := sorted({x for points in lines.values() for x in points}), [f"{x:,}" for x in xs])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(across)
    axes.set_ylabel(unit)
    axes.legend(frameon=False, fontsize=8)
    return _save(figure, folder, name)
