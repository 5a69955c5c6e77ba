# SPDX-License-Identifier: Apache-2.0
"""Keyed state and timers: pillarbox beside Spark's own stateful Python APIs and PyFlink, rows per second.

The work: for each row add 1 to its key's count and set an event-time timer at the end of the row's minute; when the
timer fires emit (key, minute, count), and keep the count. 100,000 keys, micro-batches of 1,000,000 rows that cover
five minutes each, a watermark 5 seconds behind. ``--keys`` and ``--rows`` are for other sizes.

The peers, all of them or those in ``--peers``:

  rows      Spark's ``transformWithState``
  pandas    Spark's ``transformWithStateInPandas``
  apply     Spark's ``applyInPandasWithState``
  process   PyFlink's ``KeyedProcessFunction`` in process mode; PyFlink gets a virtual environment of its own, which is
            made when it is missing
  thread    the same in thread mode

two limits: ``identity``, the same rows through the same hops with no work in ``mapInArrow``, and ``bare``, the
same function in a Python loop; and, where it is asked for, ``few``: pillarbox with as many subtasks as partitions, two,
instead of twice as many, as it has by default (``--subtasks``). The head of ``keyed_work.py`` says how they take
turns, and what is to whose favour.

Spark's sides are written as sparingly as their APIs allow: the count is read and written once per key and micro-batch,
a timer is set once per key, minute and micro-batch, and a timer whose key had rows in the same micro-batch finds its
count in memory. ``applyInPandasWithState`` has one timeout per key, so the minutes that are due later are kept in the
key's state, as bytes, since Spark's workers cannot read arrays in such a state.

PyFlink's watermark goes on while rows come, and a timer's count has in it what came until then. So of its results key
and minute must be exact, and the count of a key's last minute, which fires at the end; the others must lie between
the rows up to the minute's end and all of the key's rows.

Run it with ``make bench-keyed`` or ``python benchmarks/bench_keyed.py``. The last line of the output is one JSON
object; ``ratio`` is pillarbox's rows per second over the rate of the fastest of Spark's three, ``ratio_flink`` over
the rate of PyFlink's faster mode,
``of_identity`` the share of the limit, ``bare_loop`` rows per second of the bare loop,
``of_few_subtasks`` the rows per second over the rate with two subtasks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import find_pillarbox

find_pillarbox()

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks.keyed_work import DELAY, MINUTE, Ints, Work, main
from pillarbox import KeyedProcessFunction, ValueStateDescriptor

OUTPUT = "key INT, minute LONG, n LONG"


# -- pillarbox --


class Count(KeyedProcessFunction):
    """Counts the rows of a key; emits the count at the end of each minute that had one."""

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
        state = self.n.get()
        n = 0 if state is None else state[0]
        minutes = set()
        for row in rows:
            n += 1
            minutes.add(row[1] // MINUTE)
        self.n.update((n,))
        self.known[key[0]] = n
        for minute in minutes:
            self.handle.registerTimer(minute * MINUTE + MINUTE)
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        n = self.known.get(key[0])
        if n is None:
            n = self.n.get()[0]
        yield Row(key=key[0], minute=expiredTimerInfo.getExpiryTimeInMs(), n=n)

    def close(self):
        pass


class PandasCount(RowCount):
    """The same in Spark's pandas flavour."""

    def handleInputRows(self, key, rows, timerValues):
        state = self.n.get()
        n = 0 if state is None else state[0]
        minutes = set()
        for frame in rows:
            n += len(frame)
            minutes.update((frame["ts"].to_numpy() // MINUTE).tolist())
        self.n.update((n,))
        self.known[key[0]] = n
        for minute in minutes:
            self.handle.registerTimer(minute * MINUTE + MINUTE)
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        n = self.known.get(key[0])
        if n is None:
            n = self.n.get()[0]
        yield pd.DataFrame({"key": [key[0]], "minute": [expiredTimerInfo.getExpiryTimeInMs()], "n": [n]})


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


def rows_query(timed: DataFrame) -> DataFrame:
    grouped = timed.select("key", "ts").groupBy("key")
    return grouped.transformWithState(RowCount(), OUTPUT, "append", "EventTime")


def pandas_query(timed: DataFrame) -> DataFrame:
    return (
        timed.select("key", "ts")
        .groupBy("key")
        .transformWithStateInPandas(PandasCount(), OUTPUT, "append", "EventTime")
    )


def apply_query(timed: DataFrame) -> DataFrame:
    state = "n LONG, minutes BINARY"
    return timed.groupBy("key").applyInPandasWithState(count_with_state, OUTPUT, state, "append", "EventTimeTimeout")


# -- the work --


class CountWork(Work):
    """Counts with timers."""

    name = "keyed"
    output = OUTPUT
    function = Count
    queries = MappingProxyType({"rows": rows_query, "pandas": pandas_query, "apply": apply_query})

    def expected(self, batches: Iterator[tuple[Ints, Ints]], keys: int, *, late: bool) -> Iterator[list[Ints]]:
        counts = np.zeros(keys, np.int64)
        timers = np.empty(0, np.int64)
        watermark = -1
        for key, ts in batches:
            counts += np.bincount(key, minlength=keys)
            timers = np.unique(np.concatenate([timers, (ts // MINUTE + 1) * keys + key]))
            after = int(ts.max()) - DELAY - 1
            due = timers // keys * MINUTE <= (watermark if late else after)
            watermark = after
            fired, timers = timers[due], timers[~due]
            yield [fired % keys, fired // keys * MINUTE, counts[fired % keys]]

    def check_job(self, key: Ints, ts: Ints, found: list[Ints]) -> bool:
        minutes = np.unique(np.stack([key, (ts // MINUTE + 1) * MINUTE]), axis=1)
        order = np.lexsort((found[1], found[0]))
        found = [column[order] for column in found]
        if not np.array_equal(minutes, np.stack(found[:2])):
            return False
        # What a key has until each of its minutes ends, and all that it has.
        until = np.unique(np.stack([key, (ts // MINUTE + 1) * MINUTE]), axis=1, return_counts=True)[1].cumsum()
        last = np.append(minutes[0, 1:] != minutes[0, :-1], True)
        before = np.concatenate([[0], until[last][:-1]])
        number = np.concatenate([[0], last.cumsum()[:-1]])
        least, most = until - before[number], until[last][number] - before[number]
        final = last & (minutes[1] == minutes[1].max())
        n = found[2]
        return bool(((least <= n) & (n <= most)).all() and (n == most)[final].all())


if __name__ == "__main__":
    main(CountWork(), __doc__)
