# SPDX-License-Identifier: Apache-2.0
"""The block in README.md, and the machines of the benchmarks."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from benchmarks.harness.case import Block, Results
from benchmarks.harness.turns import table
from benchmarks.report.results import RUNS
from benchmarks.report.words import WIDTH, paragraph, precise, times


def _processor(results: Results, name: str) -> str:
    machine = results.runs[name]["machine"]
    return str(machine.get("processor", machine["machine"])).replace("(R)", "").removesuffix(" Processor")


def _size(results: Results, name: str) -> str:
    machine = results.runs[name]["machine"]
    return f"{machine['cores']} cores and {machine.get('memory_gib', '?')} GiB"


def _versions(results: Results, names: Sequence[str]) -> str:
    sparks = sorted({results[name]["spark"] for name in names if "spark" in results[name]})
    pythons = sorted({results.runs[name]["machine"]["python"] for name in names})
    return f"Spark {', '.join(sparks)}, Python {', '.join(pythons)}"


def _dates(results: Results, names: Sequence[str]) -> str:
    return ", ".join(sorted({results.runs[name]["date"] for name in names}))


def machines(results: Results) -> str:
    """Return a list of the machines, with versions, dates and runs."""
    of: dict[str, list[str]] = {}
    for name in results.runs:
        of.setdefault(f"{_processor(results, name)}, {_size(results, name)}", []).append(name)
    return "\n".join(
        textwrap.fill(
            f"- {machine}; {_versions(results, names)}; {_dates(results, names)}: {', '.join(names)}.",
            WIDTH,
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
        for machine, names in of.items()
    )


def first_page(results: Results) -> str:
    """Return the block of README.md: fast cases, slow cases, and how to run a benchmark."""
    from benchmarks.cases.rates.keyed_contest import CONTENDERS

    rows: list[tuple[float, list[str]]] = []

    def case(what: str, ours: str, peer: str, theirs: str, factor: float, name: str) -> None:
        shown = f"**{times(factor)}**" if factor >= 1 else f"{times(factor)} (slower)"
        rows.append((factor, [what, ours, f"{peer}: {theirs}", shown, f"`make bench-{RUNS[name][0]}`"]))

    def rates(what: str, ours: float, peer: str, theirs: float, name: str) -> None:
        case(what, f"{precise(ours)} rows/s", peer, f"{precise(theirs)} rows/s", ours / theirs, name)

    keyed = results["keyed"]["rows_per_s"]
    for kind, peer in (("spark", "Spark's fastest stateful Python API, `{}`"), ("flink", "{}")):
        best = max((name for name in keyed if CONTENDERS[name].kind == kind), key=keyed.__getitem__)
        what = f"Count per key, with timers, by a Python function; {results['keyed']['keys']:,} keys"
        rates(what, keyed["pillarbox"], peer.format(CONTENDERS[best].title), keyed[best], "keyed")
    works, join = results["windows"]["works"], results["join"]
    for work, window in (
        ("sliding", "one-hour windows that slide by one minute"),
        ("tumbling-10k", "one-minute windows"),
    ):
        what = f"Count and sum in {window}; {works[work]['keys']:,} keys"
        rates_of = works[work]["rows_per_s"]
        rates(what, rates_of["columnar"], "Spark's own windows, in the JVM", rates_of["spark"], "windows")
    what = f"Interval join of two streams; {join['keys']:,} keys"
    rates(what, join["rows_per_s"]["columnar"], "Spark's own join, in the JVM", join["rows_per_s"]["spark"], "join")
    ours, theirs = (results["latency"]["latency_ms"][side]["p99"] for side in ("pillarbox", "spark"))
    what = f"99th percentile of the latency from source to sink, at {results['latency']['rate']:,} rows/s"
    case(what, f"{ours:,} ms", "`transformWithState`", f"{theirs:,} ms", theirs / ours, "latency")

    rows.sort(key=lambda row: row[0] < 1)  # Slower cases last.
    names = ("keyed", "windows", "join", "latency")
    processors, sizes = (sorted({of(results, name) for name in names}) for of in (_processor, _size))
    moved = [f"`bench-{RUNS[name][0]}`" for name in names if results.runs[name]["command"].startswith("TMPDIR=")]
    in_memory = f" Checkpoints of {', '.join(moved)} were in memory (`TMPDIR=/dev/shm`)." if moved else ""
    head = ["What", "pillarbox", "Compared with", "Times as fast", "Command"]
    return "\n\n".join(
        [
            table(head, [cells for _, cells in rows], words=(0, 2, 4)),
            paragraph(
                "In this table, pillarbox's windows and joins run in Arrow, without a Python function. Each benchmark"
                " checks its results, and runs both sides on the same machine."
                f" The measurements were made on {' and '.join(sizes)} ({' or '.join(processors)}) with"
                f" {_versions(results, names)}, on {_dates(results, names)}.{in_memory}"
                " [Benchmarks](docs/benchmarks.md) has all figures and the setup of each side."
            ),
        ]
    )


BLOCKS = {
    "first page": Block(first_page, ("keyed", "windows", "join", "latency")),
    "machine": Block(machines, ()),
}
