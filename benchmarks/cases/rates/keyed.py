# SPDX-License-Identifier: Apache-2.0
"""Keyed state and timers: pillarbox compared with Spark's stateful Python APIs and PyFlink, in rows per second.

The work: for each row, add 1 to its key's count, and set an event-time timer at the end of the row's minute. When the
timer fires, emit (key, minute, count), and keep the count. There are 100,000 keys, and micro-batches of 1,000,000 rows
that cover five minutes each, with a watermark 5 seconds behind. ``--keys`` and ``--rows`` set other sizes.

The peers (``--peers`` selects some):

  rows      Spark's ``transformWithState``
  pandas    Spark's ``transformWithStateInPandas``
  apply     Spark's ``applyInPandasWithState``
  own-rows, own-pandas, own-apply
            the same programs, unchanged, on pillarbox (``pillarbox.group_by``), with Spark's watermark
  process   PyFlink's ``KeyedProcessFunction`` in process mode; PyFlink has its own virtual environment, which is
            created if missing
  thread    the same in thread mode

There are two limits: ``identity``, the same rows through the same hops without any work in ``mapInArrow``, and
``bare``, the same function in a Python loop. ``keyed_contest.py`` describes the schedule, and which side each choice
favours.

Spark's sides are as economical as their APIs allow. The count is read and written once per key and micro-batch, a timer
is set once per key, minute and micro-batch, and a timer whose key has rows in the same micro-batch finds its count in
memory. ``applyInPandasWithState`` has one timeout per key, so the key's state stores later minutes, as bytes, because
Spark's workers cannot read arrays in such a state.

PyFlink's watermark advances while rows arrive, and a timer's count includes the rows up to then. So only its keys, its
minutes, and the count of each key's last minute (which fires at the end) must be exact. The other counts must be
between the number of rows up to the minute's end and the number of all of the key's rows.

In the last line, ``ratio`` is pillarbox's rows per second divided by the rate of the fastest of Spark's three,
``ratio_flink`` divided by the rate of PyFlink's faster mode, and ``of_identity`` the share of the limit. ``bare_loop``
is the bare loop's rows per second.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks.cases.rates.keyed_contest import (
    DELAY,
    SCHEMA,
    SMALL,
    KeyedBatches,
    KeyedContest,
    KeyedFunctions,
    options,
    present,
    run_keyed,
)
from benchmarks.harness.case import Block, Outcome, Results, shown
from benchmarks.harness.rows import MINUTE, Columns, Ints
from benchmarks.harness.turns import table
from benchmarks.report.words import paragraph, precise, times
from pillarbox import KeyedProcessFunction, ValueStateDescriptor

__all__ = ["BLOCKS", "DELAY", "FUNCTIONS", "SCHEMA", "SMALL", "options", "present", "query", "run"]

WORK = "keyed"
OUTPUT = "key INT, minute LONG, n LONG"

# -- pillarbox --


class Count(KeyedProcessFunction):
    """Counts the rows of a key. Emits the count at the end of each minute with rows."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))

    def process_element(self, row, ctx):
        self.n.update((self.n.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(row.ts // MINUTE * MINUTE + MINUTE)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.n.value()


# -- Spark --


class RowCount(StatefulProcessor):
    """The same in Spark's row flavour."""

    def init(self, handle):
        self.handle = handle
        self.n = handle.getValueState("n", "n LONG")
        self.known: dict[int, int] = {}

    def handleInputRows(self, key, rows, timerValues):
        times = [row[1] for row in rows]
        self.count(key[0], len(times), {ts // MINUTE for ts in times})
        return iter(())

    def count(self, key, more, minutes):
        """Add to a key's count, and set timers for some minutes."""
        state = self.n.get()
        n = more if state is None else state[0] + more
        self.n.update((n,))
        self.known[key] = n
        for minute in minutes:
            self.handle.registerTimer(minute * MINUTE + MINUTE)

    def counted(self, key):
        """Return the count of a key whose timer has fired."""
        n = self.known.get(key)
        return self.n.get()[0] if n is None else n

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(key=key[0], minute=expiredTimerInfo.getExpiryTimeInMs(), n=self.counted(key[0]))

    def close(self):
        pass


class PandasCount(RowCount):
    """The same in Spark's pandas flavour."""

    def handleInputRows(self, key, rows, timerValues):
        n, minutes = 0, set()
        for frame in rows:
            n += len(frame)
            minutes.update((frame["ts"].to_numpy() // MINUTE).tolist())
        self.count(key[0], n, minutes)
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        minute, n = expiredTimerInfo.getExpiryTimeInMs(), self.counted(key[0])
        yield pd.DataFrame({"key": [key[0]], "minute": [minute], "n": [n]})


def count_with_state(key, frames, state):
    """The same for ``applyInPandasWithState``, which calls it for the key's rows or its timeout."""
    n, pending = state.get if state.exists else (0, b"")
    minutes = set(np.frombuffer(pending, np.int64).tolist())
    for frame in frames:
        n += len(frame)
        minutes.update((frame["ts"].to_numpy() // MINUTE * MINUTE + MINUTE).tolist())
    watermark = state.getCurrentWatermarkMs()
    later = sorted(minute for minute in minutes if minute > watermark)
    state.update((n, np.array(later, np.int64).tobytes()))
    if later:
        state.setTimeoutTimestamp(later[0])
    if len(later) < len(minutes):
        due = [minute for minute in minutes if minute <= watermark]
        yield pd.DataFrame({"key": key[0], "minute": due, "n": n})


FUNCTIONS = KeyedFunctions(OUTPUT, Count, RowCount, PandasCount, count_with_state, state="n LONG, minutes BINARY")
query = FUNCTIONS.query


# -- expected results --


class CountBatches(KeyedBatches):
    """Micro-batches for counts with timers."""

    def results(self, *, late: bool) -> Iterator[Columns]:
        counts = np.zeros(self.keys, np.int64)
        timers = np.empty(0, np.int64)
        watermark, number = -1, 0
        while True:
            key, ts = self.columns(number).values()
            number += 1
            counts += np.bincount(key, minlength=self.keys)
            timers = np.unique(np.concatenate([timers, (ts // MINUTE + 1) * self.keys + key]))
            after = int(ts.max()) - DELAY - 1
            due = timers // self.keys * MINUTE <= (watermark if late else after)
            watermark = after
            fired, timers = timers[due], timers[~due]
            yield [fired % self.keys, fired // self.keys * MINUTE, counts[fired % self.keys]]

    def of_job(self, number: int) -> Columns:
        key, ts = self.job_columns(number).values()
        minutes, counts = np.unique(np.stack([key, (ts // MINUTE + 1) * MINUTE]), axis=1, return_counts=True)
        return [*minutes, counts]

    def wrong_job(self, number: int, columns: list[Ints]) -> str:
        keys, ends, counts = self.of_job(number)
        if len(columns) != 3 or len(columns[0]) != len(keys):
            return f"{len(columns[0]) if columns else 0:,} results, not {len(keys):,}"
        columns = [column[np.lexsort((columns[1], columns[0]))] for column in columns]
        if not (np.array_equal(keys, columns[0]) and np.array_equal(ends, columns[1])):
            return "keys and minutes are not what they should be"
        # A key's count at the end of each minute, and its final count.
        until = counts.cumsum()
        last = np.append(keys[1:] != keys[:-1], True)
        before = np.concatenate([[0], until[last][:-1]])
        first = np.concatenate([[0], last.cumsum()[:-1]])
        least, most = until - before[first], until[last][first] - before[first]
        final = last & (ends == ends.max())
        n = columns[2]
        fits = ((least <= n) & (n <= most)).all() and (n == most)[final].all()
        return "" if fits else "counts are not what they should be"


class Keyed(KeyedContest):
    """The contest of keyed counts."""

    module = __name__
    flink = "benchmarks.peers.flink_jobs:KeyedCounts"
    title = "a count with timers"
    kind = CountBatches


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    return run_keyed(Keyed, WORK, arguments, directory)


# -- pages --


def sizes(results: Results) -> str:
    """Return a comparison with the fastest of Spark's APIs and with the limit, at other sizes."""
    runs = [results[name] for name in ("keyed-10k-keys", "keyed", "keyed-1m-keys", "keyed-100k-rows")]
    rows = [
        [
            f"{result['keys']:,} keys, {result['rows']:,} rows a micro-batch",
            *(f"{result['rows_per_s'][name]:,}" for name in ("pillarbox", "rows", "identity")),
            f"{result['ratio']:.1f}",
            f"{result['of_identity']:.2f}",
        ]
        for result in runs
    ]
    head = ["", "pillarbox", "transformWithState", "identity", "over Spark's", "of the identity limit"]
    return table(head, rows)


def in_words(results: Results) -> str:
    few, usual, many = (results[name] for name in ("keyed-10k-keys", "keyed", "keyed-1m-keys"))
    ours, limits = usual["rows_per_s"]["pillarbox"], [usual["rows_per_s"][name] for name in ("identity", "bare")]
    together = 1 / sum(1 / limit for limit in limits)
    factors = ", ".join(
        f"{times(result['ratio'])} with {result['rows'] // result['keys']:,}" for result in (few, usual, many)
    )
    return "\n\n".join(
        [
            paragraph(
                "`transformWithState` takes much longer for a key that has rows in a micro-batch than for a row. So the"
                " fewer rows a key has in a micro-batch, the further apart the two are. How many times as fast"
                f" pillarbox is, by rows a key: {factors}."
            ),
            paragraph(
                "The two limits one after the other, the hops and then the bare loop over the function, would give"
                f" {precise(together)} rows a second. pillarbox has {precise(ours)}: the task runtime itself"
                f" (checkpointed state and timers, watermarks, buffers) takes {1 - ours / together:.0%} of the time."
            ),
        ]
    )


def where_the_time_goes(results: Results) -> str:
    result = results["keyed"]
    rates = result["rows_per_s"]
    seconds = {name: 1e6 / rates[name] for name in ("pillarbox", "identity", "bare")}
    rest = seconds["pillarbox"] - seconds["identity"] - seconds["bare"]
    share = {name: f"{cost / seconds['pillarbox']:.0%}" for name, cost in {**seconds, "rest": rest}.items()}
    return paragraph(
        f"A keyed count with timers takes {seconds['pillarbox']:.1f} s for 1,000,000 rows (`make bench-keyed`,"
        f" {result['keys']:,} keys). Of this time, {seconds['identity']:.1f} s ({share['identity']}) is spent on"
        f" passing the rows through two Python stages that call no function, and {seconds['bare']:.1f} s"
        f" ({share['bare']}) on a plain Python loop that calls the function. The task runtime takes the other"
        f" {rest:.1f} s ({share['rest']})."
    )


BLOCKS = {
    "keyed": shown(present, "keyed"),
    "keyed sizes": Block(sizes, ("keyed-10k-keys", "keyed", "keyed-1m-keys", "keyed-100k-rows"), commands=True),
    "keyed in words": Block(in_words, ("keyed-10k-keys", "keyed", "keyed-1m-keys")),
    "where the time goes": Block(where_the_time_goes, ("keyed",)),
}
