# SPDX-License-Identifier: Apache-2.0
"""The tables and charts of ``docs/benchmarks.md``, each made of the results of one or some benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.reporting.charts import draw_bars, draw_groups, draw_lines
from benchmarks.reporting.results import Report


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, words: Sequence[int] = (0,)) -> str:
    """Return a table in Markdown.

    Args:
        words: the columns that have words in them; the others have numbers.
    """
    lines = [head, ["---" if column in words else "---:" for column in range(len(head))], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _keyed(report: Report, work: str) -> str:
    from benchmarks.keyed_work import CONTENDERS

    said = report[work]
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
    chart = draw_bars(report.charts, work, title, shown, "rows per second", limits=limits)
    return f"{chart}\n\n" + table(
        ["rows per second", "median", "rounds", "CPU s per 1M rows", "pillarbox over it"], rows
    )


def keyed(report: Report) -> str:
    return _keyed(report, "keyed")


def sessions(report: Report) -> str:
    return _keyed(report, "sessions")


def _contest(titles: Mapping[str, str], said: Mapping[str, Any]) -> str:
    """Return the table of a contest: each contender's rates, and how many times those are ours."""
    rows = [
        [
            titles[name].strip("()"),
            f"{rate:,}",
            f"{min(said['rounds'][name]):,} to {max(said['rounds'][name]):,}",
            f"{said['cpu_s_per_1m_rows'][name]:.1f}" if name in said["cpu_s_per_1m_rows"] else "",
            *(f"{over[name]:.2f}" if name in over else "1.00" for over in said["over"].values()),
        ]
        for name, rate in said["rows_per_s"].items()
    ]
    head = ["rows per second", "median", "rounds", "CPU s per 1M rows"]
    return table(head + [f"{titles[ours]} over it" for ours in said["over"]], rows)


def windows(report: Report) -> str:
    from benchmarks.bench_windows import CONTENDERS
    from benchmarks.window_work import WORKS

    parts = []
    for work, said in report["windows"]["works"].items():
        rates = {CONTENDERS[name].title.strip("()"): float(rate) for name, rate in said["rows_per_s"].items()}
        limits = [title for title in rates if title.startswith("identity")]
        title = f"{WORKS[work].title}, {said['keys']:,} keys"
        chart = draw_bars(report.charts, f"windows-{work}", title, rates, "rows per second", limits=limits)
        parts += [chart, _contest({name: each.title for name, each in CONTENDERS.items()}, said)]
    for name, why in report["windows"]["left_out"].items():
        parts.append(f"{CONTENDERS[name].title} is left out: {why}")
    wrong = sorted({line.rpartition(", number")[0] for line in report["windows"]["known_to_be_wrong"]})
    parts += [f"These results were wrong: {'; '.join(wrong)} ([why](performance.md#windows))."] if wrong else []
    return "\n\n".join(parts)


def join(report: Report) -> str:
    from benchmarks.bench_join import CONTENDERS

    said = report["join"]
    rates = {CONTENDERS[name].title.strip("()"): float(rate) for name, rate in said["rows_per_s"].items()}
    limits = [title for title in rates if title.startswith("identity")]
    chart = draw_bars(
        report.charts,
        "join",
        f"rows at most 5 seconds apart, {said['keys']:,} keys",
        rates,
        "rows per second",
        limits=limits,
    )
    parts = [chart, _contest({name: each.title for name, each in CONTENDERS.items()}, said)]
    parts += [f"Spark's state format and store: {said['store']}."] if said["store"] else []
    parts += [f"{CONTENDERS[name].title} is left out: {why}" for name, why in said["left_out"].items()]
    return "\n\n".join(parts)


def keyed_sizes(report: Report) -> str:
    runs = [report[name] for name in ("keyed-10k-keys", "keyed", "keyed-1m-keys", "keyed-100k-rows")]
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


def stateless(report: Report) -> str:
    said = report["stateless"]
    rates = {name.strip("()"): float(rate) for name, rate in said["rows_per_s"].items()}
    ours = rates["pillarbox"]
    rows = [[name, f"{rate:,.0f}", f"{ours / rate:.2f}"] for name, rate in rates.items()]
    title = f"map, filter, map over {said['rows']:,} rows"
    chart = draw_bars(report.charts, "stateless", title, rates, "rows per second", limits=["identity"])
    return f"{chart}\n\n" + table(["", "rows per second", "pillarbox over it"], rows)


def epoch(report: Report) -> str:
    from benchmarks.bench_epoch import SIDES, SUBTASKS

    said = report["epoch"]
    rows = [
        [
            f"{what}, {SIDES[side]}",
            f"{each[kind]:,}",
            f"{min(said['rounds'][side][kind]):,} to {max(said['rounds'][side][kind]):,}",
            f"{said['cpu_ms'][side][kind]:,}",
            f"{each[kind] / said['epoch_ms']['spark'][kind]:.2f}",
        ]
        for kind, what in (("empty", "without data"), ("rows", f"with {said['rows']:,} rows"))
        for side, each in said["epoch_ms"].items()
    ]
    head = ["milliseconds an epoch", "median", "rounds", "processor time", f"median over {SIDES['spark']}"]
    usual = f"pillarbox has {SUBTASKS['pillarbox']} subtasks on two partitions, if the table does not say otherwise."
    return f"{table(head, rows)}\n\n{usual}"


def start(report: Report) -> str:
    from benchmarks.bench_start import SIDES

    said = report["start"]
    requests = said["requests"] or {}
    rows = [
        [SIDES[side], f"{said['start_ms'][side]:,}", f"{said['first_ms'][side]:,}", f"{requests.get(side, '-'):}"]
        for side in SIDES
    ]
    ratios = [said["ratio"], said["first_ratio"], said["requests_ratio"]]
    rows.append(["pillarbox over it", *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios)])
    return table(["", "ms from start to first rows", "the first in a JVM", "requests of an epoch"], rows)


def subtasks(report: Report) -> str:
    from benchmarks.bench_epoch import SUBTASKS

    said = report["epoch"]
    rows = [
        [number, *(f"{said[what][side][kind]} ms" for kind in ("empty", "rows") for what in ("epoch_ms", "cpu_ms"))]
        for side, number in sorted(SUBTASKS.items(), key=lambda each: each[1])
    ]
    head = ["subtasks in 2 partitions", "epoch without data", "processor time"]
    return table([*head, f"epoch with {said['rows']:,} rows", "processor time"], rows)


def latency(report: Report) -> str:
    said = report["latency"]
    of = said["latency_ms"]
    points = list(of["pillarbox"])
    chart = draw_groups(
        report.charts,
        "latency",
        f"source to sink, {said['rate']:,} rows a second",
        {p: {side: of[side][p] for side in of} for p in points},
        "milliseconds",
    )
    rows = [[side, *(f"{of[side][p]:,}" for p in points)] for side in of]
    rows.append(["pillarbox over Spark's", *(f"{of['pillarbox'][p] / of['spark'][p]:.2f}" for p in points)])
    return f"{chart}\n\n" + table(["milliseconds", *points], rows)


def asynchronous(report: Report) -> str:
    said = report["async"]["settings"]
    names = list(dict.fromkeys(name for each in said.values() for name in each["share_of_ideal"]))
    chart = draw_groups(
        report.charts,
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


def recovery(report: Report) -> str:
    said = report["recovery"]
    chart = draw_lines(
        report.charts,
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


def operate(report: Report) -> str:
    said = report["operate"]
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


def growth(report: Report) -> str:
    said = report["growth"]
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
    across = "rows in a micro-batch"
    charts = [
        draw_lines(report.charts, "growth-rows", f"cost of a row by {across}", lines, unit, across),
        draw_lines(report.charts, "growth-keys", "cost of a row by keys", by_keys, unit, "keys in state"),
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


def state(report: Report) -> str:
    rows = []
    for name, what in (("state-spark", "on Spark"), ("state", "the task alone")):
        said = report[name]
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


def memory(report: Report) -> str:
    rows = []
    for name, what in (("memory", "keyed count"), ("memory-async", "async requests")):
        said = report[name]
        few, many = said["rows"]
        rows.append([f"{what}: {many:,} rows in a micro-batch compared with {few:,}", f"{said['ratio']:.2f}"])
    return table(["growth of a Python worker's memory", "ratio"], rows)


def mechanisms(report: Report) -> str:
    timers = report["timers"]
    rows = [["mails from another thread, over asyncio's call_soon_threadsafe", f"{report['mailbox']['ratio']:.2f}"]]
    for yardstick, ratios in timers["ratios"].items():
        rows += [
            [f"timers registered, deleted and fired, {times}, over {yardstick}", f"{ratio:.2f}"]
            for times, ratio in ratios.items()
        ]
    return table(["operations per second", "ratio"], rows)
