"""Draws a run of the agents: requests over time with the rate limit, and the chat lines that epochs carried over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.agents.job import REQUESTS
from examples.agents.service import BUCKETS

COLORS = {"answered": "#2a6f97", "429": "#e09f3e", "dead": "#9e2a2b"}
LABELS = {"answered": "answered", "429": "refused with 429", "dead": "the model was dead"}


def draw(stats: dict[str, Any], epochs: Sequence[dict[str, Any]], killed: float | None, path: Path) -> None:
    """Write the picture as SVG.

    Args:
        stats: the service's statistics.
        epochs: the lines of ``epochs.jsonl``.
        killed: when the driver was killed (s since 1970), or None.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "pillarbox", "font.size": 9})
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    requests, carried = figure.subplots(2, sharex=True)
    by_time = {name: {int(at): count for at, count in counts.items()} for name, counts in stats["by_time"].items()}
    times = sorted({at for counts in by_time.values() for at in counts})
    first = times[0]
    bottom = dict.fromkeys(times, 0)
    for name, counts in by_time.items():
        heights = [BUCKETS * counts.get(at, 0) for at in times]
        left = [(at - first) / BUCKETS for at in times]
        requests.bar(
            left,
            heights,
            1 / BUCKETS,
            [bottom[at] for at in times],
            align="edge",
            color=COLORS[name],
            label=LABELS[name],
        )
        bottom = {at: bottom[at] + height for at, height in zip(times, heights)}
    requests.axhline(REQUESTS, color="black", linestyle="--", linewidth=1, label=f"budget, {REQUESTS} a second")
    requests.set_ylabel("requests a second")
    zero = stats["began"] + first / BUCKETS
    carried.step(
        [epoch["time"] - zero for epoch in epochs], [epoch["carried"] for epoch in epochs],
        where="post", color=COLORS["answered"], label="lines and timers in flight at the end of an epoch",
    )  # fmt: skip
    carried.plot([epoch["time"] - zero for epoch in epochs], [epoch["carried"] for epoch in epochs], ".", color="black")
    carried.set_ylabel("carried over")
    carried.set_xlabel("seconds")
    for axes in (requests, carried):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(bottom=0)
        if killed is not None:
            axes.axvline(killed - zero, color=COLORS["dead"], linewidth=1, label="the driver is killed")
    lines = {line: label for axes in (requests, carried) for line, label in zip(*axes.get_legend_handles_labels())}
    unique = {label: line for line, label in reversed(lines.items())}
    figure.legend(list(unique.values()), list(unique), loc="outside lower left", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
