# SPDX-License-Identifier: Apache-2.0
"""The sentences of ``docs`` that have measured figures in them."""

from __future__ import annotations

import statistics
import textwrap

from benchmarks.reporting.results import Report
from benchmarks.reporting.tables import table

WIDTH = 125


def paragraph(*sentences: str) -> str:
    """Return a paragraph, wrapped as those that are written by hand."""
    return textwrap.fill(" ".join(sentences), WIDTH, break_long_words=False, break_on_hyphens=False)


def times(factor: float) -> str:
    """Write a factor with two or three digits."""
    return f"{factor:.0f}" if factor >= 10 else f"{factor:.1f}" if factor >= 2 else f"{factor:.2f}"


def rounded(value: float) -> str:
    """Write a rate with three digits."""
    return f"{float(f'{value:.3g}'):,.0f}"


# -- benchmarks.md --


def keyed_words(report: Report) -> str:
    few, usual, many = (report[name] for name in ("keyed-10k-keys", "keyed", "keyed-1m-keys"))
    ours, limits = usual["rows_per_s"]["pillarbox"], [usual["rows_per_s"][name] for name in ("identity", "bare")]
    together = 1 / sum(1 / limit for limit in limits)
    factors = ", ".join(f"{times(said['ratio'])} with {said['rows'] // said['keys']:,}" for said in (few, usual, many))
    return "\n\n".join(
        [
            paragraph(
                "`transformWithState` takes much longer for a key that has rows in a micro-batch than for a row. So the"
                " fewer rows a key has in a micro-batch, the further apart the two are. How many times as fast"
                f" pillarbox is, by rows a key: {factors}."
            ),
            paragraph(
                "The two limits one after the other, the hops and then the bare loop over the function, would give"
                f" {rounded(together)} rows a second. pillarbox has {rounded(ours)}: the task runtime itself"
                f" (checkpointed state and timers, watermarks, buffers) takes {1 - ours / together:.0%} of the time."
            ),
        ]
    )


def recovery_words(report: Report) -> str:
    said = report["recovery"]
    restarts = {int(keys): statistics.median(each) for keys, each in said["spark_restart_s"].items()}
    few, many = min(restarts), max(restarts)
    reading = said["spark_state_s"][str(many)]
    return paragraph(
        f"A restart takes {restarts[few]:.1f} s with {few:,} keys: that is a new Java, a new query and its first"
        f" micro-batch. With {many:,} keys it takes {restarts[many]:.1f} s, of which reading the state takes"
        f" {reading:.1f} s."
    )


def state_words(report: Report) -> str:
    said = report["state"]
    few, many = sorted(map(int, said["epoch_ms"]))
    longer = said["epoch_ms"][str(many)] - said["epoch_ms"][str(few)]
    return paragraph(
        "The task alone shows the processor's caches: to touch a key of a plain dictionary of lists takes"
        f" {times(said['plain_dict_ratio'])} times as long with {many:,} keys as with {few:,}."
        f" An epoch takes {longer:.1f} ms longer; a micro-batch on Spark takes"
        f" {report['state-spark']['epoch_ms'][str(many)]:.0f} ms."
    )


# -- performance.md, windows.md --


def where_time_goes(report: Report) -> str:
    said = report["keyed"]
    rates = said["rows_per_s"]
    seconds = {name: 1e6 / rates[name] for name in ("pillarbox", "identity", "bare")}
    rest = seconds["pillarbox"] - seconds["identity"] - seconds["bare"]
    share = {name: f"{each / seconds['pillarbox']:.0%}" for name, each in {**seconds, "rest": rest}.items()}
    return paragraph(
        f"A keyed count with timers takes {seconds['pillarbox']:.1f} s for 1,000,000 rows (`make bench-keyed`,"
        f" {said['keys']:,} keys). Moving the rows through two hops of PySpark with no work done takes"
        f" {seconds['identity']:.1f} s ({share['identity']}); a bare Python loop over the same function takes"
        f" {seconds['bare']:.1f} s ({share['bare']}). The task runtime takes the other {rest:.1f} s ({share['rest']})."
    )


def epoch_words(report: Report) -> str:
    from benchmarks.bench_epoch import SUBTASKS

    said = report["epoch"]
    ratios, more, usual = said["ratios"], said["over_two_subtasks"], SUBTASKS["pillarbox"]
    two = said["epoch_ms"]["2 subtasks"]["rows"] / said["epoch_ms"]["spark"]["rows"]
    rows = f"with {said['rows']:,} rows"
    return "\n\n".join(
        [
            paragraph(
                f"Without data an epoch takes {ratios['empty']:.2f} of the time that `transformWithState` takes, {rows}"
                f" {ratios['rows']:.2f}: with {usual} subtasks on two partitions, which is the default on two cores."
                f" With 2 subtasks it takes {two:.2f} of that time {rows}."
            ),
            paragraph(
                "More subtasks than partitions cost next to nothing without data, as no subtask has an epoch then."
                f" {rows.capitalize()}, {usual} subtasks on two partitions take {more[str(usual)]['rows']:.2f} times"
                f" the processor time of 2, Java and Python together, and 64 take {more['64']['rows']:.2f} times."
            ),
        ]
    )


def latency_words(report: Report) -> str:
    said = report["latency"]
    ours, theirs = said["latency_ms"]["pillarbox"], said["latency_ms"]["spark"]
    return paragraph(
        f"At {said['rate']:,} records a second (`make bench-latency`) half of the records took at most {ours['p50']} ms"
        f" from the source to the sink with pillarbox, and {theirs['p50']} ms with `transformWithState`:"
        f" {ours['p50'] / theirs['p50']:.2f} of it. 99 of 100 took at most {ours['p99']} and {theirs['p99']} ms:"
        f" {ours['p99'] / theirs['p99']:.2f} of it."
    )


def slot_words(report: Report) -> str:
    said = report["slots"]
    in_step = "all" if said["in_step"] == 1 else f"{said['in_step']:.1%}"
    return paragraph(
        "`make bench-slots` runs the same work, a keyed count in 8 partitions, with 2, 8 and 16 slots. With 8 it took"
        f" {said['ratio']:.2f} times the processor time that it took with 2, its state took {said['memory_ratio']:.2f}"
        f" times the memory, and {in_step} of the subtasks' epochs found their state in step with Spark's."
        f" A worker took {said['relay_mb']:.0f} MB of its own, and a home {said['home_mb']:.0f} MB,"
        " of which some 4 MB are buffers of Arrow's."
    )


def hop_words(report: Report) -> str:
    works = report["windows"]["works"].values()
    hop, ours = ([each["cpu_s_per_1m_rows"][side] for each in works] for side in ("one-hop", "columnar"))
    return paragraph(
        "Columnar windows are near the limit of one hop: moving a million rows from Java to Python takes"
        f" {min(hop):.1f} to {max(hop):.1f} s of processor time, and the windows take {min(ours):.1f} to"
        f" {max(ours):.1f} s in all. Where Spark's own query takes no longer than that hop, as with few keys, they"
        " cannot be faster."
    )


def pane_words(report: Report) -> str:
    works = report["windows"]["works"]
    sliding, tumbling = (rounded(works[work]["rows_per_s"]["python"]) for work in ("sliding", "tumbling-10k"))
    return paragraph(
        f"On panes, with functions in Python and the same keys, the example takes {sliding} records a second, and a"
        f" tumbling minute {tumbling} (`make bench-windows`)."
    )


def cold_start_words(report: Report) -> str:
    said = report["recovery"]
    cost, over = sorted(said["us_per_key"].values()), sorted(said["ratios"].values())
    return paragraph(
        f"A cold start of a task takes {cost[0]:.2f} to {cost[-1]:.2f} us a key with two values and a timer,"
        f" {times(over[0])} to {times(over[-1])} times as long as `pickle.loads` of the same bytes"
        " (`make bench-recovery`)."
    )


def key_words(report: Report) -> str:
    """Say what a key takes of memory."""
    said = [
        "How much memory a key takes depends on its state: a key that is a number, with two values and an event-time"
        f" timer, takes {report['state']['memory_bytes_per_key']:,} bytes of the worker's memory (`make bench-state`)."
    ]
    if "key-cost" not in report:
        said.append("`make bench-key-cost` prints it for other kinds of state.")
        return paragraph(*said)
    kinds = report["key-cost"]["kinds"]
    rows = [[what, f"{each['memory']:,}", f"{each['written']:,}"] for what, each in kinds.items()]
    head = ["a key of 10 characters with", "bytes of memory", "bytes written"]
    said.append("`make bench-key-cost` prints it for some kinds of state:")
    return f"{paragraph(*said)}\n\n{table(head, rows)}"
