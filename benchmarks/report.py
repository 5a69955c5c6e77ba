# SPDX-License-Identifier: Apache-2.0
"""All benchmarks in turn, and the page that shows what they said.

``run`` runs them one after the other, all or those that are named, and keeps the JSON that each ends with, its command
and a description of the machine in ``docs/benchmarks/NAME.json``. Nothing else should run meanwhile: three hours.

``write`` draws the charts of ``docs/benchmarks`` anew from these files, and fills in the blocks of
``docs/benchmarks.md``: what stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` is written here, all other
words are by hand.

Run them with ``make bench-all`` (``ARGS="keyed latency"`` for some) and ``make bench-report``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import ROOT, machine

PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "docs" / "benchmarks"
# What to run under each name: a target of the Makefile, and arguments.
RUNS: dict[str, tuple[str, str]] = {
    "keyed": ("bench-keyed", ""),
    "keyed-10k-keys": ("bench-keyed", "--keys 10000 --peers rows,identity"),
    "keyed-1m-keys": ("bench-keyed", "--keys 1000000 --peers rows,identity"),
    "keyed-100k-rows": ("bench-keyed", "--rows 100000 --peers rows,identity"),
    "sessions": ("bench-sessions", ""),
    "windows": ("bench-windows", ""),
    "join": ("bench-join", ""),
    "stateless": ("bench-stateless", ""),
    "epoch": ("bench-epoch", ""),
    "latency": ("bench-latency", ""),
    "async": ("bench-async", ""),
    "recovery": ("bench-recovery", "--large"),
    "operate": ("bench-operate", ""),
    "growth": ("bench-growth", ""),
    "state": ("bench-state", ""),
    "state-spark": ("bench-state", "--spark"),
    "memory": ("bench-memory", ""),
    "memory-async": ("bench-memory", "--async"),
    "mailbox": ("bench-mailbox", ""),
    "timers": ("bench-timers", ""),
}
# Their checkpoints are in memory: what they measure is small beside what a slow disk takes, and how much that varies.
IN_MEMORY = {"epoch", "latency", "growth", "windows", "join", "operate"}
MEMORY = Path("/dev/shm")
OURS, THEIRS, LIMIT = "#1b6ca8", "#d1495b", "#9aa5b1"
LINES = (OURS, THEIRS, "#3c8d5a", "#e0a030", LIMIT)

Result = dict[str, Any]


# -- running --


def command(name: str) -> str:
    """Return the command of a run."""
    target, arguments = RUNS[name]
    in_memory = f"TMPDIR={MEMORY} " if name in IN_MEMORY and MEMORY.is_dir() else ""
    return f'{in_memory}make {target} ARGS="{arguments}"' if arguments else f"{in_memory}make {target}"


def describe_machine() -> dict[str, Any]:
    """Describe the machine, with what Linux tells of it."""
    said = machine()
    del said["load"]
    try:
        model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        said["processor"] = model[1] if model else "unknown"
        said["memory_gib"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)
    except (OSError, ValueError):
        pass
    return said


def run(names: Sequence[str]) -> None:
    """Run benchmarks, and keep what they say."""
    RESULTS.mkdir(exist_ok=True)
    failed = []
    for name in names:
        target, arguments = RUNS[name]
        print(f"\n== {name}: {command(name)}", flush=True)
        begun = time.monotonic()
        environment = {"TMPDIR": str(MEMORY)} if name in IN_MEMORY and MEMORY.is_dir() else {}
        with subprocess.Popen(
            ["make", "-C", str(ROOT), target, f"ARGS={arguments}"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        ) as process:
            assert process.stdout is not None
            last = ""
            for line in process.stdout:
                print(line, end="", flush=True)
                last = line if line.startswith("{") else last
        if process.returncode or not last:
            failed.append(name)
            continue
        kept = {
            "command": command(name),
            "date": datetime.date.today().isoformat(),
            "seconds": round(time.monotonic() - begun),
            "machine": describe_machine(),
            "result": json.loads(last),
        }
        (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
    if failed:
        raise SystemExit(f"these failed: {', '.join(failed)}")


# -- drawing --


def _figure(title: str, width: float, height: float) -> tuple[Any, Any]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "pillarbox", "font.size": 9})
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, name: str) -> str:
    figure.savefig(RESULTS / f"{name}.svg", metadata={"Date": None})
    return f"![{name}](benchmarks/{name}.svg)"


def draw_bars(name: str, title: str, values: Mapping[str, float], unit: str, *, limits: Sequence[str] = ()) -> str:
    """Draw a bar for each value, pillarbox and limits in colors of their own; give the Markdown that shows it."""
    figure, axes = _figure(title, 7.2, 0.6 + 0.32 * len(values))
    colors = [LIMIT if label in limits else OURS if "pillarbox" in label else THEIRS for label in values]
    bars = axes.barh(list(values), list(values.values()), color=colors)
    axes.bar_label(bars, [f"{value:,.0f}" if value >= 10 else f"{value:,.2f}" for value in values.values()], padding=3)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(unit)
    axes.margins(x=0.12)
    return _save(figure, name)


def draw_groups(name: str, title: str, groups: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """Draw a group of bars for each outer key, a color for each inner one."""
    figure, axes = _figure(title, 7.2, 3.2)
    series = list(next(iter(groups.values())))
    width = 0.8 / len(series)
    for index, (label, color) in enumerate(zip(series, LINES)):
        places = [place + index * width for place in range(len(groups))]
        axes.bar(places, [group.get(label, 0) for group in groups.values()], width, label=label, color=color)
    labels = [label.replace("/", "\n") for label in groups]
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(groups))], labels)
    axes.set_ylabel(unit)
    axes.legend(frameon=False, fontsize=8, ncols=len(series), loc="upper left", bbox_to_anchor=(0, -0.28))
    return _save(figure, name)


def draw_lines(
    name: str, title: str, lines: Mapping[str, Mapping[int, float]], unit: str, across: str, *, log: bool = False
) -> str:
    """Draw a line for each outer key, over the inner ones."""
    figure, axes = _figure(title, 7.2, 2.8)
    for (label, points), color in zip(lines.items(), LINES):
        axes.plot(list(points), list(points.values()), marker="o", label=label, color=color)
    axes.set_xscale("log")
    axes.set_xticks(xs := sorted({x for points in lines.values() for x in points}), [f"{x:,}" for x in xs])
    axes.minorticks_off()
    if log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(across)
    axes.set_ylabel(unit)
    axes.legend(frameon=False, fontsize=8)
    return _save(figure, name)


# -- the page --


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown; all columns but the first are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _keyed(results: Mapping[str, Result], work: str) -> str:
    from benchmarks.keyed_work import CONTENDERS

    said = results[work]
    rates = said["rows_per_s"]
    ours = rates["pillarbox"]
    rows = [
        [
            CONTENDERS[name].title.strip("()"),
            f"{rate:,}",
            f"{min(said['rounds'][name]):,} to {max(said['rounds'][name]):,}",
            f"{said['cpu_s_per_1m_rows'][name]:.1f}" if name in said["cpu_s_per_1m_rows"] else "",
            f"{ours / rate:.2f}",
        ]
        for name, rate in rates.items()
    ]
    limits = [CONTENDERS[name].title.strip("()") for name in ("identity", "bare")]
    shown = {CONTENDERS[name].title.strip("()"): float(rate) for name, rate in rates.items()}
    title = f"{work}: {said['keys']:,} keys, {said['rows']:,} rows a micro-batch"
    chart = draw_bars(work, title, shown, "rows per second", limits=limits)
    return f"{chart}\n\n" + table(
        ["rows per second", "median", "rounds", "CPU s per 1M rows", "pillarbox over it"], rows
    )


def keyed(results: Mapping[str, Result]) -> str:
    return _keyed(results, "keyed")


def sessions(results: Mapping[str, Result]) -> str:
    return _keyed(results, "sessions")


def windows(results: Mapping[str, Result]) -> str:
    from benchmarks.bench_windows import CONTENDERS
    from benchmarks.window_work import WORKS

    parts = []
    for work, said in results["windows"]["works"].items():
        rates = {CONTENDERS[name].title.strip("()"): float(rate) for name, rate in said["rows_per_s"].items()}
        limits = [title for title in rates if title.startswith("identity")]
        title = f"{WORKS[work].title}, {said['keys']:,} keys"
        chart = draw_bars(f"windows-{work}", title, rates, "rows per second", limits=limits)
        rows = [
            [
                CONTENDERS[name].title.strip("()"),
                f"{rate:,}",
                f"{min(said['rounds'][name]):,} to {max(said['rounds'][name]):,}",
                f"{said['cpu_s_per_1m_rows'][name]:.1f}" if name in said["cpu_s_per_1m_rows"] else "",
                *(f"{over[name]:.2f}" if name in over else "1.00" for over in said["over"].values()),
            ]
            for name, rate in said["rows_per_s"].items()
        ]
        head = ["rows per second", "median", "rounds", "CPU s per 1M rows"]
        parts += [chart, table(head + [f"{CONTENDERS[ours].title} over it" for ours in said["over"]], rows)]
    for name, why in results["windows"]["left_out"].items():
        parts.append(f"{CONTENDERS[name].title} is left out: {why}")
    return "\n\n".join(parts)


def join(results: Mapping[str, Result]) -> str:
    from benchmarks.bench_join import CONTENDERS

    said = results["join"]
    rates = {CONTENDERS[name].title.strip("()"): float(rate) for name, rate in said["rows_per_s"].items()}
    limits = [title for title in rates if title.startswith("identity")]
    chart = draw_bars(
        "join", f"rows at most 5 seconds apart, {said['keys']:,} keys", rates, "rows per second", limits=limits
    )
    rows = [
        [
            CONTENDERS[name].title.strip("()"),
            f"{rate:,}",
            f"{min(said['rounds'][name]):,} to {max(said['rounds'][name]):,}",
            f"{said['cpu_s_per_1m_rows'][name]:.1f}" if name in said["cpu_s_per_1m_rows"] else "",
            *(f"{over[name]:.2f}" if name in over else "1.00" for over in said["over"].values()),
        ]
        for name, rate in said["rows_per_s"].items()
    ]
    head = ["rows per second", "median", "rounds", "CPU s per 1M rows"]
    parts = [chart, table(head + [f"{CONTENDERS[ours].title} over it" for ours in said["over"]], rows)]
    parts += [f"Spark's state format and store: {said['store']}."] if said["store"] else []
    parts += [f"{CONTENDERS[name].title} is left out: {why}" for name, why in said["left_out"].items()]
    return "\n\n".join(parts)


def keyed_sizes(results: Mapping[str, Result]) -> str:
    runs = [results[name] for name in ("keyed-10k-keys", "keyed", "keyed-1m-keys", "keyed-100k-rows")]
    rows = [
        [
            f"{said['keys']:,} keys, {said['rows']:,} rows a micro-batch",
            *(f"{said['rows_per_s'][name]:,}" for name in ("pillarbox", "rows", "identity")),
            f"{said['ratio']:.1f}",
            f"{said['of_identity']:.2f}",
        ]
        for said in runs
    ]
    head = ["", "pillarbox", "transformWithState", "identity", "over Spark's", "of the identity limit"]
    return table(head, rows)


def stateless(results: Mapping[str, Result]) -> str:
    said = results["stateless"]
    rates = {name.strip("()"): float(rate) for name, rate in said["rows_per_s"].items()}
    ours = rates["pillarbox"]
    rows = [[name, f"{rate:,.0f}", f"{ours / rate:.2f}"] for name, rate in rates.items()]
    title = f"map, filter, map over {said['rows']:,} rows"
    chart = draw_bars("stateless", title, rates, "rows per second", limits=["identity"])
    return f"{chart}\n\n" + table(["", "rows per second", "pillarbox over it"], rows)


def epoch(results: Mapping[str, Result]) -> str:
    said = results["epoch"]
    sides = list(said["epoch_ms"])
    rows = [
        [kind, *(f"{said['epoch_ms'][side][kind]:,}" for side in sides), f"{ratio:.2f}"]
        for kind, ratio in said["ratios"].items()
    ]
    return table(["milliseconds an epoch", *sides, "ratio"], rows)


def latency(results: Mapping[str, Result]) -> str:
    said = results["latency"]
    of = said["latency_ms"]
    points = list(of["pillarbox"])
    chart = draw_groups(
        "latency",
        f"source to sink, {said['rate']:,} rows a second",
        {p: {side: of[side][p] for side in of} for p in points},
        "milliseconds",
    )
    rows = [[side, *(f"{of[side][p]:,}" for p in points)] for side in of]
    rows.append(["pillarbox over Spark's", *(f"{of['pillarbox'][p] / of['spark'][p]:.2f}" for p in points)])
    return f"{chart}\n\n" + table(["milliseconds", *points], rows)


def asynchronous(results: Mapping[str, Result]) -> str:
    said = results["async"]["settings"]
    names = list(dict.fromkeys(name for each in said.values() for name in each["share_of_ideal"]))
    chart = draw_groups(
        "async",
        "service / latency in ms / requests at a time: share of the ideal",
        {
            setting: {name: 100 * each["share_of_ideal"].get(name, 0) for name in names if name != "bare"}
            for setting, each in said.items()
        },
        "percent",
    )
    rows = [
        [
            setting,
            f"{each['ideal']:,}",
            *(f"{each['share_of_ideal'][name]:.1%}" if name in each["share_of_ideal"] else "" for name in names),
            f"{each['ratio']:.3f} ({each['best_peer']})",
        ]
        for setting, each in said.items()
    ]
    return f"{chart}\n\n" + table(["setting", "ideal a second", *names, "over the best peer"], rows)


def recovery(results: Mapping[str, Result]) -> str:
    said = results["recovery"]
    chart = draw_lines(
        "recovery",
        "restart on Spark, to the first output",
        {
            "restart": {int(keys): sorted(each)[len(each) // 2] for keys, each in said["spark_restart_s"].items()},
            "of it reading state": {int(keys): each for keys, each in said["spark_state_s"].items()},
        },
        "seconds",
        "keys in state",
    )
    rows = [
        [
            f"{int(keys):,}",
            f"{sorted(each)[len(each) // 2]:.1f}",
            f"{min(each):.1f} to {max(each):.1f}",
            f"{said['spark_state_s'][keys]:.2f}",
        ]
        for keys, each in said["spark_restart_s"].items()
    ]
    alone = [
        [f"timers {kind}", f"{said['us_per_key'][kind]:.2f}", f"{ratio:.2f}"] for kind, ratio in said["ratios"].items()
    ]
    return "\n\n".join(
        [
            chart,
            table(["keys in state", "s to the first output", "restarts", "of it reading state"], rows),
            table([f"the task alone, {said['keys']:,} keys", "us a key", "over plain pickle"], alone),
        ]
    )


def operate(results: Mapping[str, Result]) -> str:
    said = results["operate"]
    rows = [
        [what, f"{sorted(seconds)[len(seconds) // 2]:.1f}", f"{min(seconds):.1f} to {max(seconds):.1f}"]
        for what, seconds in said["seconds"].items()
    ]
    ratios = [[work, f"{ratio:.2f}"] for work, ratio in said["ratios"].items()]
    return "\n\n".join(
        [
            table([f"{said['keys']:,} keys", "seconds", "rounds"], rows),
            table(["", "ratio"], ratios),
            table(
                ["largest memory, MiB", "Java", "all Python processes", "one of these"],
                [[what, *(f"{mib:,}" for mib in most.values())] for what, most in said["peak_mib"].items()],
            ),
        ]
    )


def growth(results: Mapping[str, Result]) -> str:
    said = results["growth"]
    costs = {tuple(map(int, key.split("/"))): value for key, value in said["us_per_row"].items()}
    subtasks = sorted({n for n, _, _ in costs})
    sizes, keys = sorted({size for _, size, _ in costs}), sorted({of for _, _, of in costs})
    lines = {
        f"{n} subtask{'s' * (n > 1)}": {size: costs[n, size, keys[1]] for size in sizes if (n, size, keys[1]) in costs}
        for n in subtasks
    }
    by_keys = {
        f"{n} subtask{'s' * (n > 1)}": {of: costs[n, sizes[1], of] for of in keys if (n, sizes[1], of) in costs}
        for n in subtasks
    }
    unit = "microseconds a row"
    charts = [
        draw_lines("growth-rows", "cost of a row by rows in a micro-batch", lines, unit, "rows in a micro-batch"),
        draw_lines("growth-keys", "cost of a row by keys", by_keys, unit, "keys in state"),
    ]
    rows = [
        [
            f"{n} subtask{'s' * (n > 1)}",
            f"{said['rows_ratios'][str(n)]:.2f}",
            f"{said['keys_ratios'][str(n)]:.2f}",
        ]
        for n in subtasks
    ]
    return "\n\n".join([*charts, table(["cost of a row", "at 16 times the rows", "at 100 times the keys"], rows)])


def state(results: Mapping[str, Result]) -> str:
    rows = []
    for name, what in (("state-spark", "on Spark"), ("state", "the task alone")):
        said = results[name]
        few, many = sorted(said["epoch_ms"], key=int)
        rows.append(
            [
                f"an epoch of {said['touched']:,} keys, {what}",
                f"{said['epoch_ms'][few]:,.1f} at {int(few):,} keys",
                f"{said['epoch_ms'][many]:,.1f} at {int(many):,} keys",
                f"{said['ratio']:.2f}",
                f"{said['bytes_ratio']:.2f}",
            ]
        )
    return table(["milliseconds", "few", "many", "ratio", "ratio of bytes written"], rows)


def memory(results: Mapping[str, Result]) -> str:
    rows = []
    for name, what in (("memory", "keyed count"), ("memory-async", "async requests")):
        said = results[name]
        few, many = said["rows"]
        rows.append([f"{what}: {many:,} rows in a micro-batch beside {few:,}", f"{said['ratio']:.2f}"])
    return table(["growth of a Python worker's memory", "ratio"], rows)


def mechanisms(results: Mapping[str, Result]) -> str:
    timers = results["timers"]
    rows = [["mails from another thread, over asyncio's call_soon_threadsafe", f"{results['mailbox']['ratio']:.2f}"]]
    for yardstick, ratios in timers["ratios"].items():
        rows += [
            [f"timers registered, deleted and fired, {times}, over {yardstick}", f"{ratio:.2f}"]
            for times, ratio in ratios.items()
        ]
    return table(["operations per second", "ratio"], rows)


def where(results: Mapping[str, Result]) -> str:
    """Say what it was taken on."""
    kept = [json.loads((RESULTS / f"{name}.json").read_text()) for name in RUNS if name in results]
    said = kept[0]["machine"]
    dates = sorted({each["date"] for each in kept})
    spark = next(each["result"]["spark"] for each in kept if "spark" in each["result"])
    return (
        f"{said.get('processor', said['machine'])}, {said['cores']} cores, {said.get('memory_gib', '?')} GiB,"
        f" Python {said['python']}, Spark {spark}; {', '.join(dates)}."
    )


# What each block of the page is made of, and by what.
BLOCKS: dict[str, tuple[Callable[[Mapping[str, Result]], str], tuple[str, ...]]] = {
    "machine": (where, ()),
    "keyed": (keyed, ("keyed",)),
    "keyed sizes": (keyed_sizes, ("keyed-10k-keys", "keyed", "keyed-1m-keys", "keyed-100k-rows")),
    "sessions": (sessions, ("sessions",)),
    "windows": (windows, ("windows",)),
    "join": (join, ("join",)),
    "stateless": (stateless, ("stateless",)),
    "epoch": (epoch, ("epoch",)),
    "latency": (latency, ("latency",)),
    "async": (asynchronous, ("async",)),
    "recovery": (recovery, ("recovery",)),
    "operate": (operate, ("operate",)),
    "growth": (growth, ("growth",)),
    "state": (state, ("state-spark", "state")),
    "memory": (memory, ("memory", "memory-async")),
    "mechanisms": (mechanisms, ("mailbox", "timers")),
}


def write() -> None:
    """Draw the charts, and fill in the page's blocks whose results are there."""
    results = {path.stem: json.loads(path.read_text())["result"] for path in RESULTS.glob("*.json")}
    page = PAGE.read_text()
    for name, (make, needed) in BLOCKS.items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        found = pattern.search(page)
        if found is None:
            raise SystemExit(f"{PAGE.name} has no block {name!r}")
        missing = [each for each in needed if each not in results]
        if missing:
            print(f"{name}: left as it is, {', '.join(missing)} was not run")
            continue
        commands = "".join(f"    {command(each)}\n" for each in needed)
        block = "\n\n".join(filter(None, [commands.rstrip("\n"), make(results)]))
        begin, end = found.groups()
        page = page[: found.start()] + f"{begin}\n{block}\n\n{end}" + page[found.end() :]
    PAGE.write_text(page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("run", "write"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to run: {', '.join(RUNS)}; all by default")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(RUNS):
        parser.error(f"{', '.join(sorted(unknown))}: known are {', '.join(RUNS)}")
    if arguments.what == "run":
        run(arguments.names or list(RUNS))
    write()


if __name__ == "__main__":
    main()
